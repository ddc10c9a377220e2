package app

import (
	"context"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/server"
)

// jobDuties logs what went wrong in the background, and what workers should
// know: jobs that lost their workers for good.
func (a *app) jobDuties(did jobs.DutyReport, err error) {
	if err != nil {
		a.log.Warn("duties of the job queue failed, the next round tries again", "error", err.Error())
	}
	if did.Reclaimed > 0 || did.Dead > 0 {
		a.log.Warn("jobs lost their workers", "queued_again", did.Reclaimed, "dead", did.Dead)
	}
}

func (a *app) jobsCollector() *server.JobsCollector {
	return server.NewJobsCollector(a.queue, func() (d server.JobsDepth, err error) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if d.Depth, err = a.queue.Depth(ctx); err != nil {
			return d, err
		}
		if d.Usage, err = a.queue.Usage(ctx); err != nil {
			return d, err
		}
		d.Functions, err = a.queue.Series(ctx)
		return d, err
	})
}
