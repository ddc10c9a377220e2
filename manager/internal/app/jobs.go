package app

import (
	"context"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/server"
)

// lostJobs bounds the log lines about lost leases: when a machine with many workers goes, all of its jobs lose theirs.
type lostJobs struct {
	mu      sync.Mutex
	until   time.Time // of the present window
	lines   int       // in it
	dropped int       // since the last line
}

// A window of lostJobs has at most lostLines lines.
const (
	lostWindow = 10 * time.Second
	lostLines  = 100
)

// take reports whether there is a line for one more job, and how many before it had none.
func (l *lostJobs) take(now time.Time) (ok bool, dropped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.After(l.until) {
		l.until, l.lines = now.Add(lostWindow), 0
	}
	if l.lines >= lostLines {
		l.dropped++
		return false, 0
	}
	l.lines++
	dropped, l.dropped = l.dropped, 0
	return true, dropped
}

// jobLost logs which job lost which worker.
func (a *app) jobLost(j jobs.Job, worker string) {
	ok, dropped := a.lost.take(time.Now())
	if !ok {
		return
	}
	fields := []any{"job", j.ID, "function", j.Function, "worker", worker, "attempt", j.Attempt, "state", j.State.String()}
	if dropped > 0 {
		fields = append(fields, "not_logged_before", dropped)
	}
	a.log.Warn("a job lost its worker", fields...)
}

// jobDied logs each job that became a dead letter, without its error: that is the worker's text, which may hold what the
// store keeps encrypted.
func (a *app) jobDied(j jobs.Job) {
	a.log.Warn("a job became a dead letter", "job", j.ID, "function", j.Function, "attempts", j.Attempt)
}

func (a *app) jobsDepth(ctx context.Context) (d server.JobsDepth, err error) {
	if d.Depth, err = a.queue.Depth(ctx); err != nil {
		return d, err
	}
	if d.Usage, err = a.queue.Usage(ctx); err != nil {
		return d, err
	}
	d.Functions, err = a.queue.Series(ctx)
	return d, err
}
