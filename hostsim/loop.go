package hostsim

import (
	"sync"
	"sync/atomic"
	"time"
)

// loop is a thread's event loop: one goroutine that handles events in order of arrival. Posting never blocks, because
// events are posted from other loops, from sinks and from clusters, and loops that wait for each other would deadlock.
// The mailbox is bounded by what may post: streams (their number and each one's backlog have limits), callouts in
// progress, timers and queued items.
type loop struct {
	handle func(*event)
	idle   *idleness

	mu      sync.Mutex
	queue   []event
	wake    sync.Cond
	stopped atomic.Bool // written under mu
	done    chan struct{}
}

type eventKind uint8

const (
	evFunc eventKind = iota
	evQueueReady
	evIdle
	evRequestHeaders
	evRequestData
	evRequestTrailers
	evResponseHeaders
	evResponseData
	evResponseTrailers
	evUpstreamSelected
	evUpstreamFailed
	evBeganAnew
	evClientReset
	evOverrun
)

// event is one entry of a mailbox. It is a struct rather than a closure, because a stream's events are frequent and
// must not allocate.
type event struct {
	kind    eventKind
	eos     bool
	failure UpstreamFailure
	queue   uint32
	context uint32
	stream  *Stream
	headers Headers
	data    []byte
	text    string
	f       func()
}

func newLoop(idle *idleness, handle func(*event)) *loop {
	l := &loop{handle: handle, idle: idle, done: make(chan struct{})}
	l.wake.L = &l.mu
	return l
}

// post appends events without another one in between. After stop it does nothing.
func (l *loop) post(events ...event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped.Load() {
		return
	}
	l.idle.posted.Add(uint64(len(events)))
	l.idle.add(len(events))
	if l.queue = append(l.queue, events...); len(l.queue) == len(events) {
		l.wake.Signal()
	}
}

// run is the loop's goroutine. After stop it drops the rest of the mailbox.
func (l *loop) run() {
	defer close(l.done)
	var batch []event
	for {
		l.mu.Lock()
		for len(l.queue) == 0 && !l.stopped.Load() {
			l.wake.Wait()
		}
		if l.stopped.Load() {
			l.idle.add(-len(l.queue))
			l.queue = nil
			l.mu.Unlock()
			return
		}
		batch, l.queue = l.queue, batch[:0]
		l.mu.Unlock()
		for i := range batch {
			l.handle(&batch[i])
			batch[i] = event{}
			l.idle.add(-1)
			if l.stopped.Load() {
				l.idle.add(-(len(batch) - i - 1))
				break
			}
		}
		if cap(batch) > 4096 {
			batch = nil
		}
	}
}

// stop ends run after the present event. It may be called on the loop itself.
func (l *loop) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped.Store(true)
	l.wake.Signal()
}

// call runs f on the loop and waits for it. It returns false when the loop stopped first.
func (l *loop) call(f func()) bool {
	ran := make(chan struct{})
	l.post(event{kind: evFunc, f: func() { f(); close(ran) }})
	select {
	case <-ran:
		return true
	case <-l.done:
		select {
		case <-ran:
			return true
		default:
			return false
		}
	}
}

// idleness counts the events that are posted but not yet handled, over all loops of a host.
type idleness struct {
	posted  atomic.Uint64 // ever
	pending atomic.Int64
	waiting atomic.Bool
	mu      sync.Mutex
	waiters []chan struct{}
}

func (i *idleness) add(n int) {
	if i.pending.Add(int64(n)) == 0 && i.waiting.Load() {
		i.release()
	}
}

// release wakes the waiters if nothing is pending now. It checks again because a waiter may be newer than the moment
// that its caller saw.
func (i *idleness) release() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.pending.Load() != 0 {
		return
	}
	for _, w := range i.waiters {
		close(w)
	}
	i.waiters = nil
	i.waiting.Store(false)
}

// wait returns a channel that is closed once nothing was pending at some moment after the call.
func (i *idleness) wait() <-chan struct{} {
	ch := make(chan struct{})
	i.mu.Lock()
	i.waiters = append(i.waiters, ch)
	i.waiting.Store(true)
	i.mu.Unlock()
	i.release()
	return ch
}

// timer is a re-armable timer on a clock that posts an event to a loop.
type timer struct {
	clock Clock
	loop  *loop
	stop  func() bool
}

func (t *timer) arm(d time.Duration, e event) {
	t.disarm()
	t.stop = t.clock.AfterFunc(d, func() { t.loop.post(e) })
}

func (t *timer) disarm() {
	if t.stop != nil {
		t.stop()
		t.stop = nil
	}
}
