package mem

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// call is one Update on its way.
//
// Callers do not queue up for the lock. One who finds it taken leaves the call
// in Store.calls, and the caller that has the lock runs what is there before giving it
// up. So a transaction finds what the one before it left in the processor's
// caches, and its caller goes to sleep once, until the record is durable, not
// another time before that.
//
//	                  lock free
//	Update ──────────────────────────────▶ run ──▶ unlock ──▶ run the calls of others
//	   └── taken ──▶ Store.calls ──▶ sleep                          │
//	                                   ▲                            │
//	                                   └──── done: durable, failed ─┘
type call struct {
	fn  func(store.Tx) error
	ctx context.Context

	// What came of it; guarded by Store.mu until done.
	outcome
	panicked any
	gone     bool // the caller did not wait: it must not be run

	// done says that the function has returned, and that the fields above may be
	// read without the lock.
	done atomic.Bool
	// wake makes the caller look at done. It may be sent to without reason.
	wake chan struct{}
	next *call // in Store.calls
}

// outcome is what came of running a function.
type outcome struct {
	seq  uint64 // what has to be durable before the answer; with busy the size that did not fit
	told topics
	err  error
	busy bool // the log was: the function is to be run again
	lead bool // the caller has to commit, see wal.Log.AppendLead
}

// maxCombined is how many calls of others one caller runs before it leaves the
// rest to somebody else: its own has to be answered, too.
const maxCombined = 128

// errUnfinished is the error of a call whose function did not return.
var errUnfinished = errors.New("mem: the function of an Update ended its goroutine")

// newCall makes use of a call that nobody knows any more but the log, which may
// still wake it.
func (s *Store) newCall(ctx context.Context, fn func(store.Tx) error) *call {
	c, ok := s.oldCalls.Get().(*call)
	if !ok {
		c = &call{wake: make(chan struct{}, 1)}
	}
	c.ctx, c.fn = ctx, fn
	select {
	case <-c.wake: // sent to an earlier call
	default:
	}
	return c
}

// free takes a call back that is done.
func (s *Store) free(c *call) {
	c.fn, c.ctx, c.outcome = nil, nil, outcome{}
	c.done.Store(false)
	s.oldCalls.Put(c)
}

// do gets the function of a call run, here or on the goroutine of another, and
// returns when that is over, in most cases not before the answer may be given.
// It panics if the function does.
func (s *Store) do(c *call) {
	if s.mu.TryLock() {
		// Also when a function panics or ends the goroutine.
		defer s.lead(c)
		defer s.unlock()
		s.exec(c, true)
		c.done.Store(true)
		return
	}
	for {
		c.next = s.calls.Load()
		if s.calls.CompareAndSwap(c.next, c) {
			break
		}
	}
	// The lock may have become free meanwhile, with nobody left to look.
	if s.mu.TryLock() {
		s.unlock()
	}
	for !c.done.Load() && !c.gone {
		s.sleep(c)
	}
	if c.panicked != nil {
		panic(c.panicked)
	}
}

// lead commits what the log left to the caller, once others can have the lock.
func (s *Store) lead(c *call) {
	if c.lead {
		s.log.Lead()
	}
}

// sleep waits for a call to be woken. A caller that is woken without a result takes
// over the remaining calls; so does one that stops waiting,
// as it may have been chosen for that already.
func (s *Store) sleep(c *call) {
	left := false
	if end := c.ctx.Done(); end == nil {
		<-c.wake
	} else {
		select {
		case <-c.wake:
		case <-end:
			left = true
		}
	}
	if c.done.Load() {
		return
	}
	s.mu.Lock()
	if left && !c.done.Load() {
		c.gone, c.outcome = true, outcome{err: c.ctx.Err()}
	}
	s.unlock()
}

// unlock runs the calls that were left to the holder of the lock, up to
// maxCombined, and gives it up. Every holder of the lock ends with it.
func (s *Store) unlock() {
	for left := maxCombined; ; {
		ran, more := s.combine(left)
		left -= ran
		if !s.hand(more) {
			return
		}
	}
}

// hand gives the lock up, and takes it again when there is something to do that
// nobody else knows of: a caller that left a call before this, and found the lock
// taken, relies on it being looked at. more says that somebody was woken for that.
func (s *Store) hand(more bool) (again bool) {
	s.mu.Unlock()
	return !more && s.calls.Load() != nil && s.mu.TryLock()
}

// combine runs calls in the order in which they came, up to limit, and reports
// whether it left any, which then are the business of another caller.
func (s *Store) combine(limit int) (ran int, more bool) {
	if len(s.backlog) == 0 && s.calls.Load() == nil {
		return 0, false
	}
	s.collect()
	complete := false
	defer func() {
		more = s.leave(ran)
		if !complete && s.hand(more) { // a function ends this goroutine, and so unlock
			s.unlock()
		}
	}()
	for _, c := range s.backlog[:min(len(s.backlog), limit)] {
		ran++
		if !c.gone {
			s.execOther(c)
		}
	}
	complete = true
	return ran, more
}

// collect moves the calls that wait, which are linked newest first, to the end of
// the backlog.
func (s *Store) collect() {
	first := len(s.backlog)
	for c := s.calls.Swap(nil); c != nil; {
		s.backlog = append(s.backlog, c)
		c, c.next = c.next, nil
	}
	slices.Reverse(s.backlog[first:])
}

// execOther runs the function of a call that sleeps, and sees to it that it is
// woken. From then on the call may be another's.
func (s *Store) execOther(c *call) {
	returned := false
	defer func() {
		if !returned {
			c.outcome, c.panicked = outcome{err: errUnfinished}, recover()
		}
		wake := c.wake
		if s.log != nil && c.seq > s.log.Durable() && !c.busy {
			s.waiters = append(s.waiters, wal.Waiter{Sequence: c.seq, C: wake})
			c.done.Store(true)
			return
		}
		c.done.Store(true)
		nudge(wake)
	}()
	s.exec(c, false)
	returned = true
}

// leave ends a round in which the first calls of the backlog were run. It wakes
// the caller of the next one, if there is any, to go on.
func (s *Store) leave(ran int) (more bool) {
	if len(s.waiters) > 0 {
		s.log.Notify(s.waiters)
		clear(s.waiters)
		s.waiters = s.waiters[:0]
	}
	for ran < len(s.backlog) && s.backlog[ran].gone {
		ran++
	}
	rest := copy(s.backlog, s.backlog[ran:])
	clear(s.backlog[rest:])
	s.backlog = s.backlog[:rest]
	if rest > 0 {
		nudge(s.backlog[0].wake)
	}
	return rest > 0
}

// nudge wakes a caller, unless it is about to be woken anyway.
func nudge(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
