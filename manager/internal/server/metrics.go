package server

import (
	"context"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/logs/storelogs"
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/scrape"
)

// NewLedgerCollector returns a collector of a ledger's Stats.
func NewLedgerCollector(l *ledger.Ledger) *scrape.Collector {
	return scrape.New(func(m scrape.Sample) error {
		s, err := l.Stats(m.Context)
		if err != nil {
			return err
		}
		s.Each(func(op, outcome string, n uint64) { scrape.Set(m, "oncegate_ledger_calls_total", n, op, outcome) })
		for state, n := range s.ByState() {
			scrape.Set(m, "oncegate_ledger_entries", *n, state.String())
		}
		if s.Bytes >= 0 {
			scrape.Set(m, "oncegate_ledger_bytes", s.Bytes)
			scrape.Set(m, "oncegate_ledger_max_bytes", s.MaxBytes)
		}
		scrape.Set(m, "oncegate_ledger_max_entries", s.MaxEntries)
		scrape.Set(m, "oncegate_ledger_answers_dropped_total", s.WithoutAnswer)
		scrape.Set(m, "oncegate_ledger_waiters", s.Waiters)
		s.EachFenced(func(op string, n uint64) { scrape.Set(m, "oncegate_ledger_fenced_total", n, op) })
		scrape.Set(m, "oncegate_ledger_lapsed_total", s.Lapsed)
		scrape.Set(m, "oncegate_ledger_removed_total", s.Expired, "expired")
		scrape.Set(m, "oncegate_ledger_removed_total", s.Deleted, "deleted")
		scrape.Set(m, "oncegate_ledger_waits_unanswered_total", s.WaitsRefused, "refused")
		scrape.Set(m, "oncegate_ledger_waits_unanswered_total", s.WaitsTimedOut, "timed_out")
		scrape.Set(m, "oncegate_ledger_sweep_errors_total", s.SweepErrors)
		scrape.Set(m, "oncegate_ledger_batches_total", s.Batches)
		scrape.Set(m, "oncegate_ledger_batch_items_total", s.BatchItems)
		return nil
	},
		scrape.Describe("oncegate_ledger_entries", "Entries by state.", "state"),
		scrape.Describe("oncegate_ledger_calls_total", "Ledger calls by operation and outcome.", "op", "outcome"),
		scrape.Describe("oncegate_ledger_bytes", "What the entries take of oncegate_ledger_max_bytes."),
		scrape.Describe("oncegate_ledger_max_entries", "Entries that the window holds."),
		scrape.Describe("oncegate_ledger_max_bytes", "Bytes that the window holds."),
		scrape.Describe("oncegate_ledger_answers_dropped_total", "Outcomes recorded without their answer, for want of room."),
		scrape.Describe("oncegate_ledger_waiters", "Reserves that wait now."),
		scrape.Describe("oncegate_ledger_fenced_total", "Calls refused because another attempt has the key, by operation.", "op"),
		scrape.Describe("oncegate_ledger_lapsed_total", "Reservations that ran out without an outcome and were stored as unknown."),
		scrape.Describe("oncegate_ledger_removed_total", "Entries removed, by reason.", "reason"),
		scrape.Describe("oncegate_ledger_waits_unanswered_total", "Reserves that waited without a result or could not wait, by reason.", "reason"),
		scrape.Describe("oncegate_ledger_sweep_errors_total", "Sweeps that the store cut short."),
		scrape.Describe("oncegate_ledger_batches_total", "Groups of calls that came together on a stream."),
		scrape.Describe("oncegate_ledger_batch_items_total", "Calls in these groups."))
}

