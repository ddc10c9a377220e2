package jobs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// idleQueue is a queue whose waiting claims look only when they are woken.
func idleQueue(t *testing.T) *Queue {
	t.Helper()
	st := mem.New(mem.Options{})
	t.Cleanup(func() { _ = st.Close() })
	q, err := New(st, Options{Lease: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	q.pollEvery = time.Hour
	return q
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func enqueue(t *testing.T, q *Queue, function string) {
	t.Helper()
	if _, err := q.Enqueue(t.Context(), Submission{Function: function}); err != nil {
		t.Fatal(err)
	}
}

// TestEnqueueWakesAsManyClaimsAsThereIsWork: a thousand claims wait, and a few
// jobs come.
func TestEnqueueWakesAsManyClaimsAsThereIsWork(t *testing.T) {
	const idle, jobs = 1000, 20
	for name, functions := range map[string]func(i int) []string{
		"any":          func(int) []string { return nil },
		"one":          func(int) []string { return []string{"f"} },
		"of their own": func(i int) []string { return []string{"f", fmt.Sprint("g", i)} },
	} {
		t.Run(name, func(t *testing.T) {
			q := idleQueue(t)
			ctx, cancel := context.WithCancel(t.Context())
			var claims sync.WaitGroup
			var got atomic.Int64
			for i := range idle {
				claims.Go(func() {
					jobs, err := q.Claim(ctx, ClaimRequest{Worker: "w", Functions: functions(i), Wait: MaxWait})
					if err != nil && !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					got.Add(int64(len(jobs)))
				})
			}
			eventually(t, "all claims have looked once", func() bool { return q.claims.looks.Load() >= idle })
			for i := range jobs {
				enqueue(t, q, "f")
				eventually(t, "the job is taken", func() bool { return got.Load() == int64(i+1) })
			}
			cancel()
			claims.Wait()
			// Each job wakes one claim, which wakes two more when it got it.
			if looks := q.claims.looks.Load() - idle; looks > 3*jobs {
				t.Errorf("%d jobs made %d of %d idle claims look", jobs, looks, idle)
			}
		})
	}
}

// TestManyJobsWakeManyClaims: no claim stays idle while there is work, also when
// all of it came with one wake-up.
func TestManyJobsWakeManyClaims(t *testing.T) {
	const idle = 200
	q := idleQueue(t)
	var claims sync.WaitGroup
	for range idle {
		claims.Go(func() {
			if jobs, err := q.Claim(t.Context(), ClaimRequest{Worker: "w", Functions: []string{"f", "g"}, Wait: MaxWait}); err != nil || len(jobs) != 1 {
				t.Errorf("%d jobs, %v", len(jobs), err)
			}
		})
	}
	eventually(t, "all claims have looked once", func() bool { return q.claims.looks.Load() >= idle })
	if err := q.Pause(t.Context(), "f"); err != nil {
		t.Fatal(err)
	}
	for range idle {
		enqueue(t, q, "f")
	}
	if err := q.Resume(t.Context(), "f"); err != nil {
		t.Fatal(err)
	}
	claims.Wait()
}

// TestWokenClaimsThatLeavePassItOn: claims come, wait, and leave at any moment.
// Every job is taken by one that stays, without anything but wake-ups.
func TestWokenClaimsThatLeavePassItOn(t *testing.T) {
	const jobs = 300
	q := idleQueue(t)
	functions := [][]string{nil, {"f"}, {"f", "g"}, {"g", "h"}}
	stay, stop := context.WithCancel(t.Context())
	var claims sync.WaitGroup
	var got atomic.Int64
	for i := range 16 { // these stay
		claims.Go(func() {
			for stay.Err() == nil {
				jobs, err := q.Claim(stay, ClaimRequest{Worker: "w", Functions: functions[i%len(functions)], Wait: MaxWait})
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				got.Add(int64(len(jobs)))
			}
		})
	}
	for i := range 64 { // these leave
		claims.Go(func() {
			for stay.Err() == nil {
				ctx, cancel := context.WithTimeout(stay, time.Duration(rand.IntN(3000))*time.Microsecond)
				jobs, err := q.Claim(ctx, ClaimRequest{Worker: "w", Functions: functions[i%len(functions)], Wait: time.Duration(rand.IntN(3000)) * time.Microsecond})
				cancel()
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				got.Add(int64(len(jobs)))
			}
		})
	}
	for i := range jobs {
		enqueue(t, q, []string{"f", "g", "h"}[i%3])
		if i%10 == 0 {
			eventually(t, "all jobs are taken", func() bool { return got.Load() == int64(i+1) })
		}
	}
	eventually(t, "all jobs are taken", func() bool { return got.Load() == jobs })
	stop()
	claims.Wait()
}

// TestIdleClaimsPassOn looks at the lines themselves: which claim is woken, and when.
func TestIdleClaimsPassOn(t *testing.T) {
	q := idleQueue(t)
	c := &q.idle
	a, b, d := c.enter([]string{"f", "g"}), c.enter([]string{"f"}), c.enter([]string{"g", "f"})
	woken := func(w *idleClaim) bool {
		select {
		case <-w.wake:
			return true
		default:
			return false
		}
	}
	want := func(what string, inA, inB, inD bool) {
		t.Helper()
		if x, y, z := woken(a), woken(b), woken(d); x != inA || y != inB || z != inD {
			t.Errorf("%s: woken %v %v %v, want %v %v %v", what, x, y, z, inA, inB, inD)
		}
	}
	next := func(function string) {
		c.mu.Lock()
		c.lines[topicFunction+function].wakeNext(topicFunction + function)
		c.mu.Unlock()
	}
	next("f")
	want("the first in line", true, false, false)
	c.leave(a, false) // without having looked
	want("the one after it", false, true, false)
	a = c.enter([]string{"f", "g"})
	next("g")
	want("the first of the other line", false, false, true)
	c.leave(d, true) // got something: but nobody else waits for g than a
	want("when d has got something", true, false, false)
	d = c.enter([]string{"f"})
	next("f")
	want("the one that was not woken for the longest time", false, true, false)
	c.leave(b, true)
	want("two more when it got something", true, false, true)
	c.leave(a, true)
	c.leave(d, true)
	if len(c.lines) != 0 {
		t.Errorf("%d lines are left", len(c.lines))
	}
}

// passing is a shared store whose next scans for queued jobs pass by everything, as store.Range allows.
type passing struct {
	store.Store
	scans atomic.Int64
}

func (s *passing) Capabilities() store.Capabilities {
	c := s.Store.Capabilities()
	c.Shared = true
	return c
}

func (s *passing) Update(ctx context.Context, f func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error { return f(passingTx{tx, s}) })
}

type passingTx struct {
	store.Tx
	s *passing
}

func (t passingTx) Scan(c store.Collection, index string, r store.Range) ([]store.Hit, error) {
	if r.Claim && (index == idxQueued || index == idxFunction) && t.s.scans.Add(-1) >= 0 {
		return nil, nil
	}
	return t.Tx.Scan(c, index, r)
}

// passingQueue is a queue on such a store. Its waiting claims do not poll.
func passingQueue(t *testing.T) (*Queue, *passing) {
	t.Helper()
	st := mem.New(mem.Options{})
	t.Cleanup(func() { _ = st.Close() })
	passes := &passing{Store: st}
	q, err := New(passes, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	q.pollEvery = time.Hour
	return q, passes
}

// claimed claims one job. The error says what went wrong.
func claimed(t *testing.T, q *Queue, functions ...string) <-chan error {
	taken := make(chan error, 1)
	go func() {
		jobs, err := q.Claim(t.Context(), ClaimRequest{Worker: "w", Functions: functions, Wait: MaxWait})
		if err == nil && len(jobs) != 1 {
			err = fmt.Errorf("%d jobs", len(jobs))
		}
		taken <- err
	}()
	return taken
}

// TestSearchThatPassedByAJobIsRepeated: the claim does not wait for the next poll, whether the job was there before it or
// woke it.
func TestSearchThatPassedByAJobIsRepeated(t *testing.T) {
	for _, woken := range []bool{false, true} {
		t.Run(fmt.Sprint("woken ", woken), func(t *testing.T) {
			q, passes := passingQueue(t)
			passes.scans.Store(1)
			if woken {
				passes.scans.Store(3) // the first search, the one of 500 ms later, and the one that the job wakes
			} else {
				enqueue(t, q, "f")
			}
			taken := claimed(t, q)
			if woken {
				eventually(t, "two searches", func() bool { return passes.scans.Load() == 1 })
				enqueue(t, q, "f")
			}
			if err := <-taken; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDueJobsDoNotReplaceTheSecondSearch: jobs and leases of others fall due all the time.
func TestDueJobsDoNotReplaceTheSecondSearch(t *testing.T) {
	t.Parallel()
	q, passes := passingQueue(t)
	q.again = 5 * time.Second
	enqueue(t, q, "f")
	out, err := q.Enqueue(t.Context(), Submission{Function: "g", Delay: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	passes.scans.Store(1 << 20)
	taken := claimed(t, q, "f")
	eventually(t, "the delayed job is queued", func() bool {
		j, err := q.Get(t.Context(), out.Job.ID)
		return err == nil && j.State == Queued
	})
	eventually(t, "the search that it caused is over", q.claims.Idle)
	passes.scans.Store(0)
	if err := <-taken; err != nil {
		t.Error(err)
	}
}
