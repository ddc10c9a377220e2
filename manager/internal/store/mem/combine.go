package mem

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// call is a running Update.
//
// A caller that finds the lock taken does not queue for it. It leaves its call in Store.calls, and the caller that has
// the lock runs the calls it finds there before it releases the lock. So a transaction finds the processor's caches
// warm from the previous one, and a waiting caller sleeps only once, until its record is durable.
//
//	                  lock free
//	Update ──────────────────────────────▶ run ──▶ unlock ──▶ run the calls of others
//	   └── taken ──▶ Store.calls ──▶ sleep                          │
//	                                   ▲                            │
//	                                   └──── done: durable, failed ─┘
type call struct {
	fn  func(store.Tx) error
	ctx context.Context

	// The result; guarded by Store.mu until done.
	outcome
	panicked  any
	abandoned bool // the caller stopped waiting: the function must not run

	// done says that the function has returned, and that the fields above may be read without the lock.
	done atomic.Bool
	// wake makes the caller check done. It may receive spurious values.
	wake chan struct{}
	next *call // in Store.calls
}

// outcome is the result of running a function.
type outcome struct {
	seq    uint64 // record that must be durable before the answer; if busy, the size that did not fit
	notify topics
	err    error
	busy   bool // the log was busy: the function must run again
	lead   bool // the caller has to commit (see wal.Log.AppendLead)
}

// maxCombined is how many calls of others one caller runs. Then it hands the rest to another caller, because its own
// call has to be answered too.
const maxCombined = 128

// errUnfinished is the error of a call whose function did not return.
var errUnfinished = errors.New("mem: the function of an Update ended its goroutine")

// newCall reuses a finished call. Only the log may still refer to it, and may still send to its wake channel.
func (s *Store) newCall(ctx context.Context, fn func(store.Tx) error) *call {
	c, ok := s.freeCalls.Get().(*call)
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

// recycle keeps a finished call for newCall.
func (s *Store) recycle(c *call) {
	c.fn, c.ctx, c.outcome = nil, nil, outcome{}
	c.done.Store(false)
	s.freeCalls.Put(c)
}

// runCall runs the function of a call, here or on the goroutine of another caller, and returns when the function has
// returned. If another goroutine ran it, that is in most cases after its record is durable. It panics if the function
// does.
func (s *Store) runCall(c *call) {
	if s.mu.TryLock() {
		// Deferred because a function may panic or end the goroutine.
		defer s.commitIfLeader(c)
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
	// The lock may have been released since, and its holder may not have seen this call.
	if s.mu.TryLock() {
		s.unlock()
	}
	for !c.done.Load() && !c.abandoned {
		s.sleep(c)
	}
	if c.panicked != nil {
		panic(c.panicked)
	}
}

// commitIfLeader commits the record if the log left that to the caller. By then other callers can have the lock.
func (s *Store) commitIfLeader(c *call) {
	if c.lead {
		s.log.Lead()
	}
}

// sleep waits for a call to be woken. A caller that is woken without a result takes over the remaining calls. So does a
// caller that stops waiting, because it may have been chosen for that already.
func (s *Store) sleep(c *call) {
	stopped := false
	if end := c.ctx.Done(); end == nil {
		<-c.wake
	} else {
		select {
		case <-c.wake:
		case <-end:
			stopped = true
		}
	}
	if c.done.Load() {
		return
	}
	s.mu.Lock()
	if stopped && !c.done.Load() {
		c.abandoned, c.outcome = true, outcome{err: c.ctx.Err()}
	}
	s.unlock()
}

// unlock runs up to maxCombined calls that were left to the holder of the lock, and releases the lock. It is the only
// way to release it.
func (s *Store) unlock() {
	for left := maxCombined; ; {
		ran, more := s.combine(left)
		left -= ran
		if !s.releaseLock(more) {
			return
		}
	}
}

// releaseLock releases the lock. It takes the lock again if a call is waiting that nobody else knows of: its caller
// left it while the lock was taken, and relies on the holder. more says that another caller has been woken to run the
// rest.
func (s *Store) releaseLock(more bool) (again bool) {
	s.mu.Unlock()
	return !more && s.calls.Load() != nil && s.mu.TryLock()
}

// combine runs up to limit calls in the order in which they came. more says that it left some, and has woken another
// caller for them.
func (s *Store) combine(limit int) (ran int, more bool) {
	if len(s.backlog) == 0 && s.calls.Load() == nil {
		return 0, false
	}
	s.collect()
	complete := false
	defer func() {
		more = s.endRound(ran)
		if !complete && s.releaseLock(more) { // a function ended this goroutine, so unlock does not continue
			s.unlock()
		}
	}()
	for _, c := range s.backlog[:min(len(s.backlog), limit)] {
		ran++
		if !c.abandoned {
			s.execOther(c)
		}
	}
	complete = true
	return ran, more
}

// collect moves the waiting calls, which are linked newest first, to the end of the backlog.
func (s *Store) collect() {
	first := len(s.backlog)
	for c := s.calls.Swap(nil); c != nil; {
		s.backlog = append(s.backlog, c)
		c, c.next = c.next, nil
	}
	slices.Reverse(s.backlog[first:])
}

// execOther runs the function of a sleeping call and makes sure that its caller is woken. After that the call may be
// reused.
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
		wakeCaller(wake)
	}()
	s.exec(c, false)
	returned = true
}

// endRound removes the first ran calls, which were run, from the backlog. If any are left, it wakes the caller of the
// next one to continue.
func (s *Store) endRound(ran int) (more bool) {
	if len(s.waiters) > 0 {
		s.log.Notify(s.waiters)
		clear(s.waiters)
		s.waiters = s.waiters[:0]
	}
	for ran < len(s.backlog) && s.backlog[ran].abandoned {
		ran++
	}
	rest := copy(s.backlog, s.backlog[ran:])
	clear(s.backlog[rest:])
	s.backlog = s.backlog[:rest]
	if rest > 0 {
		wakeCaller(s.backlog[0].wake)
	}
	return rest > 0
}

// wakeCaller wakes a caller, unless a wake-up is pending already.
func wakeCaller(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
