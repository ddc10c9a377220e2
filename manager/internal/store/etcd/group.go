package etcd

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/oncegate/oncegate/manager/internal/batch"
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

	// Results, once do has returned nil.

	ok        bool // the comparisons held
	revision  int64
	responses []*pb.ResponseOp
}

// batcher puts the calls that come while others are under way into one request.
type batcher struct {
	batch.Batcher[*call]
	send func(context.Context, []*call) error // one request, which sets the results
}

// begin must be called before the first call. within bounds a request, limit the sum of the sizes of its calls.
func (b *batcher) begin(life *batch.Life, within time.Duration, limit int, send func(context.Context, []*call) error) {
	b.send = send
	b.Life, b.Within, b.Size, b.Run = life, within, limit, b.fly
	b.Lanes, b.Overdue, b.Count, b.Fits = maxFlights, overdue, maxGrouped, joins
}

// do returns when the call is answered or ctx ends. In the second case the call may happen, unless it still waited, and
// its result must not be read.
func (b *batcher) do(ctx context.Context, c *call) error {
	return b.Do(ctx, &batch.Call[*call]{Arg: c, Size: c.size})
}

func (b *batcher) fly(ctx context.Context, grouped []*batch.Call[*call]) error {
	calls := make([]*call, len(grouped))
	for i, c := range grouped {
		calls[i] = c.Arg
	}
	return b.send(clientv3.WithRequireLeader(ctx), calls)
}

// joins begins a request. The function that it returns reports whether a call may share the request with those that it
// accepted before.
func joins() func(*batch.Call[*call]) bool {
	keys := make(map[string]bool)
	calls, limit := 0, maxGrouped
	return func(next *batch.Call[*call]) bool {
		c, beside := next.Arg, limit
		if c.beside > 0 {
			beside = min(limit, c.beside)
		}
		if calls > 0 && (calls >= beside || meets(keys, c.keys)) {
			return false
		}
		calls, limit = calls+1, beside
		for k, changes := range c.keys {
			keys[k] = keys[k] || changes
		}
		return true
	}
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
