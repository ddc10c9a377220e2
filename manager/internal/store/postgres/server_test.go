package postgres

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// hosts is a DSN that names two servers.
func (p *pair) hosts(a, b *servers.Server) string {
	dir := func(s *servers.Server) string { return strings.TrimSuffix(s.Socket, "/.s.PGSQL.5432") }
	return "host=" + dir(a) + "," + dir(b) + " user=oncegate dbname=postgres sslmode=disable"
}

// promote makes the standby the primary, and returns when it takes writes.
func (p *pair) promote(t *testing.T) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), p.standby.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	if _, err := c.Exec(t.Context(), `SELECT pg_promote()`); err != nil {
		t.Fatal(err)
	}
}

// The first server answers a read, and its standby takes over before the read is proven. What the new primary confirms
// says nothing about what the old one had.
func TestAnotherServerProvesNothing(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	both := p.hosts(p.primary, p.standby)
	s, strict := openWith(t, both, 0), openWith(t, both, 1)
	first := strict.stand.state.Load().server
	if err := storetest.Put(t.Context(), s, "early", "1"); err != nil {
		t.Fatal(err)
	}
	back := openWith(t, p.hosts(p.standby, p.primary), 0) // passes over the standby
	if v, err := storetest.Get(t.Context(), back, "early"); v != "1" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	if s, err := Open(t.Context(), Options{DSN: p.standby.URL}); !errors.Is(err, errStandby) {
		t.Errorf("a DSN that names only a standby: %v, %v", s, err)
	}
	p.stopStandby(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := p.waiting(ctx, t, s, "late")
	cancel() // the row is visible, and only the primary has it
	<-done

	const calls = 2
	var begun, answered sync.WaitGroup
	over := make(chan struct{})
	begun.Add(calls)
	failover := func() { begun.Done(); <-over }
	there := errors.New("it is there")
	for name, call := range map[string]func() error{
		"view": func() error {
			once := sync.OnceFunc(failover)
			return s.View(t.Context(), func(tx store.Tx) error { _, err := tx.Get("things", "late"); once(); return err })
		},
		"refusal": func() error {
			once := sync.OnceFunc(failover)
			return s.Update(t.Context(), func(tx store.Tx) error {
				_, err := tx.Get("things", "late")
				if once(); err == nil {
					err = there
				}
				return err
			})
		},
	} {
		answered.Go(func() {
			if err := call(); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%s: answered %v from what the primary does not have", name, err)
			}
		})
	}
	begun.Wait()
	p.primary.Kill()
	if err := p.standby.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.promote(t)
	close(over)
	answered.Wait()
	until(t, func() bool { now := strict.stand.state.Load().server; return now != "" && now != first })
	if err := strict.stand.proveWrite(t.Context(), first); !errors.Is(err, errOtherServer) || !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a write on the old primary, with the new one's standbys: %v", err)
	}

	until(t, func() bool { v, err := storetest.Get(t.Context(), s, "early"); return v == "1" && err == nil })
	if _, err := storetest.Get(t.Context(), s, "late"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the new primary: %v", err)
	}
}
