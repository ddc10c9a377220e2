package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/reccodec"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

//go:embed testdata/first_release.sql
var firstRelease string

// Statements of the first release.
const (
	earlierClaim = `SELECT e.sort_key, e.key, r.value, r.entries, r.xmin FROM oncegate.entries e CROSS JOIN LATERAL
		(SELECT value, entries, xmin FROM oncegate.records WHERE coll = e.coll AND key = e.key FOR UPDATE SKIP LOCKED) r
		WHERE e.coll = $1 AND e.idx = $2 AND e.sort_key >= $4 AND e.sort_key < $5 ORDER BY e.sort_key, e.key LIMIT $3`
	earlierScan  = `SELECT e.sort_key, e.key FROM oncegate.entries e WHERE e.coll = $1 AND e.idx = $2 AND e.sort_key >= $4 ORDER BY e.sort_key, e.key LIMIT $3`
	earlierAfter = `SELECT e.sort_key, e.key FROM oncegate.entries e WHERE e.coll = $1 AND e.idx = $2 AND (e.sort_key, e.key) > ($4, $5)
		ORDER BY e.sort_key, e.key LIMIT $3`
	earlierFind  = `SELECT idx, sort_key FROM oncegate.entries WHERE coll = $1 AND key = $2`
	earlierLen   = `SELECT count(*) FROM oncegate.entries WHERE coll = $1 AND idx = $2`
	earlierApply = `SELECT oncegate.apply('{}', '{}', $1::text[]::"char"[], $2::text[], $3::bytea[], $4::text[]::xid[], $5::bytea[], $6::bytea[],
		$7::text[]::"char"[], $8::text[], $9::bytea[], $10::text[], $11::bytea[], $12::text[], $13::bytea[])`
)

// earlier is a session of a manager of the first release.
type earlier struct {
	t    *testing.T
	conn *pgx.Conn
}

func startEarlier(t *testing.T, dsn string) earlier {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
		_, err = conn.Exec(t.Context(), session)
	}
	if err != nil {
		t.Fatal(err)
	}
	return earlier{t, conn}
}

// rows runs a statement and returns its first two columns.
func (e earlier) rows(stmt string, args ...any) (out string) {
	e.t.Helper()
	for i, a := range args {
		if s, ok := a.(string); ok && i > 2 {
			args[i] = []byte(s)
		}
	}
	rows, err := e.conn.Query(e.t.Context(), stmt, args...)
	if err != nil {
		e.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		v, err := rows.Values()
		if err != nil {
			e.t.Fatal(err)
		}
		out += fmt.Sprintf("%s/%s ", v[0], v[min(1, len(v)-1)])
	}
	if rows.Err() != nil {
		e.t.Fatal(rows.Err())
	}
	return strings.TrimSpace(out)
}

