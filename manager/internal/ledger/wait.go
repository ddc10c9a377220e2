package ledger

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// HoldFunc is called when a reserve begins to wait. It returns a context that ends the wait, for example because the
// client left, and a function that is called when the wait is over.
type HoldFunc func() (ctx context.Context, stop func())

// waits are the calls that wait in this manager.
type waits struct {
	max   int64
	total atomic.Int64
	drain chan struct{} // closed when no caller may wait any more

	mu     sync.Mutex
	queues map[string]*queue
}

// queue holds the waiters of one key in order of arrival. Only the first one, the head, watches the store. When the
// head leaves, for any reason, the next waiter becomes the head and checks immediately. So a recorded outcome reaches
// the whole queue, and a wake-up that the old head consumed is not lost.
type queue struct {
	watcher store.Watcher
	waiters []*waiter
}

// waiter is one waiting call.
type waiter struct {
	// promoted receives a value when the waiter has become the head.
	promoted chan struct{}
	head     bool // guarded by waits.mu
}

// queued reports whether any call waits for the key.
func (ws *waits) queued(key string) bool {
	if ws.total.Load() == 0 {
		return false
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.queues[key] != nil
}

// join appends a waiter, or returns nil if there are too many already. The waiters of a key never use more places than
// are free. So however many waiters some keys have, another key finds a place.
func (ws *waits) join(st store.Store, key string) (*queue, *waiter) {
	w := &waiter{promoted: make(chan struct{}, 1)}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	q, free := ws.queues[key], ws.max-ws.total.Load()
	if free <= 0 || q != nil && int64(len(q.waiters)) >= free {
		return nil, nil
	}
	ws.total.Add(1)
	if q == nil {
		q = &queue{watcher: st.Watch(key)}
		ws.queues[key] = q
		w.head = true
	}
	q.waiters = append(q.waiters, w)
	return q, w
}

// leave removes a waiter. If it was the head, the next waiter becomes the head.
func (ws *waits) leave(key string, q *queue, w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.total.Add(-1)
	if i := slices.Index(q.waiters, w); i >= 0 {
		q.waiters = slices.Delete(q.waiters, i, i+1)
	}
	if len(q.waiters) == 0 {
		delete(ws.queues, key)
		q.watcher.Stop()
		return
	}
	if w.head {
		q.waiters[0].head = true
		q.waiters[0].promoted <- struct{}{} // never blocks: a waiter becomes head only once
	}
}

func (ws *waits) isHead(w *waiter) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return w.head
}

// Draining is closed by Drain.
func (l *Ledger) Draining() <-chan struct{} { return l.waits.drain }

// Drain ends all waits, present and future: waiting reserves are answered pending. Call it before shutting down.
func (l *Ledger) Drain() {
	l.waits.mu.Lock()
	defer l.waits.mu.Unlock()
	select {
	case <-l.waits.drain:
	default:
		close(l.waits.drain)
	}
}

// Waiting is how many calls wait for a key.
func (l *Ledger) Waiting(scope, key string) int {
	l.waits.mu.Lock()
	defer l.waits.mu.Unlock()
	if q := l.waits.queues[EntryKey(scope, key)]; q != nil {
		return len(q.waiters)
	}
	return 0
}

// Queued reports whether calls wait for the key. A reserve that may wait must then be made in its Place, so that it
// does not overtake them.
func (l *Ledger) Queued(scope, key string) bool { return l.waits.queued(EntryKey(scope, key)) }

// Place is the place of a reserve in the queue of its key.
type Place struct {
	l   *Ledger
	key string
	q   *queue
	w   *waiter // nil: it has none, because too many calls wait
}

// Join gives a reserve with a Wait the last place in the queue of its key. Leave must be called.
func (l *Ledger) Join(scope, key string) *Place { return l.join(EntryKey(scope, key)) }

func (l *Ledger) join(key string) *Place {
	q, w := l.waits.join(l.store, key)
	return &Place{l, key, q, w}
}

// Leave gives up the place, which may be nil. Only the first call counts.
func (p *Place) Leave() {
	if p != nil && p.w != nil {
		p.l.waits.leave(p.key, p.q, p.w)
		p.w = nil
	}
}

// Reserve makes the call. Callers in the queue may reserve first. A call that needs no reservation is answered immediately, above
// all one of the holder.
func (p *Place) Reserve(ctx context.Context, req *api.ReserveRequest, hold HoldFunc) (Reply, error) {
	reply, ok, err := p.l.lookup(ctx, p.key, req)
	if err != nil || ok && reply.State != api.StatePending {
		p.l.tellReserve(ctx, p.key, reply, err)
		return reply, err
	}
	return p.Await(ctx, req, hold)
}

// Await waits until a reserve that is pending has a better answer, but at most for its Wait.
func (p *Place) Await(ctx context.Context, req *api.ReserveRequest, hold HoldFunc) (Reply, error) {
	l, key := p.l, p.key
	if p.w == nil {
		l.counters.waitsRefused.Add(1)
		reply, err := l.reserve(ctx, key, req)
		l.tellReserve(ctx, key, reply, err)
		return reply, err
	}
	l.counters.held.Add(1)
	if o := l.opts.Observer; o != nil {
		o.Waits(key)
	}
	if hold != nil {
		// The call's own context may have a tighter bound than its wait.
		held, stop := hold()
		defer stop()
		ctx = &caller{held, CallerOf(ctx)}
	}
	over := time.NewTimer(min(req.Wait, l.opts.MaxWait))
	defer over.Stop()
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		reply, err, done := p.awaitNext(ctx, req, next, over.C)
		if done {
			l.tellReserve(ctx, key, reply, err)
			return reply, err
		}
	}
}

// awaitNext waits for a reason to check the key, and checks it.
func (p *Place) awaitNext(ctx context.Context, req *api.ReserveRequest, next *time.Timer, over <-chan time.Time) (Reply, error, bool) {
	l := p.l
	var changed <-chan struct{}
	var poll <-chan time.Time
	if l.waits.isHead(p.w) {
		changed, poll = p.q.watcher.C(), next.C
	}
	last := false
	select {
	case <-ctx.Done():
		l.counters.add(Event{Op: OpReserve, Outcome: OutcomeError})
		return Reply{}, ctx.Err(), true
	case <-over:
		l.counters.waitsTimedOut.Add(1)
		last = true
	case <-l.waits.drain:
		last = true
	case <-changed:
	case <-poll:
	case <-p.w.promoted:
	}
	ctx, cancel := l.opContext(ctx)
	defer cancel()
	reply, err := l.reserve(ctx, p.key, req)
	if err != nil || last || reply.State != api.StatePending {
		return reply, err, true
	}
	next.Reset(min(l.opts.PollInterval, reply.ExpiresIn+minTimer))
	return Reply{}, nil, false
}
