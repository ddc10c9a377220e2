package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// countReads returns how many statements have read records for others to share since.
func countReads(s *Store) *atomic.Int64 {
	n, run := new(atomic.Int64), s.reads.run
	s.reads.run = func(ctx context.Context, batch []*reading) error {
		n.Add(1)
		return run(ctx, batch)
	}
	return n
}

func ids(keys ...string) (out []store.ID) {
	for _, key := range keys {
		out = append(out, store.ID{Collection: "things", Key: key})
	}
	return out
}

// guessAndPut is a transaction that writes a record after it saw it.
func guessAndPut(t *testing.T, s *Store, key, value string) (saw string) {
	t.Helper()
	err := s.Update(t.Context(), func(tx store.Tx) error {
		if err := store.Guess(tx, ids(key)); err != nil {
			return err
		}
		v, err := tx.Get("things", key)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		saw = string(v)
		tx.Now()
		return tx.Put("things", key, []byte(value), store.Entry{Index: "byname", SortKey: key})
	})
	if err != nil {
		t.Error(err)
	}
	return saw
}

// TestNewRecordsAreNotRead: an insertion and the change that follows it take one statement each, also when the record
// was extended meanwhile.
func TestNewRecordsAreNotRead(t *testing.T) {
	s := open(t, database(t))
	if err := storetest.Put(t.Context(), s, "first", "1"); err != nil { // the server says its time
		t.Fatal(err)
	}
	reads := countReads(s)
	for i := range 20 {
		key := fmt.Sprint("new", i)
		if saw := guessAndPut(t, s, key, "1"); saw != "" {
			t.Errorf("the new record is %q", saw)
		}
		if i%2 == 0 {
			if err := storetest.Put(t.Context(), s, key, "2"); err != nil {
				t.Fatal(err)
			}
			reads.Add(-1) // that of the put, which read what it replaced
		}
		if saw, want := guessAndPut(t, s, key, "3"), fmt.Sprint(2-i%2); saw != want {
			t.Errorf("the record is %q, want %q", saw, want)
		}
	}
	if n := reads.Load(); n > 2 { // on a machine that stops for a second
		t.Errorf("%d statements read records that are known", n)
	}
}

