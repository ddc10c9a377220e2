package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// pair is a server with a synchronous standby, and a connection to look at it.
type pair struct {
	primary, standby *servers.Server
	admin            *pgx.Conn
}

func newPair(t *testing.T) *pair {
	p := &pair{primary: servers.Postgres(t)}
	p.standby = servers.PostgresStandby(t, p.primary, "s1")
	var err error
	if p.admin, err = pgx.Connect(t.Context(), p.primary.URL); err != nil {
		t.Fatal(err)
	}
	p.require(t, "s1")
	return p
}

func (p *pair) exec(t *testing.T, statements ...string) {
	t.Helper()
	for _, q := range statements {
		if _, err := p.admin.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
}

func (p *pair) count(t *testing.T, q string) (n int) {
	t.Helper()
	if err := p.admin.QueryRow(t.Context(), q).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

const connected = `SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync'`

// require sets synchronous_standby_names.
func (p *pair) require(t *testing.T, names string) {
	t.Helper()
	p.exec(t, `ALTER SYSTEM SET synchronous_standby_names = '`+names+`'`, `SELECT pg_reload_conf()`)
	want := 1
	if names == "" {
		want = 0
	}
	until(t, func() bool { return p.count(t, connected) == want })
}

func (p *pair) stopStandby(t *testing.T) {
	t.Helper()
	p.standby.Kill()
	until(t, func() bool { return p.count(t, connected) == 0 })
}

func (p *pair) startStandby(t *testing.T) {
	t.Helper()
	if err := p.standby.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return p.count(t, connected) == 1 })
}

// stallStandby stops the process by which the standby receives, and returns its id. The standby stays connected and
// confirms nothing.
func (p *pair) stallStandby(t *testing.T) (pid int) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), p.standby.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	if err := c.QueryRow(t.Context(), `SELECT pid FROM pg_stat_wal_receiver`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	return pid
}

// waiting starts a Put and returns when its commit waits for the standby.
func (p *pair) waiting(ctx context.Context, t *testing.T, s *Store, key string) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- storetest.Put(ctx, s, key, "1") }()
	until(t, func() bool {
		return p.count(t, `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%apply%' AND pid <> pg_backend_pid()`) == 1
	})
	return done
}

