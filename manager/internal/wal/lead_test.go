package wal_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// mustLead appends body(i), which must make the caller lead.
func mustLead(t *testing.T, l *wal.Log, i uint64) uint64 {
	t.Helper()
	seq, lead, err := l.AppendLead(body(i))
	if err != nil || !lead {
		t.Fatalf("AppendLead: %v %v", lead, err)
	}
	return seq
}

// openIdle opens a log on which an append leads, as soon as the committer sleeps.
func openIdle(t *testing.T, fs *faultfs.FS) *wal.Log {
	t.Helper()
	l, _ := mustOpen(t, options(fs))
	if err := l.WaitIdle(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// A record of an idle log waits for its appender to commit, and other records share its sync.
func TestLoneRecordWaitsForItsCommit(t *testing.T) {
	fs := &faultfs.FS{}
	l := openIdle(t, fs)
	one := mustLead(t, l, 1)
	two, lead, err := l.AppendLead(body(2))
	if err != nil || lead {
		t.Fatalf("a second leader: %v %v", lead, err)
	}
	three := mustAppend(t, l, body(3))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := l.WaitDurable(ctx, one); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no caller committed, and yet: %v", err)
	}
	l.Lead()
	if l.Durable() != three {
		t.Errorf("%d are durable, want %d", l.Durable(), three)
	}
	mustWait(t, l, one)
	mustWait(t, l, two)
	if st := l.Stats(); st.Batches != 1 || st.Records != 3 {
		t.Errorf("%+v", st)
	}
	// After a batch of several records the committer commits, and after a batch of one the appender may again.
	if _, lead, err := l.AppendLead(body(4)); lead || err != nil {
		t.Errorf("%v %v", lead, err)
	}
	mustWait(t, l, 4)
	if err := l.WaitIdle(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustLead(t, l, 5)
	l.Lead()
	mustClose(t, l)
	l, f := mustOpen(t, options(fs))
	defer l.Close()
	f.wantBodies(t, 1, 5)
}

// TestOthersCommitBehindALeader: records that arrive during a leader's sync are committed by the committer.
func TestOthersCommitBehindALeader(t *testing.T) {
	fs := &faultfs.FS{}
	l := openIdle(t, fs)
	defer l.Close()
	mustLead(t, l, 1)
	g := newGate(fs, isSync)
	led := make(chan struct{})
	go func() {
		defer close(led)
		l.Lead()
	}()
	<-g.entered
	if _, lead, err := l.AppendLead(body(2)); lead || err != nil {
		t.Errorf("%v %v", lead, err)
	}
	mustAppend(t, l, body(3))
	g.release()
	mustWait(t, l, 3)
	<-led
}

// TestLeadersSyncFails: as with the committer, the error is final, reaches every waiter, and nothing is tried again.
func TestLeadersSyncFails(t *testing.T) {
	for _, kind := range []string{faultfs.Write, faultfs.Sync} {
		fs := &faultfs.FS{}
		l := openIdle(t, fs)
		mustLead(t, l, 1)
		mustAppend(t, l, body(2))
		var mu sync.Mutex
		tries := 0
		fs.SetHook(func(op faultfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if op.Kind == kind {
				tries++
				return syscall.EIO
			}
			return nil
		})
		l.Lead()
		for seq := uint64(1); seq <= 2; seq++ {
			if err := l.WaitDurable(t.Context(), seq); !errors.Is(err, wal.ErrFailed) || !errors.Is(err, syscall.EIO) {
				t.Errorf("record %d: %v", seq, err)
			}
		}
		<-l.Failed()
		if _, lead, err := l.AppendLead(body(3)); lead || !errors.Is(err, wal.ErrFailed) {
			t.Errorf("%v %v", lead, err)
		}
		if err := l.Close(); !errors.Is(err, wal.ErrFailed) {
			t.Errorf("Close: %v", err)
		}
		if tries != 1 {
			t.Errorf("%d tries of %s", tries, kind)
		}
	}
}

// TestCloseWaitsForTheLeader: Close also waits for a leader that has not begun to commit.
func TestCloseWaitsForTheLeader(t *testing.T) {
	for _, begun := range []bool{false, true} {
		fs := &faultfs.FS{}
		l := openIdle(t, fs)
		mustLead(t, l, 1)
		mustAppend(t, l, body(2))
		led, closed := make(chan struct{}), make(chan error, 1)
		lead := func() {
			defer close(led)
			l.Lead()
		}
		if begun {
			g := newGate(fs, isSync)
			go lead()
			<-g.entered
			go func() { closed <- l.Close() }()
			awaitClosed(t, l)
			g.release()
		} else {
			go func() { closed <- l.Close() }()
			awaitClosed(t, l)
			go lead()
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		<-led
		l, f := mustOpen(t, options(fs))
		f.wantBodies(t, 1, 2)
		mustClose(t, l)
	}
}

// awaitClosed waits until Close has begun.
func awaitClosed(t *testing.T, l *wal.Log) {
	t.Helper()
	for !errors.Is(l.WaitRoom(t.Context(), 1), wal.ErrClosed) {
		runtime.Gosched()
	}
}

// TestLeaderOfAFailedLog: a leader writes nothing to a log that failed before it commits.
func TestLeaderOfAFailedLog(t *testing.T) {
	fs := &faultfs.FS{}
	l := openIdle(t, fs)
	fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Create {
			return syscall.EIO
		}
		return nil
	})
	// A record of this size makes the preparer create a segment.
	seq, lead, err := l.AppendLead(make([]byte, 2<<10))
	if err != nil || !lead {
		t.Fatal(lead, err)
	}
	<-l.Failed()
	var touched atomic.Int32
	fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Write || op.Kind == faultfs.Sync {
			touched.Add(1)
		}
		return nil
	})
	l.Lead()
	if err := l.WaitDurable(t.Context(), seq); !errors.Is(err, wal.ErrFailed) {
		t.Error(err)
	}
	if err := l.Close(); !errors.Is(err, wal.ErrFailed) {
		t.Error(err)
	}
	if n := touched.Load(); n != 0 {
		t.Errorf("a failed log was touched %d times", n)
	}
}

