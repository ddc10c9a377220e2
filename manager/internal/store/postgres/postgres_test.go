package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

func TestMain(m *testing.M) { os.Exit(servers.Sharing(m).Run()) }

// database returns the DSN of an empty database, on the server that the tests share.
func database(t *testing.T) string {
	t.Helper()
	return servers.SharedPostgres(t).URL
}

func open(t *testing.T, dsn string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestOneConnection: the pool's only connection is free again when the first question about standbys needs it.
func TestOneConnection(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := Open(ctx, Options{DSN: database(t), Schema: "one", MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 3 {
		err := s.Update(ctx, func(tx store.Tx) error {
			if v, err := tx.Get("c", "k"); i > 0 && (err != nil || string(v) != fmt.Sprint(i-1)) {
				t.Errorf("%q, %v", v, err)
			}
			return tx.Put("c", "k", fmt.Append(nil, i))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestManagersCreateTheSchemaTogether(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s, err := Open(t.Context(), Options{DSN: dsn, MaxConns: 2})
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s := open(t, dsn)
	if _, err := s.pool.Exec(t.Context(), `UPDATE oncegate.meta SET version = 99`); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Options{DSN: dsn})
	if err == nil || !strings.Contains(err.Error(), "format version 99") {
		t.Fatalf("error %v", err)
	}
}

func TestUnreadableRecordIsTold(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	storetest.Unreadable(t, s, func(c store.Collection, key string) {
		if _, err := s.pool.Exec(t.Context(), `UPDATE oncegate.records SET entries = '\xff' WHERE coll = $1 AND key = $2`, string(c), []byte(key)); err != nil {
			t.Fatal(err)
		}
	})
}

func TestBadOptionsAreRefused(t *testing.T) {
	for _, o := range []Options{
		{DSN: "postgres://localhost/x", Schema: "a; drop"},
		{DSN: "postgres://user:secret@localhost:notaport/x"},
	} {
		_, err := Open(t.Context(), o)
		if err == nil || errors.Is(err, store.ErrUnavailable) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: error %v", o, err)
		}
	}
	if _, err := Open(t.Context(), Options{DSN: "host=" + os.TempDir() + "/nowhere"}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("error %v", err)
	}
}

func TestAcknowledgedSurvivesAKilledServer(t *testing.T) {
	t.Parallel()
	srv := servers.Postgres(t)
	s := open(t, srv.URL)
	var mu sync.Mutex
	acked := map[string]int{}
	var wg sync.WaitGroup
	enough := make(chan struct{})
	for w := range 8 {
		wg.Go(func() {
			for i := range 100000 {
				key := fmt.Sprintf("w%d-%d", w, i%20)
				if err := storetest.Put(t.Context(), s, key, fmt.Sprint(i)); err != nil {
					return
				}
				mu.Lock()
				acked[key] = i
				if len(acked) == 8*20 {
					select {
					case <-enough:
					default:
						close(enough)
					}
				}
				mu.Unlock()
			}
		})
	}
	<-enough
	srv.Kill()
	wg.Wait()
	for {
		err := storetest.Put(t.Context(), s, "x", "y")
		if !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("with the server gone: error %v", err)
		}
		if errors.Is(err, store.ErrUnreached) { // the pool has no broken connections any more
			break
		}
	}
	if err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for key, want := range acked {
		got, err := storetest.Get(t.Context(), s, key)
		for errors.Is(err, store.ErrUnavailable) { // the pool still holds broken connections
			got, err = storetest.Get(t.Context(), s, key)
		}
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		// An unacknowledged write may have happened after the last acknowledged one.
		var have int
		fmt.Sscan(got, &have)
		if have != want && have != want+20 {
			t.Fatalf("%s: %d is stored, %d was acknowledged", key, have, want)
		}
	}
}

// A manager that stops still wakes the other managers' callers for what it recorded last.
func TestLastWakeUpIsSentBeforeTheEnd(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	b := open(t, dsn)
	for i := range 10 {
		a, err := Open(t.Context(), Options{DSN: dsn})
		if err != nil {
			t.Fatal(err)
		}
		last := b.Watch(fmt.Sprint("last", i))
		for _, topic := range []string{"first", fmt.Sprint("last", i)} {
			if err := a.Update(t.Context(), func(tx store.Tx) error { tx.Notify(topic); return nil }); err != nil {
				t.Error(err)
			}
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		select {
		case <-last.C():
		case <-time.After(2 * time.Minute):
			t.Fatalf("round %d: never woken", i)
		}
		last.Stop()
	}
}

func TestWakeUpsReachOtherManagersAndComeBack(t *testing.T) {
	t.Parallel()
	srv := servers.Postgres(t)
	a, b := open(t, srv.URL), open(t, srv.URL)
	w := b.Watch("topic \x00\xff")
	defer w.Stop()
	notify := func() error {
		return a.Update(t.Context(), func(tx store.Tx) error { tx.Notify("topic \x00\xff"); return nil })
	}
	if err := notify(); err != nil {
		t.Fatal(err)
	}
	<-w.C()
	srv.Kill()
	<-w.C() // the lost connection itself makes everyone look again
	if err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for woken := false; !woken; {
		if err := notify(); err != nil && !errors.Is(err, store.ErrUnavailable) {
			t.Fatal(err)
		}
		select {
		case <-w.C():
			woken = true
		case <-t.Context().Done():
			t.Fatal("never woken")
		default:
		}
	}
}

// TestDeadlockRunsAgain makes two transactions lock two records in opposite
// orders; the one the server ends must run again by itself.
func TestDeadlockRunsAgain(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	for _, key := range []string{"a", "b"} {
		if err := storetest.Put(t.Context(), s, key, "0"); err != nil {
			t.Fatal(err)
		}
	}
	var runs atomic.Int32
	var once [2]sync.Once
	var both, wg sync.WaitGroup
	both.Add(2)
	for i, order := range [][2]string{{"a", "b"}, {"b", "a"}} {
		wg.Go(func() {
			err := s.transact(t.Context(), func(tx store.Tx) error {
				runs.Add(1)
				if _, err := tx.Get("things", order[0]); err != nil {
					return err
				}
				once[i].Do(func() { both.Done(); both.Wait() }) // both hold their first lock
				v, err := tx.Get("things", order[1])
				if err != nil {
					return err
				}
				return tx.Put("things", order[1], append(v[:len(v):len(v)], byte('1'+i)))
			}, func(int) (mode, bool) { return pessimistic, false })
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := runs.Load(); n < 3 {
		t.Errorf("%d runs, want one that ran again", n)
	}
	for key, want := range map[string]string{"a": "02", "b": "01"} {
		if v, err := storetest.Get(t.Context(), s, key); err != nil || v != want {
			t.Errorf("%s: %q, %v, want %q", key, v, err, want)
		}
	}
}

// TestBusyRecordIsLocked: a function whose record changes under every run of it
// still gets through, because its later runs lock.
func TestBusyRecordIsLocked(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	if err := storetest.Put(t.Context(), s, "busy", "0"); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"busy", "absent"} {
		runs := 0
		var others sync.WaitGroup
		err := s.Update(t.Context(), func(tx store.Tx) error {
			runs++
			if _, err := tx.Get("things", key); err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			change := func() {
				if err := storetest.Put(t.Context(), s, key, fmt.Sprint(runs)); err != nil {
					t.Error(err)
				}
			}
			if runs <= optimisticRuns {
				change()
				return tx.Put("things", key, []byte("mine"))
			}
			others.Go(change) // waits until this transaction has ended
			return tx.Put("things", key, []byte("mine"))
		})
		others.Wait()
		if err != nil || runs != optimisticRuns+1 {
			t.Errorf("%s: error %v after %d runs, want none after %d", key, err, runs, optimisticRuns+1)
		}
	}
}

// A Put without a look replaces a record that was there, with
// its index entries.
func TestPutWithoutALookReplaces(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	if err := storetest.Put(t.Context(), s, "old", "1"); err != nil {
		t.Fatal(err)
	}
	runs := 0
	err := s.Update(t.Context(), func(tx store.Tx) error {
		runs++
		return errors.Join(
			tx.Put("things", "old", []byte("2"), store.Entry{Index: "byname", SortKey: "z"}),
			tx.Put("things", "new", []byte("3"), store.Entry{Index: "byname", SortKey: "y"}),
		)
	})
	if err != nil || runs != 2 {
		t.Fatalf("error %v after %d runs, want none after 2", err, runs)
	}
	var hits []store.Hit
	err = s.View(t.Context(), func(tx store.Tx) (err error) {
		hits, err = tx.Scan("things", "byname", store.Range{Limit: 10})
		return err
	})
	if err != nil || fmt.Sprint(hits) != "[{y new} {z old}]" {
		t.Fatalf("index %v, %v", hits, err)
	}
	for key, want := range map[string]string{"old": "2", "new": "3"} {
		if v, err := storetest.Get(t.Context(), s, key); err != nil || v != want {
			t.Errorf("%s: %q, %v, want %q", key, v, err, want)
		}
	}
}

// TestRefusalOfWhatNeverWas: the function sees one record from before a change
// and another from after it, and refuses; it must run again.
func TestRefusalOfWhatNeverWas(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	both := func(value string) error {
		return s.Update(t.Context(), func(tx store.Tx) error {
			return errors.Join(tx.Put("things", "a", []byte(value)), tx.Put("things", "b", []byte(value)))
		})
	}
	if err := both("0"); err != nil {
		t.Fatal(err)
	}
	runs := 0
	err := s.Update(t.Context(), func(tx store.Tx) error {
		runs++
		a, err := tx.Get("things", "a")
		if err != nil {
			return err
		}
		if runs == 1 {
			if err := both("1"); err != nil {
				return err
			}
		}
		b, err := tx.Get("things", "b")
		if err != nil {
			return err
		}
		if string(a) != string(b) {
			return fmt.Errorf("a is %s, b is %s", a, b)
		}
		return nil
	})
	if err != nil || runs != 2 {
		t.Fatalf("error %v after %d runs, want none after 2", err, runs)
	}
}

// TestSeldomRecordsAreNotLocked: a run that locks does not hold up other transactions that read the same record of
// Options.Seldom, whether there is one or not, and runs again if that record changes.
func TestSeldomRecordsAreNotLocked(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), Options{DSN: database(t), Seldom: []store.Collection{"policies"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	locking := func(int) (mode, bool) { return pessimistic, false }
	read := func(tx store.Tx) error {
		_, err := tx.Get("policies", "p")
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	}
	change := func(value string) error {
		return s.Update(ctx, func(tx store.Tx) error { return tx.Put("policies", "p", []byte(value)) })
	}
	for _, there := range []bool{false, true} {
		if there {
			if err := change("first"); err != nil {
				t.Fatal(err)
			}
		}
		once := false
		err := s.transact(ctx, func(tx store.Tx) error {
			if err := tx.Prefetch([]store.ID{{Collection: "things", Key: "mine"}, {Collection: "policies", Key: "p"}}); err != nil {
				return err
			}
			if !once {
				once = true
				other := s.Update(ctx, func(tx store.Tx) error { return cmp.Or(read(tx), tx.Put("things", "other", []byte("v"))) })
				if other != nil {
					return other
				}
			}
			return cmp.Or(read(tx), tx.Put("things", "mine", []byte("v")))
		}, locking)
		if err != nil {
			t.Errorf("there=%t: %v", there, err)
		}
	}
	for _, writes := range []bool{false, true} {
		runs := 0
		err := s.transact(ctx, func(tx store.Tx) error {
			if runs++; runs > 2 {
				return errors.New("too many runs")
			}
			if err := read(tx); err != nil {
				return err
			}
			if runs == 1 {
				if err := change(fmt.Sprint("changed ", writes)); err != nil {
					return err
				}
			}
			if _, err := tx.Get("things", "mine"); err != nil || !writes {
				return err
			}
			return tx.Put("things", "mine", []byte("w"))
		}, locking)
		if err != nil || runs != 2 {
			t.Errorf("writes=%t: %d runs, %v, want 2", writes, runs, err)
		}
	}
}