func until(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); {
		if time.Now().After(end) {
			t.Fatal("never happened")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func openWith(t *testing.T, dsn string, standbys int) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{DSN: dsn, RequireSyncStandbys: standbys, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Every part uses the same servers, and the last one ends with the standby as the primary.
func TestStandbys(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	t.Run("a cut wait is no acknowledgement", p.cutWait)
	t.Run("missing standbys are refused", p.missing)
	t.Run("an empty list of standbys is no confirmation", p.emptied)
	t.Run("a failover loses nothing acknowledged", p.failover)
}

// A commit whose wait for the standby is cut short becomes visible on the primary. The writer must not take it for
// acknowledged, and no reader may answer from it before a standby has it.
func (p *pair) cutWait(t *testing.T) {
	writer, reader := openWith(t, p.primary.URL, 0), openWith(t, p.primary.URL, 0)
	if err := storetest.Put(t.Context(), writer, "before", "1"); err != nil {
		t.Fatal(err)
	}
	p.stopStandby(t)
	const backends = ` FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%apply%' AND pid <> pg_backend_pid()`
	cuts := map[string]func(cancel func()){
		"cancelled":  func(func()) { p.exec(t, `SELECT pg_cancel_backend(pid)`+backends) },
		"terminated": func(func()) { p.exec(t, `SELECT pg_terminate_backend(pid)`+backends) },
		"given up":   func(cancel func()) { cancel() },
	}
	for key, cut := range cuts {
		ctx, cancel := context.WithCancel(t.Context())
		done := p.waiting(ctx, t, writer, key)
		cut(cancel)
		err := <-done
		cancel()
		if !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: the writer got %v, want an error that says that the outcome is unknown", key, err)
		}
		until(t, func() bool { // the row is visible
			return p.count(t, fmt.Sprintf(`SELECT count(*) FROM oncegate.records WHERE key = '%s'`, key)) == 1
		})
	}
	refusal := errors.New("it is there")
	short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var readers sync.WaitGroup
	for key := range cuts {
		for name, read := range map[string]func() error{
			"get": func() error { _, err := storetest.Get(short, reader, key); return err },
			"view": func() error {
				return reader.View(short, func(tx store.Tx) error { _, err := tx.Get("things", key); return err })
			},
			"refusal": func() error {
				return reader.Update(short, func(tx store.Tx) error {
					if _, err := tx.Get("things", key); err != nil {
						return err
					}
					return refusal
				})
			},
			"write": func() error { return storetest.Put(short, reader, key, "2") },
		} {
			readers.Go(func() {
				if err := read(); !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %s answered %v from what no standby has", key, name, err)
				}
			})
		}
	}
	readers.Wait()
	p.startStandby(t)
	for key := range cuts {
		if v, err := storetest.Get(t.Context(), reader, key); err != nil || v != "1" && v != "2" {
			t.Errorf("%s: with the standby back: %q, %v", key, v, err)
		}
	}
}

func (p *pair) missing(t *testing.T) {
	one, two := openWith(t, p.primary.URL, 1), openWith(t, p.primary.URL, 2)
	if err := storetest.Put(t.Context(), one, "one", "1"); err != nil {
		t.Error(err)
	}
	if r := one.Capabilities().Replication(); r != (store.Replication{Required: 1, Connected: 1}) {
		t.Errorf("%+v", r)
	}
	if r := two.Capabilities().Replication(); r.Required != 2 || r.Connected != 1 || r.Missing == "" {
		t.Errorf("%+v", r)
	}
	for _, err := range []error{
		storetest.Put(t.Context(), two, "two", "1"),
		two.View(t.Context(), func(tx store.Tx) error { _, err := tx.Get("things", "one"); return err }),
	} {
		if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "1 synchronous standbys of the Postgres server are connected, 2 are required") {
			t.Errorf("error %v", err)
		}
	}
	// A commit that waits when the standby goes away does not wait any longer.
	receiver := p.stallStandby(t)
	end := func(pid int, sig syscall.Signal) {
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
	}
	done := p.waiting(t.Context(), t, one, "waits")
	end(p.standby.PID(), syscall.SIGQUIT)
	end(receiver, syscall.SIGQUIT) // and so it does not confirm before it ends
	end(receiver, syscall.SIGCONT)
	p.standby.Kill()
	if err := <-done; !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("error %v", err)
	}
	until(t, func() bool { return one.Capabilities().Replication().Missing != "" })
	if err := storetest.Put(t.Context(), one, "one", "2"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("error %v", err)
	}
	p.startStandby(t)
	until(t, func() bool { return one.Capabilities().Replication().Missing == "" })
	if err := storetest.Put(t.Context(), one, "one", "3"); err != nil {
		t.Error(err)
	}

	p.exec(t, `CREATE ROLE plain LOGIN`, `GRANT ALL ON DATABASE postgres TO plain`)
	dsn := strings.Replace(p.primary.URL, "user=oncegate", "user=plain", 1)
	if _, err := Open(t.Context(), Options{DSN: dsn, Schema: "plain", RequireSyncStandbys: 1}); err == nil || !strings.Contains(err.Error(), "GRANT pg_read_all_stats") {
		t.Errorf("a user who does not see the standbys: %v", err)
	}
	s, err := Open(t.Context(), Options{DSN: dsn, Schema: "plain"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if r := s.Capabilities().Replication(); r.Connected != -1 {
		t.Errorf("%+v", r)
	}
	if err := storetest.Put(t.Context(), s, "x", "1"); err != nil {
		t.Error(err)
	}
	if v, err := storetest.Get(t.Context(), s, "x"); v != "1" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
}

// An empty synchronous_standby_names ends the server's wait as if the standby had confirmed.
func (p *pair) emptied(t *testing.T) {
	s := openWith(t, p.primary.URL, 1)
	receiver := p.stallStandby(t)
	done := p.waiting(t.Context(), t, s, "emptied")
	p.require(t, "")
	if err := <-done; !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("error %v", err)
	}
	_ = syscall.Kill(receiver, syscall.SIGCONT)
	p.require(t, "s1")
}

// The primary is killed under load, and an operator promotes the standby. The DSN names both.
func (p *pair) failover(t *testing.T) {
	s := openWith(t, p.hosts(p.primary, p.standby)+" target_session_attrs=read-write", 0)
	var mu sync.Mutex
	acked := map[string]bool{}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	for w := range 4 {
		load.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprintf("load-%d-%d", w, i)
				if storetest.Put(ctx, s, key, "1") == nil {
					mu.Lock()
					acked[key] = true
					mu.Unlock()
				}
			}
		})
	}
	written := func() int { mu.Lock(); defer mu.Unlock(); return len(acked) }
	until(t, func() bool { return written() >= 100 })
	p.primary.Kill()
	before := written()
	promoted, err := pgx.Connect(t.Context(), p.standby.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer promoted.Close(context.Background())
	if _, err := promoted.Exec(t.Context(), `SELECT pg_promote()`); err != nil {
		t.Fatal(err)
	}
	// The new primary has the old one's synchronous_standby_names only where that was set before the copy was made.
	until(t, func() bool { return written() >= before+100 })
	stop()
	load.Wait()
	for key := range acked {
		if v, err := storetest.Get(t.Context(), s, key); err != nil || v != "1" {
			t.Errorf("%s was acknowledged: %q, %v", key, v, err)
		}
	}
	t.Logf("%d acknowledged before the failover, %d after", before, len(acked)-before)
}