// put replaces the record of a key by one with a single index entry. The old one is empty if the record is new.
func (e earlier) put(key, value string, old, now store.Entry) error {
	what, version := insert, uint32(0)
	if old.Index != "" {
		what = update
		err := e.conn.QueryRow(e.t.Context(), `SELECT xmin FROM oncegate.records WHERE coll = 'things' AND key = $1`, []byte(key)).Scan(&version)
		if err != nil {
			return err
		}
	}
	_, err := e.conn.Exec(e.t.Context(), earlierApply,
		[]string{what}, []string{"things"}, [][]byte{[]byte(key)}, []string{strconv.FormatUint(uint64(version), 10)},
		[][]byte{[]byte(value)}, [][]byte{reccodec.Append(nil, []store.Entry{now})},
		[]string{what}, []string{"things"}, [][]byte{[]byte(key)}, []string{old.Index}, [][]byte{[]byte(old.SortKey)}, []string{now.Index}, [][]byte{[]byte(now.SortKey)})
	return err
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

// TestManagersOfTheFirstReleaseGoOn while and after one of this version moves their index entries. A manager of the first
// release may start again as well.
func TestManagersOfTheFirstReleaseGoOn(t *testing.T) {
	t.Parallel()
	srv := servers.Postgres(t)
	old, other := startEarlier(t, srv.URL), startEarlier(t, srv.URL)
	if _, err := old.conn.Exec(t.Context(), firstRelease); err != nil {
		t.Fatal(err)
	}
	entry := func(index, sortKey string) store.Entry { return store.Entry{Index: index, SortKey: sortKey} }
	for i := range 300 {
		index := []string{"queued", "done"}[i%2]
		if err := old.put(fmt.Sprintf("k%03d", i), "1", store.Entry{}, entry(index, fmt.Sprintf("%03d", i))); err != nil {
			t.Fatal(err)
		}
	}

	// One has claimed while the new manager starts, which then waits for it.
	if _, err := old.conn.Exec(t.Context(), "BEGIN"); err != nil {
		t.Fatal(err)
	}
	if got := old.rows(earlierClaim, "things", "queued", 2, "", "1"); got != "000/k000 002/k002" {
		t.Fatalf("claimed %s", got)
	}
	opened := make(chan *Store)
	go func() {
		s, err := Open(t.Context(), Options{DSN: srv.URL})
		if err != nil {
			t.Error(err)
		}
		opened <- s
	}()
	until(t, func() (waiting bool) {
		err := other.conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock')`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
		return waiting
	})
	if err := old.put("k000", "2", entry("queued", "000"), entry("done", "900")); err != nil {
		t.Fatal(err)
	}
	if _, err := old.conn.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	s := <-opened
	if s == nil {
		return
	}
	t.Cleanup(func() { _ = s.Close() })

	if n, err := s.Len(t.Context(), "things", "queued"); err != nil || n != 149 {
		t.Errorf("%d entries, %v", n, err)
	}
	if v, err := storetest.Get(t.Context(), s, "k000"); err != nil || v != "2" {
		t.Errorf("k000 is %q, %v", v, err)
	}
	var first []store.Hit
	if err := s.Update(t.Context(), func(tx store.Tx) (err error) {
		first, err = tx.Scan("things", "queued", store.Range{Limit: 1, Claim: true})
		return errors.Join(err, tx.Put("things", "k002", []byte("3"), entry("new_index", "a")))
	}); err != nil || fmt.Sprint(first) != "[{002 k002}]" {
		t.Fatalf("claimed %v, %v", first, err)
	}

	// Its prepared statements find what the new one wrote, in indexes old and new, and the other way round.
	if got := old.rows(earlierClaim, "things", "queued", 2, "", "1"); got != "004/k004 006/k006" {
		t.Errorf("claimed %s", got)
	}
	if got := old.rows(earlierScan, "things", "new_index", 10, ""); got != "a/k002" {
		t.Errorf("the index that the new manager was the first to use has %s", got)
	}
	if err := old.put("k004", "4", entry("queued", "004"), entry("newer_index", "b")); err != nil {
		t.Fatal(err)
	}
	wantHits(t, s, "newer_index", "b/k004")
	put(t, s, "k006", "5", entry("newer_index", "c"))
	if got := old.rows(earlierAfter, "things", "newer_index", 10, "b", "k004"); got != "c/k006" {
		t.Errorf("behind b there is %s", got)
	}
	if got := old.rows(earlierFind, "things", []byte("k006")); got != "newer_index/c" {
		t.Errorf("k006 has the entries %s", got)
	}
	if n := 0; old.conn.QueryRow(t.Context(), earlierLen, "things", "newer_index").Scan(&n) != nil || n != 2 {
		t.Errorf("the index has %d entries", n)
	}

	// A change by one makes a transaction of the other run again.
	runs := 0
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		if _, err := tx.Get("things", "k008"); err != nil {
			return err
		}
		if runs++; runs == 1 {
			if err := old.put("k008", "6", entry("queued", "008"), entry("queued", "007")); err != nil {
				return err
			}
		}
		return tx.Put("things", "k008", []byte("7"), entry("newer_index", "d"))
	}); err != nil || runs != 2 {
		t.Errorf("%d runs, %v", runs, err)
	}
	wantHits(t, s, "newer_index", "b/k004 c/k006 d/k008")

	// It looks at no more than it asks for: the server compiles plans that it takes for expensive.
	for i, stmt := range []string{earlierClaim, earlierScan, earlierAfter} {
		name, args := fmt.Sprint("plan", i), strings.Repeat(", ''", strings.Count(stmt, "$5"))
		if _, err := old.conn.Exec(t.Context(), "PREPARE "+name+" (text, text, int, bytea"+strings.Repeat(", bytea", strings.Count(stmt, "$5"))+") AS "+stmt); err != nil {
			t.Fatal(err)
		}
		rows, err := old.conn.Query(t.Context(), "EXPLAIN EXECUTE "+name+" ('things', 'queued', 2, ''"+args+")")
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if text := strings.Join(plan, "\n"); err != nil || strings.Contains(text, "Sort  (") || strings.Contains(text, "Seq Scan") || strings.Contains(text, "JIT") {
			t.Errorf("%v: the plan is no look-up:\n%s", err, text)
		}
	}
	var version int
	if err := old.conn.QueryRow(t.Context(), `SELECT version FROM oncegate.meta`).Scan(&version); err != nil || version != 1 {
		t.Errorf("the format version is %d, %v; the first release reads up to 1", version, err)
	}
}

