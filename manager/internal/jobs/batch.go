package jobs

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// claimBatcher serves the claims of one manager in batches. Claims that arrive while a transaction runs wait, and the
// next transaction serves all of them. So the workers of one manager never compete for the same jobs, which would be
// slow on stores with optimistic transactions, and one sync of a log serves many claims. A claim that finds the batcher
// idle starts immediately. Only one batch runs at a time: with more, each would be smaller, and the store would make no
// more claims durable per second.
type claimBatcher struct {
	q       *Queue
	mu      sync.Mutex
	pending []*claimOp
	running bool
	looks   atomic.Int64 // claims so far, for tests
}

// claimOp is one claim. jobs, again and err belong to the batch while it runs.
type claimOp struct {
	req  ClaimRequest
	jobs []Job
	size int // of jobs in the answer
	err  error
	// again: the batch's answer was full before this claim got any job.
	again bool
	done  chan struct{}
	// abandoned, under the batcher's lock: the caller has returned.
	abandoned bool
}

// claimTimeout bounds one claiming transaction.
const claimTimeout = 30 * time.Second

// do runs one claim. When ctx ends it returns immediately, and any jobs that the claim still gets are put back.
func (b *claimBatcher) do(ctx context.Context, req ClaimRequest) ([]Job, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.looks.Add(1)
	op := &claimOp{req: req, done: make(chan struct{})}
	b.mu.Lock()
	if !b.running {
		if !b.q.spawn(b.loop) {
			b.mu.Unlock()
			return nil, ErrClosed
		}
		b.running = true
	}
	b.pending = append(b.pending, op)
	b.mu.Unlock()
	select {
	case <-op.done:
		return op.jobs, op.err
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-op.done: // the claim was answered first
		return op.jobs, op.err
	default:
	}
	op.abandoned = true
	if i := slices.Index(b.pending, op); i >= 0 {
		b.pending = slices.Delete(b.pending, i, i+1)
	}
	return nil, ctx.Err()
}

// nextBatch removes the next batch: claims for at most MaxLimit jobs in all, and at least one claim.
func (b *claimBatcher) nextBatch() []*claimOp {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, sum := 0, 0
	for n < len(b.pending) && (n == 0 || sum+b.pending[n].req.Limit <= MaxLimit) {
		sum += b.pending[n].req.Limit
		n++
	}
	batch := slices.Clone(b.pending[:n])
	b.pending = slices.Delete(b.pending, 0, n)
	b.running = n > 0
	return batch
}

// gather returns when no more claims arrive. The callers of the last batch tend to come back together. Without this the
// first of them would get a transaction of its own, and the others would wait for it. Where a transaction takes long, it
// waits until as many claims are there as the last batch had and left waiting, for an eighth of the time that batch took.
// That may have met a store that hangs, so the wait is bounded.
func (b *claimBatcher) gather(expected int, took time.Duration) {
	began, most := time.Now(), min(took/8, gatherMost)
	for before := -1; ; {
		b.mu.Lock()
		n := len(b.pending)
		b.mu.Unlock()
		switch {
		case n < expected && time.Since(began) < most && most > gatherNap:
			time.Sleep(gatherNap)
		case n == before:
			return
		default:
			runtime.Gosched()
		}
		before = n
	}
}

const (
	// gatherNap is how often gather looks. Shorter transactions are not worth a wait.
	gatherNap = 100 * time.Microsecond
	// gatherMost bounds a wait.
	gatherMost = 5 * time.Millisecond
)

func (b *claimBatcher) loop() {
	var expected int
	var took time.Duration
	for {
		b.gather(expected, took)
		batch := b.nextBatch()
		if len(batch) == 0 {
			return
		}
		began := time.Now()
		err := b.run(batch)
		took = time.Since(began)
		if b.q.base.Err() != nil && err != nil {
			err = ErrClosed
		}
		expected = len(batch) + b.deliver(batch, err)
	}
}

// run serves a batch in one transaction. Duties that are due come first.
func (b *claimBatcher) run(batch []*claimOp) error {
	ctx, cancel := context.WithTimeout(b.q.base, claimTimeout)
	defer cancel()
	var tokens []string
	how := claimHow{guess: true, turn: b.q.opt.Random()}
	for {
		err := b.q.store.Update(ctx, func(tx store.Tx) error {
			used := 0
			return b.q.claimTx(tx, batch, how, func() string {
				if used == len(tokens) {
					tokens = append(tokens, newToken())
				}
				used++
				return tokens[used-1]
			})
		})
		if errors.Is(err, errPausedChanged) {
			how.guess = false
			continue
		}
		if !errors.Is(err, errDutiesFirst) {
			return err
		}
		how.skipDuties = true
		// One batch of due jobs. If there are many more, the claim does not wait for all of them: the next claims
		// continue.
		if _, _, err := b.q.fallDueBatch(ctx); err != nil {
			return err
		}
	}
}

// deliver passes out the answers and puts back the jobs of callers that have returned. It returns how many claims came
// meanwhile.
func (b *claimBatcher) deliver(batch []*claimOp, err error) (waiting int) {
	var until time.Time
	claimed := 0
	for _, op := range batch {
		if err != nil {
			op.jobs, op.err = nil, err
		}
		for i := range op.jobs {
			until = earliest(until, op.jobs[i].StartedAt.Add(op.jobs[i].Lease.Duration))
			b.q.rates.add(op.jobs[i].Function, rateClaimed)
		}
		claimed += len(op.jobs)
	}
	if claimed > 0 {
		b.q.stats.claimed.Add(int64(claimed))
		b.q.due.note(until)
	}
	var orphans []Job
	var again []*claimOp
	b.mu.Lock()
	for _, op := range batch {
		switch {
		case op.abandoned:
			orphans = append(orphans, op.jobs...)
		case op.again && err == nil:
			again = append(again, op)
		default:
			close(op.done)
		}
	}
	waiting = len(b.pending)
	b.pending = append(again, b.pending...)
	b.mu.Unlock()
	if len(orphans) > 0 {
		_ = b.putBack(orphans)
	}
	return waiting
}

// PutBack undoes claims whose answers cannot be delivered: the jobs are queued as if they had not been claimed. Jobs
// that changed since stay as they are. After an error of the store, the jobs come back when their leases run out.
func (q *Queue) PutBack(claimed []Job) error { return q.claims.putBack(claimed) }

// putBack undoes claims whose callers returned before they got the answer. If it fails, the jobs come back when their
// leases run out.
func (b *claimBatcher) putBack(orphans []Job) error {
	ctx, cancel := context.WithTimeout(b.q.base, claimTimeout)
	defer cancel()
	var ended []*record
	err := b.q.store.Update(ctx, func(tx store.Tx) error {
		ended = nil
		for _, j := range orphans {
			r, err := load(tx, j.ID)
			if err != nil && !b.q.opt.Unreadable.Met(err) {
				return err
			}
			if r == nil || r.State != Active || r.Lease.Token != j.Lease.Token {
				continue
			}
			if r.CancelRequested {
				if err := r.terminate(tx, Cancelled, now(tx)); err != nil {
					return err
				}
				ended = append(ended, r)
				continue
			}
			r.State, r.Lease, r.FreedAt = Queued, nil, now(tx)
			r.Attempt--
			if err := r.holdLock(tx, r.FreedAt); err != nil {
				return err
			}
			notifyQueued(tx, r.Function)
			if err := r.save(tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		b.q.account(ended...)
	}
	return err
}
