package etcd

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// apart is how far the wall clocks of the managers in these tests are apart, and most is more than any test takes.
const (
	apart = 7 * time.Hour
	most  = time.Hour
)

func wallOff(d time.Duration) func() time.Time { return func() time.Time { return time.Now().Add(d) } }

// TestClocksHoursApart: managers whose clocks differ by hours have one time, whichever of them keeps it, and also after
// all of them were away.
func TestClocksHoursApart(t *testing.T) {
	t.Parallel()
	dsn := fresh(t)
	first, err := Open(t.Context(), Options{DSN: dsn, Wall: wallOff(-apart)})
	if err != nil {
		t.Fatal(err)
	}
	begin := now(t, first)
	if d := time.Since(begin) - apart; d < -most || d > most {
		t.Fatalf("the time begins %v away from the first manager's clock", d)
	}
	inOrder := func(what string, stores ...*Store) {
		t.Helper()
		last := begin
		for _, s := range stores {
			if at := now(t, s); at.Sub(last) > most {
				t.Errorf("%s: the time jumped by %v", what, at.Sub(last))
			}
		}
	}
	var log bytes.Buffer
	second, err := Open(t.Context(), Options{DSN: dsn, Wall: wallOff(apart), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	inOrder("two managers", first, second, first)
	sameWall := func(what string, off time.Duration, stores ...*Store) {
		t.Helper()
		eventually(t, what, func() bool {
			for _, s := range stores {
				if _, at := s.clock.times(); at.Sub(time.Now().Add(off)).Abs() > most {
					return false
				}
			}
			return true
		})
	}
	sameWall("both have the wall clock of the first", -apart, first, second)
	keeps := func(s *Store) func() bool {
		return func() bool {
			s.clock.mu.Lock()
			defer s.clock.mu.Unlock()
			return s.clock.tick.Keeper == s.clock.me
		}
	}
	eventually(t, "the first keeps the clock", keeps(first))
	first.clock.stop() // it lives, and does not keep the clock any more
	before := now(t, second)
	eventually(t, "the second keeps the clock", keeps(second))
	eventually(t, "the clock runs", func() bool { return now(t, second).After(before) })
	inOrder("after a change of the keeper", second, first)
	sameWall("both have the wall clock of the second", apart, second, first)
	for _, s := range []*Store{first, second} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if want := "behind=14h"; !strings.Contains(log.String(), want) {
		t.Errorf("the second manager logged %q, want %q in it", log.String(), want)
	}
	third := open(t, Options{DSN: dsn, Wall: wallOff(2 * apart)})
	inOrder("after all were away", third)
	sameWall("the third has its own wall clock", 2*apart, third)
	if at := now(t, third); !at.After(before) {
		t.Errorf("the time went back from %v to %v", before, at)
	}
}

// TestTimeWhileAllAreAway: etcd counts while no manager does.
func TestTimeWhileAllAreAway(t *testing.T) {
	t.Parallel()
	dsn := fresh(t)
	s, err := Open(t.Context(), Options{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the downtime lease is granted", func() bool {
		s.clock.mu.Lock()
		defer s.clock.mu.Unlock()
		return s.clock.tick.Lease != 0 && s.clock.tick.Keeper == s.clock.me
	})
	key := s.clockKey()
	eventually(t, "it is in the record", func() bool {
		resp, err := s.c.Get(t.Context(), key)
		return err == nil && len(resp.Kvs) == 1 && len(resp.Kvs[0].Value) > 60
	})
	before := now(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	closed := time.Now()
	for time.Since(closed) < 4*time.Second { // what etcd answers has a precision of a second
		time.Sleep(100 * time.Millisecond)
	}
	again := open(t, Options{DSN: dsn, Wall: wallOff(-apart)})
	if passed := now(t, again).Sub(before); passed < 2*time.Second || passed > most {
		t.Errorf("the time went on by %v in at least 4 s", passed)
	}
}

// TestNoRecordFromTheFuture: a transaction's time is not before that of the records it reads.
func TestNoRecordFromTheFuture(t *testing.T) {
	t.Parallel()
	dsn := fresh(t)
	fast, slow := open(t, Options{DSN: dsn}), open(t, Options{DSN: dsn})
	for range 20 {
		var written time.Time
		if err := fast.Update(t.Context(), func(tx store.Tx) error {
			fast.clock.mu.Lock()
			fast.clock.last = fast.clock.estimate().Add(20 * time.Millisecond) // ahead, as by a late message
			fast.clock.mu.Unlock()
			written = tx.Now()
			return tx.Put("things", "k", nil)
		}); err != nil {
			t.Fatal(err)
		}
		if err := slow.View(t.Context(), func(tx store.Tx) error {
			at := tx.Now() // before it reads
			if _, err := tx.Get("things", "k"); err != nil {
				return err
			}
			if at.Before(written.Truncate(time.Microsecond)) {
				t.Errorf("%v read what %v wrote", at, written)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}
