package server

import (
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/scrape"
)

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