// NewSchedulesCollector returns a collector of what becomes of the instants of schedules.
func NewSchedulesCollector(s *schedules.Schedules) *scrape.Collector {
	return scrape.New(func(m scrape.Sample) error {
		n := s.Counters()
		scrape.Set(m, "oncegate_jobs_schedule_instants_total", n.Enqueued, "enqueued")
		scrape.Set(m, "oncegate_jobs_schedule_instants_total", n.Missed, "missed")
		scrape.Set(m, "oncegate_jobs_schedule_instants_total", n.Overlapped, "overlapped")
		d, err := s.Depth(m.Context)
		if err != nil {
			return err
		}
		scrape.Set(m, "oncegate_jobs_schedules", d.Active, "active")
		scrape.Set(m, "oncegate_jobs_schedules", d.Paused, "paused")
		scrape.Set(m, "oncegate_jobs_schedule_late_seconds", d.Late.Seconds())
		return nil
	},
		scrape.Describe("oncegate_jobs_schedules", "Schedules in the store, by state.", "state"),
		scrape.Describe("oncegate_jobs_schedule_instants_total", "Instants of schedules that this manager came to, by what became of them.", "outcome"),
		scrape.Describe("oncegate_jobs_schedule_late_seconds", "For how long the instant of a schedule that waits longest for its job has been due, 0 without one."))
}

// NewLogsCollector returns a collector of what is known of each log. There are few, as the engine bounds them.
func NewLogsCollector(engine *storelogs.Engine) *scrape.Collector {
	return scrape.New(func(m scrape.Sample) error {
		infos, err := engine.List(m.Context, "", 10_000)
		if err != nil {
			return nil // the engine is away
		}
		for i := range infos {
			l := &infos[i]
			for _, x := range []struct {
				outcome string
				n       uint64
			}{{"appended", l.Appended}, {"duplicate", l.Duplicates}, {"mismatch", l.Mismatches}, {"gap", l.Gaps}, {"fenced", l.Fenced}, {"refused", l.Refused}} {
				scrape.Set(m, "oncegate_logs_appends_total", x.n, l.Name, x.outcome)
			}
			scrape.Set(m, "oncegate_logs_window_keys", l.Keys, l.Name)
			scrape.Set(m, "oncegate_logs_window_bytes", l.WindowBytes, l.Name)
			scrape.Set(m, "oncegate_logs_window_evicted_total", l.Evicted, l.Name)
			scrape.Set(m, "oncegate_logs_window_evicted_age_seconds", l.EvictedAge.Seconds(), l.Name)
			scrape.Set(m, "oncegate_logs_entries", l.Last+1-l.First, l.Name)
			scrape.Set(m, "oncegate_logs_disk_bytes", l.DiskBytes, l.Name)
			scrape.Set(m, "oncegate_logs_failed", map[bool]int{true: 1}[l.Failed != ""], l.Name)
			scrape.Set(m, "oncegate_logs_readers", l.Readers, l.Name)
		}
		return nil
	},
		scrape.Describe("oncegate_logs_appends_total", "Entries that writers asked to append, by outcome.", "log", "outcome"),
		scrape.Describe("oncegate_logs_window_keys", "Ids, or clients, that the window holds.", "log"),
		scrape.Describe("oncegate_logs_window_bytes", "Memory that the window takes.", "log"),
		scrape.Describe("oncegate_logs_window_evicted_total", "Ids forgotten before their time, as the window was full.", "log"),
		scrape.Describe("oncegate_logs_window_evicted_age_seconds", "Age of the id that was forgotten last before its time; 0 before there was one.", "log"),
		scrape.Describe("oncegate_logs_entries", "Entries that are kept.", "log"),
		scrape.Describe("oncegate_logs_disk_bytes", "Disk that the log takes.", "log"),
		scrape.Describe("oncegate_logs_failed", "1 when the log cannot be read, so that it refuses all calls.", "log"),
		scrape.Describe("oncegate_logs_readers", "Readers that are held.", "log"))
}

// jobCounts names what a queue counts, for statistics and metrics alike.
func jobCounts(c jobs.Counters) map[string]int64 {
	return map[string]int64{
		"enqueued": c.Enqueued, "existing": c.Existing, "deduplicated": c.Deduplicated, "claimed": c.Claimed,
		"completed": c.Completed, "failed": c.Failed, "cancelled": c.Cancelled, "retried": c.Retried,
		"cancel_requested": c.CancelRequests, "deleted": c.Deleted, "promoted": c.Promoted, "reclaimed": c.Reclaimed,
		"dead_by_lease": c.DeadByLease, "expired": c.Expired, "timed_out": c.TimedOut, "fenced": c.Fenced, "full": c.Full, "over_share": c.OverShare,
	}
}

