package ship_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
)

// stopping is a store that is gone for good after a number of requests that change something, the last of
// which may happen without an answer.
type stopping struct {
	object.Store
	left   int
	happen bool
	mu     chan struct{}
}

var errStopped = errors.New("the process is gone")

func (s *stopping) step(do func() error) error {
	s.mu <- struct{}{}
	defer func() { <-s.mu }()
	if s.left--; s.left > 0 {
		return do()
	}
	if s.left == 0 && s.happen {
		_ = do()
	}
	return errStopped
}

func (s *stopping) Create(ctx context.Context, name string, b []byte) (v object.Version, err error) {
	return v, s.step(func() error { v, err = s.Store.Create(ctx, name, b); return err })
}

func (s *stopping) Replace(ctx context.Context, name string, b []byte, old object.Version) (v object.Version, err error) {
	return v, s.step(func() error { v, err = s.Store.Replace(ctx, name, b, old); return err })
}

func (s *stopping) Delete(ctx context.Context, name string) error {
	return s.step(func() error { return s.Store.Delete(ctx, name) })
}

// TestShippedSnapshotCrash ends the process between each two writes to the store, with the last one
// done or not, while records, a snapshot and the manifest are shipped. Whatever was shipped must be a
// state that restores, with as many records as were there before at least.
func TestShippedSnapshotCrash(t *testing.T) {
	t.Parallel()
	t.Run("it continues", func(t *testing.T) { t.Parallel(); cutOff(t, false) })
	// What is shipped first of another history is a snapshot, and the records after it follow.
	t.Run("it begins again", func(t *testing.T) { t.Parallel(); cutOff(t, true) })
}

func cutOff(t *testing.T, fork bool) {
	top := t.TempDir()
	was, shipped := filepath.Join(top, "was"), filepath.Join(top, "shipped")
	l := startLedger(t, was, object.OpenDir(shipped), nil)
	first := l.append(300)
	l.shipped()
	l.snapshot()
	l.stop()
	rounds := ""
	if fork {
		ahead := filepath.Join(top, "ahead")
		copyDir(t, was, ahead)
		l = startLedger(t, ahead, object.OpenDir(shipped), nil)
		l.rounds = "ahead"
		l.append(20)
		l.shipped()
		l.stop()
		rounds = "fork"
	}
	for left := 1; ; left++ {
		ended := false // in one of the two: how many writes there are depends on when records become durable
		for _, happen := range []bool{false, true} {
			done := false
			dir, dest := filepath.Join(top, fmt.Sprint(left, happen)), filepath.Join(top, fmt.Sprint("dest", left, happen))
			copyDir(t, was, dir)
			copyDir(t, shipped, dest)
			base := object.OpenDir(dest)
			l := startLedger(t, dir, &stopping{Store: base, left: left, happen: happen, mu: make(chan struct{}, 1)}, nil)
			l.rounds = rounds
			last := l.append(10)
			eventually(t, "the process ends, or has shipped all", func() bool {
				if l.journal.has(errStopped.Error()) {
					return true
				}
				done = l.isShipped()
				return done
			})
			l.crash()
			restored, _, err := restoreAndVerify(t, base, time.Time{})
			if err != nil {
				t.Fatalf("cut off at write %d (it happens: %v): %v", left, happen, err)
			}
			forks := []string{rounds, "ahead"}
			if _, got := mustHoldFork(t, restored, first, forks...); got < first || !fork && got > last || fork && got > first+20 || done && got != last {
				t.Errorf("cut off at write %d (it happens: %v): restored to %d of %d", left, happen, got, last)
			}
			// And a start continues from there.
			l = startLedger(t, dir, base, nil)
			l.shipped()
			l.crash()
			restored, _, err = restoreAndVerify(t, base, time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			if _, got := mustHoldFork(t, restored, first, rounds); got != last {
				t.Errorf("cut off at write %d (it happens: %v): %d records at last, want %d", left, happen, got, last)
			}
			ended = ended || !done
		}
		if !ended {
			return
		}
	}
}

// TestForkedDirectoryBeginsAgain: a directory that was put back is noticed even where its log has come further than what was
// shipped: before its ledger serves, or once the copies can be read.
func TestForkedDirectoryBeginsAgain(t *testing.T) {
	t.Parallel()
	for name, failures := range map[string]int{"copies are there": 0, "copies are away": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, dest := newDest(t)
			dir, copied := t.TempDir(), t.TempDir()
			l := startLedger(t, dir, dest, nil)
			l.append(20)
			l.stop()
			copyDir(t, dir, copied)
			l = startLedger(t, dir, dest, nil)
			l.append(20)
			l.stop()
			fork := startLedger(t, copied, nil, nil)
			fork.rounds = "fork"
			fork.append(25)
			fork.crash()
			fork = startLedger(t, copied, &away{Store: dest, failures: failures}, nil)
			if compared := failures == 0; fork.compared != compared {
				t.Errorf("it was compared before it serves: %v, want %v", fork.compared, compared)
			}
			fork.rounds = "fork"
			fork.append(5)
			fork.shipped()
			if want := []uint64{40}; !slices.Equal(fork.lacked, want) {
				t.Errorf("the log lacks records up to %v, want %v", fork.lacked, want)
			}
			fork.stop()
			restored, _, err := restore(t, dest, time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			if _, last := mustHoldFork(t, restored, 20, "fork"); last != 50 {
				t.Errorf("it was restored up to %d", last)
			}
		})
	}
}