// TestMarkBehindALeader: a log on which only leaders commit is marked, too, once it is idle.
func TestMarkBehindALeader(t *testing.T) {
	fs := &faultfs.FS{}
	l := openIdle(t, fs)
	defer l.Close()
	marks := make(chan struct{}, 100)
	fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Write && op.Len == int64(len(wal.Mark())) {
			marks <- struct{}{}
		}
		return nil
	})
	for i := uint64(1); i <= 3; i++ {
		if err := l.WaitIdle(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustLead(t, l, i)
		l.Lead()
		<-marks
	}
}

// TestLeadersAndFollowers: every record becomes durable once, in order.
func TestLeadersAndFollowers(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	const workers, each = 4, 400
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rnd := random(uint64(w))
			for range each {
				b := body(rnd.Uint64N(1000))
				var seq uint64
				var lead bool
				var err error
				for {
					if rnd.IntN(4) == 0 {
						seq, err = l.Append(b)
					} else {
						seq, lead, err = l.AppendLead(b)
					}
					if !errors.Is(err, wal.ErrBusy) {
						break
					}
					if err := l.WaitRoom(t.Context(), len(b)); err != nil {
						t.Error(err)
						return
					}
				}
				if err != nil {
					t.Error(err)
					return
				}
				if lead {
					if rnd.IntN(10) == 0 {
						time.Sleep(time.Duration(rnd.IntN(100)) * time.Microsecond)
					}
					l.Lead()
				}
				if err := l.WaitDurable(t.Context(), seq); err != nil {
					t.Error(err)
					return
				}
				switch rnd.IntN(20) {
				case 0: // a mark may come
					time.Sleep(15 * time.Millisecond)
				case 1, 2:
					time.Sleep(time.Duration(rnd.IntN(300)) * time.Microsecond)
				}
			}
		})
	}
	wg.Wait()
	if n := l.Durable(); n != workers*each {
		t.Errorf("%d are durable", n)
	}
	mustClose(t, l)
	l, f := mustOpen(t, options(fs))
	defer l.Close()
	if len(f.replayed) != workers*each {
		t.Errorf("%d are replayed", len(f.replayed))
	}
}

// TestNoLeaderOnASlowDisk: a leader cannot return when its context ends, so no caller leads while the disk is slow.
func TestNoLeaderOnASlowDisk(t *testing.T) {
	fs := &faultfs.FS{}
	l := openIdle(t, fs)
	defer l.Close()
	mustLead(t, l, 1)
	fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Sync {
			time.Sleep(2 * wal.LeadLimit)
		}
		return nil
	})
	l.Lead()
	if err := l.WaitIdle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if seq, lead, err := l.AppendLead(body(2)); lead || err != nil {
		t.Errorf("%d %v %v", seq, lead, err)
	}
	mustWait(t, l, 2)
}
