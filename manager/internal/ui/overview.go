package ui

import (
	"context"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/schedules"
)

type overviewData struct {
	NotReady string
	// Quarantine is nil when there is none.
	Quarantine *Quarantine
	Started    time.Time
	Ledger     ledger.Stats
	Entries    int
	Jobs       jobs.Depth
	Counts     jobs.Counters
	Needs      []need
}

// need is something that a person should look at. Path is a page.
type need struct{ Text, Path, Link string }

func (u *UI) overview(ctx context.Context) (*overviewData, error) {
	d := &overviewData{Started: u.started, Counts: u.opts.Queue.Counters()}
	var err error
	if d.Ledger, err = u.opts.Ledger.Stats(ctx); err != nil {
		return nil, err
	}
	if d.Jobs, err = u.opts.Queue.Depth(ctx); err != nil {
		return nil, err
	}
	s := &d.Ledger
	d.Entries = s.Total()
	if u.opts.NotReady != nil {
		d.NotReady = u.opts.NotReady()
	}
	d.Quarantine = u.quarantine()
	if n := s.Unknown; n > 0 {
		d.Needs = append(d.Needs, need{plural(n, "request has", "requests have") + " an unknown outcome", "ledger?list=unknown", "Find out what happened"})
	}
	if percent(d.Entries, s.MaxEntries) >= 90 || s.MaxBytes > 0 && percent(s.Bytes, s.MaxBytes) >= 90 {
		d.Needs = append(d.Needs, need{"The window is nearly full: new keys will be refused", "ledger", "See the capacity"})
	}
	used, err := u.opts.Queue.Usage(ctx)
	if err != nil {
		return nil, err
	}
	if percent(used.Total, used.MaxTotal) >= 80 {
		d.Needs = append(d.Needs, need{"The room for jobs is nearly full: new jobs will be refused", "jobs", "See what takes it"})
	}
	late, err := u.opts.Schedules.Depth(ctx)
	if err != nil {
		return nil, err
	}
	if late.Late >= schedules.OnTime {
		d.Needs = append(d.Needs, need{"A schedule's job has been due for " + lasts(late.Late) + ", and is not in the queue", "schedules", "See the schedules"})
	}
	if n := d.Jobs.Dead; n > 0 {
		d.Needs = append(d.Needs, need{plural(n, "job has", "jobs have") + " failed for good", "jobs?state=failed", "Look at the dead letters"})
	}
	return d, nil
}

// Quarantine is for how much longer keys and ids of log entries that the manager does not know are refused, and why.
type Quarantine struct {
	Left time.Duration
	Why  []string
}

func (u *UI) quarantine() *Quarantine {
	if u.opts.Quarantine == nil {
		return nil
	}
	return u.opts.Quarantine()
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return num(n) + " " + many
}

// High and HighBytes are from where on the window counts as nearly full.
func (d *overviewData) High() int { return d.Ledger.MaxEntries / 10 * 9 }

// HighBytes is High of the memory.
func (d *overviewData) HighBytes() int64 { return d.Ledger.MaxBytes / 10 * 9 }
