package server

import "github.com/oncegate/oncegate/manager/internal/schedules"

// NewSchedulesCollector returns a collector of what becomes of the instants of schedules.
func NewSchedulesCollector(s *schedules.Schedules) *Scrape {
	return NewScrape(func(m Sample) error {
		n := s.Counters()
		Set(m, "oncegate_jobs_schedule_instants_total", n.Enqueued, "enqueued")
		Set(m, "oncegate_jobs_schedule_instants_total", n.Missed, "missed")
		Set(m, "oncegate_jobs_schedule_instants_total", n.Overlapped, "overlapped")
		d, err := s.Depth(m.Context)
		if err != nil {
			return err
		}
		Set(m, "oncegate_jobs_schedules", d.Active, "active")
		Set(m, "oncegate_jobs_schedules", d.Paused, "paused")
		Set(m, "oncegate_jobs_schedule_late_seconds", d.Late.Seconds())
		return nil
	},
		Describe("oncegate_jobs_schedules", "Schedules in the store, by state.", "state"),
		Describe("oncegate_jobs_schedule_instants_total", "Instants of schedules that this manager came to, by what became of them.", "outcome"),
		Describe("oncegate_jobs_schedule_late_seconds", "For how long the instant of a schedule that waits longest for its job has been due, 0 without one."))
}
