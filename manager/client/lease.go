package client

import (
	"context"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// leaseKeeper sends heartbeats for one job until it is stopped. Its goroutine starts with the first beat, so short jobs
// need none.
type leaseKeeper struct {
	cancel context.CancelFunc
	timer  *time.Timer
	beats  sync.WaitGroup
}

// keepLease sends a heartbeat every third of the lease, and more often after a failure. It ends the job's context when
// the job is cancelled or the lease is lost. The lease also counts as lost when no heartbeat was answered for its whole
// duration.
func (w *Worker) keepLease(ctx context.Context, end context.CancelCauseFunc, j *Job) *leaseKeeper {
	k := &leaseKeeper{}
	// A cancel or a stop may end the job's own context long before its handler returns and is reported.
	ctx, k.cancel = context.WithCancel(context.WithoutCancel(ctx))
	// The lease began before the answer to the claim arrived.
	claimed := time.Now()
	k.beats.Add(1)
	k.timer = time.AfterFunc(w.beat, func() {
		defer k.beats.Done()
		w.beats(ctx, end, j, claimed)
	})
	return k
}

func (w *Worker) beats(ctx context.Context, end context.CancelCauseFunc, j *Job, held time.Time) {
	for {
		sent := time.Now()
		bound := w.opts.Lease / 3
		// A heartbeat without an answer must not outlast the lease. If the lease is already over, because this machine
		// stood still, one more heartbeat may find that it was not revoked.
		if left := w.opts.Lease - sent.Sub(held); left > 0 {
			bound = min(bound, left)
		}
		callCtx, cancel := context.WithDeadline(ctx, sent.Add(bound))
		b, err := w.client.Heartbeat(callCtx, j.ID, j.Lease.Token, w.opts.Lease)
		cancel()
		next := w.beat
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			held = sent
			if b.Cancelled {
				end(ErrCancelled)
			}
		case HasCode(err, api.CodeFenced), HasCode(err, api.CodeNotFound), time.Since(held) >= w.opts.Lease:
			end(ErrLeaseLost)
			return
		default:
			next = max(w.beat/8, time.Millisecond)
			w.opts.Logger.Warn("heartbeat failed, trying again", "job", j.ID, "error", err.Error())
		}
		if pause(ctx, next) != nil {
			return
		}
	}
}

// stop ends the heartbeats and waits for the one in progress.
func (k *leaseKeeper) stop() {
	k.cancel()
	if !k.timer.Stop() {
		k.beats.Wait()
	}
}
