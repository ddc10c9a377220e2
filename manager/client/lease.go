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
// the manager says that the job is cancelled or the lease lost. Only the manager knows: while it cannot be reached, its
// time may stand still for leases, so heartbeats without an answer end nothing.
func (w *Worker) keepLease(ctx context.Context, end context.CancelCauseFunc, j *Job) *leaseKeeper {
	k := &leaseKeeper{}
	// A cancel or a stop may end the job's own context long before its handler returns and is reported.
	ctx, k.cancel = context.WithCancel(context.WithoutCancel(ctx))
	k.beats.Add(1)
	k.timer = time.AfterFunc(w.beat, func() {
		defer k.beats.Done()
		w.beats(ctx, end, j)
	})
	return k
}

func (w *Worker) beats(ctx context.Context, end context.CancelCauseFunc, j *Job) {
	last := ""
	for {
		sent := time.Now()
		callCtx, cancel := context.WithTimeout(ctx, w.opts.Lease/3)
		b, err := w.client.Heartbeat(callCtx, j.ID, j.Lease.Token, w.opts.Lease)
		cancel()
		next := w.beat
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			w.met(sent, nil, &last, "")
			if b.Cancelled {
				end(ErrCancelled)
			}
		case HasCode(err, api.CodeFenced):
			end(ErrLeaseLost)
			return
		default:
			next = max(w.beat/8, time.Millisecond)
			w.met(sent, err, &last, "heartbeat failed, trying again", "job", j.ID)
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
