package main

import (
	"context"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/server"
)

// maxJobBody is room for the largest job request: a payload or result of the
// largest size and everything else that a call may carry.
const maxJobBody = jobs.MaxPayloadBytes + 512<<10

// jobsTable are the settings of the job queue.
func (s *settings) jobsTable() []setting {
	const seconds = "a number of seconds"
	return []setting{
		duration("job-lease-seconds", "", seconds+" that a claim leases its jobs for when it names none", 0.1, 86400, "60", &s.jobs.Lease),
		number("job-max-attempts", "", "deliveries of a job that names no number", 1, jobs.MaxAttempts, "25", &s.jobs.MaxAttempts),
		duration("job-backoff-seconds", "", seconds+" before the first retry that names no delay; each further one doubles it", 0.001, maxSeconds, "1", &s.jobs.BackoffBase),
		duration("job-backoff-max-seconds", "", seconds+" that such a delay grows to at most", 0.001, maxSeconds, "3600", &s.jobs.BackoffMax),
		duration("job-retain-seconds", "", seconds+" that a finished job is kept", 1, maxSeconds, "86400", &s.jobs.RetainFor),
		number("job-retain-count", "", "finished jobs that are kept", 1, 100_000_000, "100000", &s.jobs.RetainCount),
		duration("job-dead-retain-seconds", "", seconds+" that a dead letter is kept", 1, maxSeconds, "2592000", &s.jobs.DeadFor),
		number("job-dead-retain-count", "", "dead letters of each function that are kept", 1, 100_000_000, "100000", &s.jobs.DeadCount),
		duration("job-event-key-seconds", "", seconds+" that the key of an event is remembered", 1, maxSeconds, "86400", &s.jobs.EventKeyTTL),
		number("job-max-waiters", "", "claims and waits for results held at once", 1, 1_000_000, "10000", &s.jobs.MaxWaiters),
	}
}

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
	return server.NewJobsCollector(a.queue, func() (jobs.Depth, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return a.queue.Depth(ctx)
	})
}