// TestMoveOfEntriesThatFails leaves everything as it was.
func TestMoveOfEntriesThatFails(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	old := startEarlier(t, dsn)
	if _, err := old.conn.Exec(t.Context(), firstRelease); err != nil {
		t.Fatal(err)
	}
	if err := old.put("k", "1", store.Entry{}, store.Entry{Index: "queued", SortKey: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := old.conn.Exec(t.Context(), `CREATE VIEW oncegate.mine AS SELECT * FROM oncegate.entries`); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(t.Context(), Options{DSN: dsn}); err == nil || !strings.Contains(err.Error(), "other objects depend on it") {
		t.Fatalf("%v, %v: a view of somebody else depends on the table", s, err)
	}
	if got := old.rows(earlierScan, "things", "queued", 10, ""); got != "a/k" {
		t.Errorf("the index has %s", got)
	}
	if _, err := old.conn.Exec(t.Context(), `DROP VIEW oncegate.mine`); err != nil {
		t.Fatal(err)
	}
	// A quarantine begins before a manager starts.
	s, err := Open(t.Context(), Options{DSN: dsn, Used: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	wantHits(t, s, "queued", "a/k")
}

// TestStartWaitsForAMove of another manager, for longer than a commit waits for a lock.
func TestStartWaitsForAMove(t *testing.T) {
	t.Parallel()
	srv := servers.Postgres(t)
	mover := startEarlier(t, srv.URL)
	if _, err := mover.conn.Exec(t.Context(), `BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('oncegate schema oncegate', 0))`); err != nil {
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
		err := mover.conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND clock_timestamp() - query_start > '6 s')
			FROM pg_stat_clear_snapshot()`).Scan(&long)
		if err != nil {
			t.Fatal(err)
		}
		return long
	})
	if _, err := mover.conn.Exec(t.Context(), "COMMIT"); err != nil {
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
	if got := startEarlier(t, srv.URL).rows(earlierScan, "things", "first_used", 10, ""); got != "a/k" {
		t.Errorf("a manager of the first release finds %q", got)
	}
}

// TestServerThatTakesOverLearnsTheIndexes: an asynchronous standby may lack what the last commits added.
func TestServerThatTakesOverLearnsTheIndexes(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	s := open(t, dsn)
	sql := startEarlier(t, dsn)
	put(t, s, "k", "v", store.Entry{Index: "state", SortKey: "a"})
	if n := len(s.indexes.known); n != 1 {
		t.Fatalf("%d indexes are known", n)
	}
	sql.rows(`DELETE FROM oncegate.indexes`)
	s.indexes.connected("the server before") // what follows is on another one
	s.indexes.added([]indexName{{"things", "state"}}, "the server before")
	s.pool.Reset()
	put(t, s, "k", "v", store.Entry{Index: "state", SortKey: "b"})
	if got := sql.rows(`SELECT coll, idx FROM oncegate.indexes`); got != "things/state" {
		t.Errorf("the server's table has %q", got)
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