// JobsDepth is how many jobs there are, what they take, and what there is of each function.
type JobsDepth struct {
	jobs.Depth
	Usage     jobs.Usage
	Functions []jobs.Series
}

// NewJobsCollector returns a collector of a queue's counters and depth. Each scrape calls depth, which returns what Depth,
// Usage and Series do.
func NewJobsCollector(q *jobs.Queue, depth func(context.Context) (JobsDepth, error)) *scrape.Collector {
	return scrape.New(func(m scrape.Sample) error {
		counters := q.Counters()
		for outcome, n := range jobCounts(counters) {
			scrape.Set(m, "oncegate_jobs_operations_total", n, outcome)
		}
		scrape.Set(m, "oncegate_jobs_waiting", counters.Waiting)
		d, err := depth(m.Context)
		if err != nil {
			return err
		}
		var oldest time.Duration
		for i := range d.Functions {
			f := &d.Functions[i]
			oldest = max(oldest, f.Oldest)
			scrape.Set(m, "oncegate_jobs_by_function_oldest_queued_age_seconds", f.Oldest.Seconds(), f.Name)
			for state, n := range map[string]int{"queued": f.Queued, "scheduled": f.Scheduled, "active": f.Active, "dead": f.Dead} {
				scrape.Set(m, "oncegate_jobs_by_function", n, f.Name, state)
			}
			r := &f.Rates
			for outcome, n := range map[string]int64{"enqueued": r.Enqueued, "claimed": r.Claimed, "completed": r.Completed, "failed": r.Failed, "retried": r.Retried} {
				scrape.Set(m, "oncegate_jobs_by_function_operations_total", n, f.Name, outcome)
			}
		}
		scrape.Set(m, "oncegate_jobs_oldest_queued_age_seconds", oldest.Seconds())
		scrape.Set(m, "oncegate_jobs_bytes", d.Usage.Total)
		scrape.Set(m, "oncegate_jobs_retained_bytes", d.Usage.Retained)
		scrape.Set(m, "oncegate_jobs_max_bytes", d.Usage.MaxTotal)
		for state, n := range map[string]int{"scheduled": d.Scheduled, "queued": d.Queued, "active": d.Active, "dead": d.Dead, "done": d.Done} {
			scrape.Set(m, "oncegate_jobs", n, state)
		}
		return nil
	},
		scrape.Describe("oncegate_jobs", "Jobs in the store, by state.", "state"),
		scrape.Describe("oncegate_jobs_operations_total", "Operations on jobs at this manager, by outcome.", "outcome"),
		scrape.Describe("oncegate_jobs_waiting", "Claims and waits for a result that are held now."),
		scrape.Describe("oncegate_jobs_oldest_queued_age_seconds", "For how long the job that waits longest could have run, 0 without one."),
		scrape.Describe("oncegate_jobs_by_function", "Jobs in the store, by function and state.", "function", "state"),
		scrape.Describe("oncegate_jobs_by_function_oldest_queued_age_seconds", "For how long the function's job that waits longest could have run, 0 without one.", "function"),
		scrape.Describe("oncegate_jobs_by_function_operations_total", "Operations on a function's jobs at this manager, by outcome.", "function", "outcome"),
		scrape.Describe("oncegate_jobs_bytes", "What the jobs take of oncegate_jobs_max_bytes, finished ones and dead letters included."),
		scrape.Describe("oncegate_jobs_retained_bytes", "What finished jobs and dead letters take, at most a quarter of oncegate_jobs_max_bytes."),
		scrape.Describe("oncegate_jobs_max_bytes", "Bytes of jobs beyond which new ones are refused."))
}
