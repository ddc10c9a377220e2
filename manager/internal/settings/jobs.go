package settings

import "github.com/oncegate/oncegate/manager/internal/jobs"

// maxJobBody is room for the largest job request: a payload or result of the
// largest size and everything else that a call may carry, or a batch.
const maxJobBody = max(jobs.MaxPayloadBytes+512<<10, jobs.MaxBatchBytes)

// maxLogBody is room for the largest append to a log.
const maxLogBody = 2 << 20

// jobsTable are the settings of the job queue.
func (s *Settings) jobsTable() []setting {
	const seconds = "a number of seconds"
	return []setting{
		duration("job-lease-seconds", "", seconds+" that a claim leases its jobs for when it names none", 0.1, 86400, "60", &s.Jobs.Lease),
		number("job-max-attempts", "", "deliveries of a job that names no number", 1, jobs.MaxAttempts, "25", &s.Jobs.MaxAttempts),
		duration("job-backoff-seconds", "", seconds+" before the first retry that names no delay; each further one doubles it", 0.001, MaxSeconds, "1", &s.Jobs.BackoffBase),
		duration("job-backoff-max-seconds", "", seconds+" that such a delay grows to at most", 0.001, MaxSeconds, "3600", &s.Jobs.BackoffMax),
		duration("job-retain-seconds", "", seconds+" that a finished job is kept", 1, MaxSeconds, "86400", &s.Jobs.RetainFor),
		number("job-retain-count", "", "finished jobs that are kept", 1, 100_000_000, "100000", &s.Jobs.RetainCount),
		duration("job-dead-retain-seconds", "", seconds+" that a dead letter is kept", 1, MaxSeconds, "2592000", &s.Jobs.DeadFor),
		number("job-dead-retain-count", "", "dead letters of each function that are kept", 1, 100_000_000, "100000", &s.Jobs.DeadCount),
		room("job-max-bytes", "ONCEGATE_JOB_MAX_BYTES", "bytes of all jobs, finished ones and dead letters included, beyond which new jobs are refused; on disk with the engines wal and sqlite, in memory with the engine memory", jobs.MinMaxBytes, jobs.MaxMaxBytes, &s.Jobs.MaxBytes),
		fraction("job-submitter-share", "ONCEGATE_JOB_SUBMITTER_SHARE", "largest part of --job-max-bytes for the waiting and running jobs of one caller with the word submitter; 0 for no limit", "0.5", &s.Jobs.OwnerShare),
		number("job-max-waiters", "", "claims and waits for results held at once", 1, 1_000_000, "10000", &s.Jobs.MaxWaiters),
	}
}
