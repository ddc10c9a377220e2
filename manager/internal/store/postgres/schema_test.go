package postgres

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// dial returns a connection of its own to the server.
func dial(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// put puts a record with a single index entry.
func put(t *testing.T, s *Store, key, value string, e store.Entry) {
	t.Helper()
	if err := s.Update(t.Context(), func(tx store.Tx) error { return tx.Put("things", key, []byte(value), e) }); err != nil {
		t.Fatal(err)
	}
}

func wantHits(t *testing.T, s *Store, index string, want string) {
	t.Helper()
	var hits []store.Hit
	err := s.View(t.Context(), func(tx store.Tx) (err error) {
		hits, err = tx.Scan("things", index, store.Range{Limit: 1000})
		return err
	})
	var got []string
	for _, h := range hits {
		got = append(got, h.SortKey+"/"+h.Key)
	}
	if err != nil || strings.Join(got, " ") != want {
		t.Fatalf("index %s has %q, %v, want %q", index, got, err, want)
	}
}

// TestManagersAddIndexesTogether: commits of several managers that are the first to use an index all succeed, and a name
// whose number another index has is refused.
func TestManagersAddIndexesTogether(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	managers := []*Store{open(t, dsn), open(t, dsn), open(t, dsn)}
	for i := range 10 {
		var wg sync.WaitGroup
		for m, s := range managers {
			wg.Go(func() {
				err := s.Update(t.Context(), func(tx store.Tx) error {
					return tx.Put("things", fmt.Sprint(i, m), []byte("v"), store.Entry{Index: fmt.Sprint("index", i), SortKey: "a"})
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		wantHits(t, managers[0], fmt.Sprint("index", i), fmt.Sprintf("a/%d 0 a/%d 1 a/%d 2", i, i, i))
	}
	sql := dial(t, dsn)
	if _, err := sql.Exec(t.Context(), `SELECT oncegate.add_index($1, 'things', 'other')`, indexID(indexName{"things", "index0"})); err == nil {
		t.Error("two indexes have one number")
	}
}

// TestStartWaitsForAnother manager that creates the schema, for longer than a commit waits for a lock.
func TestStartWaitsForAnother(t *testing.T) {
	t.Parallel()
	srv := servers.Postgres(t)
	other := dial(t, srv.URL)
	if _, err := other.Exec(t.Context(), `BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('oncegate schema oncegate', 0))`); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error)
	go func() {
		s, err := Open(t.Context(), Options{DSN: srv.URL})
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	until(t, func() (long bool) {
		select {
		case err := <-opened:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		err := other.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND clock_timestamp() - query_start > '6 s')
			FROM pg_stat_clear_snapshot()`).Scan(&long)
		if err != nil {
			t.Fatal(err)
		}
		return long
	})
	if _, err := other.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

// TestRoleWithRightsOnly is the first to use an index, in a schema of another role.
func TestRoleWithRightsOnly(t *testing.T) {
	t.Parallel()
	srv := servers.Postgres(t)
	owner := open(t, srv.URL)
	if _, err := owner.pool.Exec(t.Context(), `CREATE ROLE clerk LOGIN; GRANT USAGE ON SCHEMA oncegate TO clerk;
		GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA oncegate TO clerk`); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), Options{DSN: strings.Replace(srv.URL, "user=oncegate", "user=clerk", 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	put(t, s, "k", "1", store.Entry{Index: "first_used", SortKey: "a"})
	wantHits(t, owner, "first_used", "a/k")
}

// TestServerThatTakesOverLearnsTheIndexes: an asynchronous standby may lack what the last commits added.
func TestServerThatTakesOverLearnsTheIndexes(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	s := open(t, dsn)
	put(t, s, "k", "v", store.Entry{Index: "state", SortKey: "a"})
	if n := len(s.indexes.known); n != 1 {
		t.Fatalf("%d indexes are known", n)
	}
	sql := dial(t, dsn)
	if _, err := sql.Exec(t.Context(), `DELETE FROM oncegate.indexes`); err != nil {
		t.Fatal(err)
	}
	s.indexes.connected("the server before") // what follows is on another one
	s.indexes.added([]indexName{{"things", "state"}}, "the server before")
	s.pool.Reset()
	put(t, s, "k", "v", store.Entry{Index: "state", SortKey: "b"})
	var got string
	if err := sql.QueryRow(t.Context(), `SELECT string_agg(coll || '/' || idx, ' ') FROM oncegate.indexes`).Scan(&got); err != nil || got != "things/state" {
		t.Errorf("the server's table has %q, %v", got, err)
	}
}

// TestManyWakeUpsShareNotifications: all of them reach the other managers.
func TestManyWakeUpsShareNotifications(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	a, b := open(t, dsn), open(t, dsn)
	var watchers []store.Watcher
	topic := func(i int) string { return fmt.Sprintf("%03d%s", i, strings.Repeat("\x00", 5*i)) }
	for i := range 200 {
		w := b.Watch(topic(i))
		defer w.Stop()
		watchers = append(watchers, w)
	}
	if err := a.Update(t.Context(), func(tx store.Tx) error {
		for i := range watchers {
			tx.Notify(topic(i))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for i, w := range watchers {
		select {
		case <-w.C():
		case <-time.After(2 * time.Minute):
			t.Fatalf("the watcher of topic %d was not woken", i)
		}
	}
}
