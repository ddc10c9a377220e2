package jobs

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// claimBatcher serves the claims of one manager in batches. Claims that arrive while a transaction runs wait, and the
// next transaction serves all of them. So the workers of one manager never compete for the same jobs, which would be
// slow on stores with optimistic transactions, and one sync of a log serves many claims. A claim that finds the batcher
// idle starts immediately. Only one batch runs at a time: with more, each would be smaller, and the store would make no
// more claims durable per second.
type claimBatcher struct {
	batch.Batcher[claimOp]
	q     *Queue
	looks atomic.Int64 // claims so far, for tests
	// For gather: how many claims the last batch had and left waiting, and how long it took.
	expected int
	took     time.Duration
}

// claimOp is one claim. All but req belongs to the batch while it runs.
type claimOp struct {
	req  ClaimRequest
	jobs []Job
	size int // of jobs in the answer
	// again: the batch's answer was full before this claim got any job.
	again bool
}

// claimTimeout bounds one claiming transaction.
const claimTimeout = 30 * time.Second

// init lets a batch have claims for at most MaxLimit jobs in all, and at least one claim.
func (b *claimBatcher) init(q *Queue) {
	b.q = q
	b.Life, b.Closed, b.Size, b.Gather, b.Run = q.life, ErrClosed, MaxLimit, b.gather, b.serve
}

// do runs one claim. When ctx ends it returns immediately, and any jobs that the claim still gets are put back.
func (b *claimBatcher) do(ctx context.Context, req ClaimRequest) ([]Job, error) {
	b.looks.Add(1)
	c := &batch.Call[claimOp]{Arg: claimOp{req: req}, Size: req.Limit}
	if err := b.Do(ctx, c); err != nil {
		return nil, err
	}
	return c.Arg.jobs, nil
}

// gather returns when no more claims arrive. The callers of the last batch tend to come back together. Without this the
// first of them would get a transaction of its own, and the others would wait for it. Where a transaction takes long, it
// waits until as many claims are there as the last batch had and left waiting, for an eighth of the time that batch took.
// That may have met a store that hangs, so the wait is bounded.
func (b *claimBatcher) gather() {
	began, most := time.Now(), min(b.took/8, gatherMost)
	for before := -1; ; {
		n := b.Waiting()
		switch {
		case n < b.expected && time.Since(began) < most && most > gatherNap:
			time.Sleep(gatherNap)
		case n == before:
			if n == 0 { // the claims that come later have not waited
				b.expected, b.took = 0, 0
			}
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

// serve runs a batch, and puts back the jobs of callers that have returned.
func (b *claimBatcher) serve(_ context.Context, calls []*batch.Call[claimOp]) error {
	began := time.Now()
	err := b.run(batch.Args(calls))
	b.took, b.expected = time.Since(began), len(calls)+b.Waiting()
	if err != nil {
		return err
	}
	b.account(calls)
	var orphans []Job
	for _, c := range calls {
		if c.Arg.again {
			c.PutBack()
		} else if !c.Finish(nil) {
			orphans = append(orphans, c.Arg.jobs...)
		}
	}
	if len(orphans) > 0 {
		_ = b.q.PutBack(orphans)
	}
	return nil
}

// account counts the jobs that a batch claimed.
func (b *claimBatcher) account(calls []*batch.Call[claimOp]) {
	var until time.Time
	claimed := 0
	for _, c := range calls {
		for i := range c.Arg.jobs {
			until = earliest(until, c.Arg.jobs[i].StartedAt.Add(c.Arg.jobs[i].Lease.ExpiresIn))
			b.q.rates.add(c.Arg.jobs[i].Function, rateClaimed)
		}
		claimed += len(c.Arg.jobs)
	}
	if claimed > 0 {
		b.q.stats.claimed.Add(int64(claimed))
		b.q.due.note(until)
	}
}

// run serves a batch in one transaction. Duties that are due come first.
func (b *claimBatcher) run(ops []*claimOp) error {
	ctx, cancel := context.WithTimeout(b.q.base, claimTimeout)
	defer cancel()
	var tokens []string
	how := claimHow{guess: true, turn: b.q.opt.Random()}
	for {
		err := b.q.store.Update(ctx, func(tx store.Tx) error {
			used := 0
			return b.q.claimTx(tx, ops, how, func() string {
				if used == len(tokens) {
					tokens = append(tokens, newToken())
				}
				used++
				return tokens[used-1]
			})
		})
		if errors.Is(err, errSettingsChanged) {
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

// PutBack undoes claims whose answers cannot be delivered: the jobs are queued as if they had not been claimed. Jobs
// that changed since stay as they are. After an error of the store, the jobs come back when their leases run out.
func (q *Queue) PutBack(claimed []Job) error {
	ctx, cancel := context.WithTimeout(q.base, claimTimeout)
	defer cancel()
	var ended []*record
	err := q.store.Update(ctx, func(tx store.Tx) error {
		ended = nil
		for _, j := range claimed {
			r, err := load(tx, j.ID)
			if err != nil && !q.opt.Unreadable.Met(err) {
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
			if err := r.save(tx); q.cannotWait(err) {
				continue
			} else if err != nil {
				return err
			}
			if err := r.holdLock(tx, r.FreedAt); err != nil {
				return err
			}
			notifyQueued(tx, r.Function)
		}
		return nil
	})
	if err == nil {
		q.account(ended...)
	}
	return err
}
