package jobs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// gated is a store whose updates wait for the test.
type gated struct {
	store.Store
	entered chan struct{} // one for each update that has begun
	pass    chan error    // lets one continue, or fail
}

func (g *gated) Update(ctx context.Context, fn func(store.Tx) error) error {
	g.entered <- struct{}{}
	select {
	case err := <-g.pass:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	return g.Store.Update(ctx, fn)
}

type groupTest struct {
	*testing.T
	s *gated
	q *Queue
	g *batch.Batcher[string]

	mu      sync.Mutex
	batches []string
}

var errBad = errors.New("bad call")

func newGroupTest(t *testing.T) *groupTest {
	m := mem.New(mem.Options{})
	gt := &groupTest{T: t, s: &gated{Store: m, entered: make(chan struct{}, 1000), pass: make(chan error)}}
	q, err := New(gt.s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close(); _ = m.Close() })
	gt.q = q
	gt.g = newGroup(q, func(_ store.Tx, calls []*string) error {
		var names []string
		for _, c := range calls {
			if *c == "bad" {
				return errBad
			}
			names = append(names, *c)
		}
		gt.mu.Lock()
		gt.batches = append(gt.batches, strings.Join(names, " "))
		gt.mu.Unlock()
		return nil
	})
	return gt
}

// call starts a call and returns where its answer comes; when wait is set it
// has joined the pending ones before call returns.
func (t *groupTest) call(ctx context.Context, name string, size int) <-chan error {
	before := t.g.Waiting()
	answer := make(chan error, 1)
	go func() { answer <- t.g.Do(ctx, &batch.Call[string]{Arg: name, Size: size}) }()
	for t.g.Waiting() == before && len(t.s.entered) == 0 {
		select {
		case err := <-answer:
			answer <- err
			return answer
		case <-time.After(time.Millisecond):
		}
	}
	return answer
}

// fill occupies all lanes.
func (t *groupTest) fill() (answers []<-chan error) {
	for i := range groupTransactions {
		answers = append(answers, t.call(t.Context(), fmt.Sprint("lane", i), 0))
		<-t.s.entered
	}
	return answers
}

func (t *groupTest) want(answer <-chan error, want error) {
	t.Helper()
	if err := <-answer; !errors.Is(err, want) {
		t.Fatalf("answer %v, want %v", err, want)
	}
}

func TestGroupSharesTransactions(t *testing.T) {
	gt := newGroupTest(t)
	answers := gt.fill()
	for i := range groupCalls + 1 {
		answers = append(answers, gt.call(t.Context(), fmt.Sprint(i), 0))
	}
	for range groupTransactions + 2 {
		gt.s.pass <- nil
	}
	for _, a := range answers {
		gt.want(a, nil)
	}
	most := 0
	for _, b := range gt.batches {
		most = max(most, len(strings.Fields(b)))
	}
	if len(gt.batches) != groupTransactions+2 || most != groupCalls {
		t.Fatalf("%d transactions of up to %d calls, want %d of up to %d", len(gt.batches), most, groupTransactions+2, groupCalls)
	}
}

func TestGroupBoundsTheBytesOfATransaction(t *testing.T) {
	gt := newGroupTest(t)
	answers := gt.fill()
	for _, size := range []int{groupBytes / 2, groupBytes / 2, 1, 2 * groupBytes, 1} {
		answers = append(answers, gt.call(t.Context(), fmt.Sprint(size), size))
	}
	for range groupTransactions + 4 {
		gt.s.pass <- nil
	}
	for _, a := range answers {
		gt.want(a, nil)
	}
	half := fmt.Sprint(groupBytes / 2)
	want := map[string]bool{half + " " + half: true, "1": true, fmt.Sprint(2 * groupBytes): true}
	for _, b := range gt.batches {
		if !strings.HasPrefix(b, "lane") && !want[b] {
			t.Errorf("a transaction of %q", b)
		}
	}
}

func TestGroupKeepsTheFailuresOfCallsApart(t *testing.T) {
	gt := newGroupTest(t)
	lanes := gt.fill()
	a, bad, b := gt.call(t.Context(), "a", 0), gt.call(t.Context(), "bad", 0), gt.call(t.Context(), "b", 0)
	for range groupTransactions + 5 { // together, a, bad with b, and each of these
		gt.s.pass <- nil
	}
	gt.want(a, nil)
	gt.want(b, nil)
	gt.want(bad, errBad)
	for _, l := range lanes {
		gt.want(l, nil)
	}
}

// TestGroupRunsNothingTwiceWhenTheOutcomeIsUnknown: the calls may have been
// done, so only their callers can decide to try again.
func TestGroupRunsNothingTwiceWhenTheOutcomeIsUnknown(t *testing.T) {
	for _, lost := range []error{store.ErrUnavailable, store.ErrFailed, store.ErrClosed, context.DeadlineExceeded, context.Canceled} {
		t.Run(lost.Error(), func(t *testing.T) {
			gt := newGroupTest(t)
			lanes := gt.fill()
			a, b := gt.call(t.Context(), "a", 0), gt.call(t.Context(), "b", 0)
			for range groupTransactions {
				gt.s.pass <- nil
			}
			gt.s.pass <- fmt.Errorf("lost: %w", lost)
			gt.want(a, lost)
			gt.want(b, lost)
			for _, l := range lanes {
				gt.want(l, nil)
			}
			if len(gt.batches) != groupTransactions {
				t.Fatalf("transactions %q", gt.batches)
			}
		})
	}
}

func TestGroupForgetsCallersThatLeave(t *testing.T) {
	gt := newGroupTest(t)
	ctx, leave := context.WithCancel(t.Context())
	running := gt.call(ctx, "running", 0)
	<-gt.s.entered
	other := gt.call(t.Context(), "other", 0)
	<-gt.s.entered
	waiting, stays := gt.call(ctx, "waiting", 0), gt.call(t.Context(), "stays", 0)
	leave()
	gt.want(running, context.Canceled)
	gt.want(waiting, context.Canceled)
	gt.want(gt.call(ctx, "late", 0), context.Canceled)
	for range 3 {
		gt.s.pass <- nil
	}
	gt.want(other, nil)
	gt.want(stays, nil)
	gt.q.Close() // waits for the lanes
	if all := strings.Join(gt.batches, " "); strings.Contains(all, "waiting") || strings.Contains(all, "late") || !strings.Contains(all, "running") {
		t.Fatalf("transactions %q", gt.batches)
	}
}

func TestGroupEndsWithTheQueue(t *testing.T) {
	gt := newGroupTest(t)
	answers := append(gt.fill(), gt.call(t.Context(), "waiting", 0))
	gt.q.Close()
	answers = append(answers, gt.call(t.Context(), "late", 0))
	for _, a := range answers {
		gt.want(a, ErrClosed)
	}
}