// TestClaimedRecordsAreNotReadAgain: what this process claimed takes one statement to end, with a record that only it names.
func TestClaimedRecordsAreNotReadAgain(t *testing.T) {
	s := open(t, database(t))
	enqueue(t, s, numbers(0, 20)...)
	lock := func() {
		if err := s.Update(t.Context(), func(tx store.Tx) error { return tx.Put("things", "lock", []byte("mine")) }); err != nil {
			t.Fatal(err)
		}
	}
	lock()
	reads, read := countReads(s), int64(0)
	for range 5 {
		keys := claimed(t, s, 4)
		before := reads.Load()
		err := s.Update(t.Context(), func(tx store.Tx) error {
			err := errors.Join(store.Recall(tx, ids(keys...)), store.Expect(tx, []store.Expected{{ID: ids("lock")[0], Value: "mine"}}))
			for _, key := range keys {
				v, gerr := tx.Get("things", key)
				if gerr != nil || string(v) != "active" {
					t.Errorf("%s is %q, %v", key, v, gerr)
				}
				err = errors.Join(err, tx.Put("things", key, []byte("done")))
			}
			if v, gerr := tx.Get("things", "lock"); gerr == nil && string(v) == "mine" {
				err = errors.Join(err, tx.Delete("things", "lock"))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		read += reads.Load() - before
		if v, err := storetest.Get(t.Context(), s, "lock"); !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("the lock is %q, %v", v, err)
		}
		lock()
	}
	if read > 1 { // on a machine that stops for a second
		t.Errorf("%d statements read records that are known", read)
	}
}

// TestGuessInAStoppedClock: a manager that stood still for an hour, as virtual machines do, reckons an old time. It
// gives no answer by that time.
func TestGuessInAStoppedClock(t *testing.T) {
	s := open(t, database(t))
	if err := storetest.Put(t.Context(), s, "first", "1"); err != nil {
		t.Fatal(err)
	}
	s.clock.mu.Lock()
	s.clock.said, s.clock.latest = s.clock.said.Add(-time.Hour), s.clock.latest.Add(-time.Hour)
	s.clock.at = time.Now()
	s.clock.mu.Unlock()
	var seen []time.Time
	err := s.Update(t.Context(), func(tx store.Tx) error {
		if err := store.Guess(tx, ids("new")); err != nil {
			return err
		}
		seen = append(seen, tx.Now())
		return tx.Put("things", "new", []byte("1"))
	})
	if err != nil || len(seen) != 2 || seen[1].Sub(seen[0]) < time.Hour-2*clockFresh {
		t.Errorf("the function saw %v, error %v", seen, err)
	}
	if now, _, known := s.clock.now(); !known || time.Since(now).Abs() > 10*clockFresh {
		t.Errorf("the clock is %v, %t", now, known)
	}
}

func TestClock(t *testing.T) {
	var c clock
	if _, _, known := c.now(); known {
		t.Error("the time is known before the server said it")
	}
	base := time.Now().Add(24 * time.Hour).Truncate(time.Microsecond)
	c.saw("a", base)
	first, on, known := c.now()
	if !known || on != "a" || first.Before(base) || first.Sub(base) > time.Minute {
		t.Fatalf("%v on %s, %t", first.Sub(base), on, known)
	}
	c.saw("a", base.Add(-clockFresh/2)) // an answer that came late
	if late, _, _ := c.now(); late.Before(first) {
		t.Errorf("the clock went back by %v", first.Sub(late))
	}
	c.saw("a", base.Add(time.Hour)) // the server's clock was set
	if ahead, _, _ := c.now(); ahead.Before(base.Add(time.Hour)) {
		t.Errorf("the clock is behind by %v", base.Add(time.Hour).Sub(ahead))
	}
	c.saw("a", base) // and set back
	if back, _, _ := c.now(); back.Sub(base) > time.Minute {
		t.Errorf("the clock stayed ahead by %v", back.Sub(base))
	}
	c.saw("b", base.Add(-time.Hour)) // another server replaced it
	if back, on, _ := c.now(); on != "b" || back.After(base) {
		t.Errorf("%v on %s", back.Sub(base), on)
	}
	c.mu.Lock()
	c.at = c.at.Add(-2 * clockFresh)
	c.mu.Unlock()
	if _, _, known := c.now(); known {
		t.Error("an old answer still counts")
	}
}

// TestRemembersSoMuch: what is remembered is bounded.
func TestRemembersSoMuch(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	for i := range 3 * maxRecent / 100 {
		err := s.Update(t.Context(), func(tx store.Tx) error {
			if err := store.Guess(tx, ids(fmt.Sprint(i))); err != nil {
				return err
			}
			for j := range 100 {
				value := []byte("small")
				if j == 0 {
					value = make([]byte, recentBytes)
				}
				if err := tx.Put("things", fmt.Sprint(i, "-", j), value); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.recent.records); n == 0 || n > maxRecent {
		t.Errorf("%d records are remembered", n)
	}
	if s.recent.get(recordName{"things", "0-1"}) != nil || s.recent.get(recordName{"things", "490-0"}) != nil {
		t.Error("an old record or a large one is remembered")
	}
}

// TestWrongGuessesFailNoStatement: the server writes a statement that fails into its log, with the key. Calls that shared
// a commit with a wrong guess share again.
func TestWrongGuessesFailNoStatement(t *testing.T) {
	t.Parallel()
	dir := logDirectory(t)
	srv := servers.Postgres(t, "-c", "logging_collector=on", "-c", "log_directory="+dir, "-c", "log_filename=log", "-c", "log_file_mode=0644")
	s, other := open(t, srv.URL), open(t, srv.URL)
	for key, manager := range map[string]*Store{"there": other, "first": s} { // the server says its time to s
		if err := storetest.Put(t.Context(), manager, key, "1"); err != nil {
			t.Fatal(err)
		}
	}
	const callers = 8
	var commits, together atomic.Int64
	run := s.commits.run
	s.commits.run = func(ctx context.Context, batch []*changes) error {
		commits.Add(1)
		if len(batch) == callers {
			together.Add(1)
		}
		return run(ctx, batch)
	}
	goOn := s.commits.occupy(t, func(int) *changes { return &changes{} })
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			key, want := fmt.Sprint("new", c), ""
			if c == 0 {
				key, want = "there", "1"
			}
			if saw := guessAndPut(t, s, key, "2"); saw != want {
				t.Errorf("%s is %q, want %q", key, saw, want)
			}
		})
	}
	waitUntil(func() bool { return s.commits.waiting() == callers })
	goOn()
	wg.Wait()
	if together.Load() == 0 || commits.Load() > shareLanes+1+callers {
		t.Errorf("%d commits, %d of all", commits.Load(), together.Load())
	}
	if saw := guessAndPut(t, s, "there", "3"); saw != "2" {
		t.Errorf("the record is %q", saw)
	}
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil || !strings.Contains(string(log), "LOG:") || strings.Contains(string(log), "ERROR:") {
		t.Errorf("error %v, the server's log:\n%s", err, log)
	}
}
