package etcd

import (
	"context"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// maxFlights is how many grouped requests are under way while all goes well.
	maxFlights = 2
	// overdue is how long a call waits at most for the requests under way, since they may be at a member that hangs.
	overdue = 20 * time.Millisecond
	// maxGrouped bounds the calls of a request, and groupedOps the operations of each beside its note: together at most
	// maxOps.
	maxGrouped = 48
	groupedOps = 64
	// groupedBytes is the size of the largest call that shares a request with so many.
	groupedBytes = 64 << 10
	// maxLarge bounds the calls of a request that has a larger one, of at most largeBytes. Such a call has transactions
	// inside, of at least leastWithin operations: what its comparisons and maxLarge leave of maxOps.
	maxLarge    = 8
	leastWithin = 8
	largeBytes  = 256 << 10
)

// call is a transaction's part of a request to etcd.
type call struct {
	cmps           []*pb.Compare
	ops, otherwise []*pb.RequestOp
	// keys are those that cmps and ops name, and whether ops change them. Comparisons come before all changes of a
	// request, so it has no two calls of which one changes what the other compares.
	keys map[string]bool
	size int // bytes of a write, operations of a read
	// beside bounds the calls of a request that has this one; 0: maxGrouped.
	beside int

	done chan struct{} // closed when the fields below are set

	err       error
	ok        bool // the comparisons held
	revision  int64
	responses []*pb.ResponseOp
}

// batcher puts the calls that come while others are under way into one request.
type batcher struct {
	life   context.Context
	within time.Duration                        // bounds a request
	limit  int                                  // of the sizes of the calls of a request
	send   func(context.Context, []*call) error // one request, which sets the results

	mu      sync.Mutex
	queue   []*call
	flights int
	timer   *time.Timer // runs while calls wait
	wg      sync.WaitGroup
}

// do returns when the call is answered or ctx ends. In the second case the call may happen, unless it still waited, and
// its result must not be read.
func (b *batcher) do(ctx context.Context, c *call) error {
	c.done = make(chan struct{})
	b.mu.Lock()
	b.queue = append(b.queue, c)
	b.depart(false)
	b.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.queue, c); i >= 0 {
		b.queue = slices.Delete(b.queue, i, i+1)
	}
	return ctx.Err()
}

// depart sends what waits, if not enough requests are under way or the first call waits for too long. mu is held.
func (b *batcher) depart(late bool) {
	for len(b.queue) > 0 && (b.flights < maxFlights || late) {
		late = false
		calls := b.take()
		b.flights++
		b.wg.Go(func() { b.fly(calls) })
	}
	if len(b.queue) > 0 && b.timer == nil {
		b.timer = time.AfterFunc(overdue, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.timer = nil
			b.depart(true)
		})
	}
}

// take removes from the queue what fits into a request. The first call always does.
func (b *batcher) take() []*call {
	var calls, rest []*call
	keys := make(map[string]bool)
	size, limit := 0, maxGrouped
	for _, c := range b.queue {
		beside := limit
		if c.beside > 0 {
			beside = min(limit, c.beside)
		}
		if len(calls) > 0 && (len(calls) >= beside || size+c.size > b.limit || meets(keys, c.keys)) {
			rest = append(rest, c)
			continue
		}
		calls, limit = append(calls, c), beside
		size += c.size
		for k, changes := range c.keys {
			keys[k] = keys[k] || changes
		}
	}
	b.queue = rest
	return calls
}

// meets reports whether one side changes a key that the other has.
func meets(a, b map[string]bool) bool {
	for k, changes := range b {
		if other, has := a[k]; has && (changes || other) {
			return true
		}
	}
	return false
}

func (b *batcher) fly(calls []*call) {
	ctx, cancel := context.WithTimeout(b.life, b.within)
	err := b.send(clientv3.WithRequireLeader(ctx), calls)
	cancel()
	for _, c := range calls {
		c.err = err
		close(c.done)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flights--
	b.depart(false)
}

// wait returns when no request is under way. It is called after life has ended, when no calls come.
func (b *batcher) wait() { b.wg.Wait() }

// write sends each call as a transaction inside one, so each succeeds or fails by itself. etcd evaluates the comparisons
// of all before it changes anything. It does not count what is inside against its quota, so the outermost transaction has
// a change as well, which never happens since that one compares nothing.
func (s *Store) write(ctx context.Context, calls []*call) error {
	if len(calls) == 1 {
		return s.writeOne(ctx, calls[0])
	}
	ops := make([]*pb.RequestOp, len(calls))
	for i, c := range calls {
		ops[i] = inside(c.cmps, c.ops, c.otherwise)
	}
	resp, err := s.txn(ctx, nil, ops, []*pb.RequestOp{put([]byte(s.clockKey()), nil)})
	if err != nil {
		return err
	}
	for i, c := range calls {
		inner := resp.Responses[i].GetResponseTxn()
		c.ok, c.revision, c.responses = inner.Succeeded, resp.Header.Revision, inner.Responses
	}
	return nil
}

func (s *Store) writeOne(ctx context.Context, c *call) error {
	resp, err := s.txn(ctx, c.cmps, c.ops, c.otherwise)
	if err == nil {
		c.ok, c.revision, c.responses = resp.Succeeded, resp.Header.Revision, resp.Responses
	}
	return err
}

// read sends all reads in one request. All see one state, except those that name a revision.
func (s *Store) read(ctx context.Context, calls []*call) error {
	var ops []*pb.RequestOp
	for _, c := range calls {
		ops = append(ops, c.ops...)
	}
	resp, err := s.txn(ctx, nil, ops, nil)
	if err != nil {
		return err
	}
	for _, c := range calls {
		n := len(c.ops)
		c.revision, c.responses = resp.Header.Revision, resp.Responses[:n:n]
		resp.Responses = resp.Responses[n:]
	}
	return nil
}
