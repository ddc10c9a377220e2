package schedules

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// Options configure Schedules. The zero value of every field means its default.
type Options struct {
	// Interval is the longest pause between two rounds of Run: 10 ms to 1 h, default 5 s. Instants are met in time without
	// it. It bounds how late Run notices a clock that was set, and a schedule of another manager.
	Interval time.Duration
	// Unreadable is notified of records that cannot be read; default a tracker of its own.
	Unreadable *unread.Tracker
	// Homes finds the homes of schedules; nil: this data centre is the only one.
	Homes Homes
}

// Homes are the homes of names among several data centres. *home.Homes is one.
type Homes interface {
	// Home returns the home of a key in a scope, and whether it is another data centre.
	Home(scope, key string) (name string, elsewhere bool)
	// Take returns an error while data centres may have different lists: two of them could be the home of one name.
	Take() error
}

// homeScope is the scope in which the names of schedules have their homes.
const homeScope = "schedules"

// Schedules are the schedules of a job queue. All methods are safe for concurrent use. Methods return *jobs.FieldError,
// jobs.ErrNotFound, and the errors of package store unchanged.
type Schedules struct {
	store    store.Store
	queue    *jobs.Queue
	opt      Options
	enqueued atomic.Int64
	missed   atomic.Int64
	overlap  atomic.Int64
}

// topic is notified when a schedule has another next instant.
const topic = "schedules"

// New makes the schedules of a queue. The queue must be on the same store.
func New(s store.Store, q *jobs.Queue, o Options) (*Schedules, error) {
	o.Interval = cmp.Or(o.Interval, 5*time.Second)
	if o.Interval < 10*time.Millisecond || o.Interval > time.Hour {
		return nil, fmt.Errorf("schedules: interval: %v; allowed: 10ms to 1h", o.Interval)
	}
	if o.Unreadable == nil {
		o.Unreadable = unread.New()
	}
	return &Schedules{store: s, queue: q, opt: o}, nil
}

// Put makes a schedule or replaces its Spec, and reports whether it is new. A schedule that is paused stays so. Where the
// expression or the zone changes, the next instant is the first one after now; else it stays, even if it is due.
func (s *Schedules) Put(ctx context.Context, name string, spec Spec) (out Schedule, created bool, err error) {
	if err := jobs.CheckName("name", name); err != nil {
		return out, false, err
	}
	spec, c, err := spec.withDefaults()
	if err != nil {
		return out, false, err
	}
	wanted := &Schedule{Name: name, Spec: spec}
	if _, err := s.queue.Prepare(wanted.submission(time.Unix(0, 0))); err != nil {
		return out, false, err
	}
	have, err := s.store.Len(ctx, Collection, "")
	if err != nil {
		return out, false, err
	}
	err = s.store.Update(ctx, func(tx store.Tx) error {
		old, err := load(tx, name)
		if err != nil {
			return err
		}
		now := wall(tx)
		if created = old == nil; created {
			if have >= MaxSchedules {
				return invalid("name", name, fmt.Sprintf("at most %d schedules", MaxSchedules))
			}
			old = &Schedule{Name: name, CreatedAt: now}
		}
		if out = *old; reflect.DeepEqual(old.Spec, spec) {
			return nil
		}
		out.Spec, out.ChangedAt = spec, now
		if old.DataCenters != spec.DataCenters {
			out.DecidedBy = s.Home(&out)
		}
		if old.Cron != spec.Cron || old.TimeZone != spec.TimeZone {
			if err := out.begin(c, now); err != nil {
				return err
			}
		}
		tx.Notify(topic)
		return out.save(tx)
	})
	return out, created, err
}

// begin sets the next instant as of now. It is never one that had a job.
func (s *Schedule) begin(c *calendar, now time.Time) error {
	if s.Last.After(now) {
		now = s.Last // the clock was set back
	}
	next := c.next(now)
	if next.IsZero() {
		return invalid("cron", s.Cron, "an expression with an instant within 10 years")
	}
	if s.PausedAt.IsZero() {
		s.Next = next
	}
	return nil
}

// Get returns a schedule.
func (s *Schedules) Get(ctx context.Context, name string) (out Schedule, err error) {
	err = s.store.View(ctx, func(tx store.Tx) error {
		found, err := find(tx, name)
		if err == nil {
			out = *found
		}
		return err
	})
	return out, err
}

// Home returns the data centre that enqueues the jobs of a schedule with DataCentersHome. It is empty for another schedule, and
// where there is only one data centre.
func (s *Schedules) Home(c *Schedule) string {
	if c.DataCenters != DataCentersHome || s.opt.Homes == nil {
		return ""
	}
	name, _ := s.opt.Homes.Home(homeScope, c.Name)
	return name
}

// elsewhere reports whether the instants of a schedule that are due are those of another data centre: of its home, or of the
// home before that. It returns an error while that is not certain.
func (s *Schedules) elsewhere(c *Schedule) (bool, error) {
	home := s.Home(c)
	if home == "" {
		return false, nil
	}
	if _, elsewhere := s.opt.Homes.Home(homeScope, c.Name); elsewhere {
		return true, nil
	}
	return home != c.DecidedBy, s.opt.Homes.Take()
}

// maxPageBytes bounds the payloads that one page of List reads.
const maxPageBytes = 8 << 20

// List returns a page of schedules after a name, in the order of their names, without payloads. more is the name after
// which the next page begins, empty after the last one. limit: 1 to jobs.MaxLimit, 100 when 0.
func (s *Schedules) List(ctx context.Context, limit int, after string) (page []Schedule, more string, err error) {
	if limit, err = jobs.PageLimit(limit); err != nil {
		return nil, "", err
	}
	if after != "" {
		if err := jobs.CheckName("cursor", after); err != nil {
			return nil, "", err
		}
	}
	err = s.store.View(ctx, func(tx store.Tx) error {
		page, more = nil, ""
		r := store.Range{Limit: limit}
		if after != "" {
			r.After = &store.Hit{SortKey: after, Key: after}
		}
		hits, err := tx.Scan(Collection, idxName, r)
		if err != nil {
			return err
		}
		bytes := 0
		for i, h := range hits {
			one, err := load(tx, h.Key)
			if err != nil && !s.opt.Unreadable.Met(err) {
				return err
			}
			if one != nil && err == nil {
				bytes += len(one.Payload)
				one.Payload = nil
				page = append(page, *one)
			}
			if i == limit-1 || bytes > maxPageBytes {
				more = h.Key
				return nil
			}
		}
		return nil
	})
	return page, more, err
}

// Delete removes a schedule and returns it as it was. Its jobs stay.
func (s *Schedules) Delete(ctx context.Context, name string) (Schedule, error) {
	return s.change(ctx, name, func(tx store.Tx, c *Schedule) error { return tx.Delete(Collection, c.Name) })
}

// Pause stops a schedule. Pausing twice is not an error.
func (s *Schedules) Pause(ctx context.Context, name string) (Schedule, error) {
	return s.change(ctx, name, func(tx store.Tx, c *Schedule) error {
		if !c.PausedAt.IsZero() {
			return nil
		}
		c.PausedAt, c.Next = wall(tx), time.Time{}
		return c.save(tx)
	})
}

// Resume starts a paused schedule again, with the first instant after now: those before it were not missed. Resuming one that
// is not paused is not an error.
func (s *Schedules) Resume(ctx context.Context, name string) (Schedule, error) {
	return s.change(ctx, name, func(tx store.Tx, c *Schedule) error {
		if c.PausedAt.IsZero() {
			return nil
		}
		calendar, err := c.calendar()
		if err != nil {
			return err
		}
		c.PausedAt, c.DecidedBy = time.Time{}, s.Home(c) // no home of before decides an instant after now
		if err := c.begin(calendar, wall(tx)); err != nil {
			return err
		}
		tx.Notify(topic)
		return c.save(tx)
	})
}

func (s *Schedules) change(ctx context.Context, name string, f func(store.Tx, *Schedule) error) (out Schedule, err error) {
	err = s.store.Update(ctx, func(tx store.Tx) error {
		found, err := find(tx, name)
		if err != nil {
			return err
		}
		err = f(tx, found)
		out = *found
		return err
	})
	return out, err
}

// Submission returns the job that the schedule would enqueue now, for a caller that does not wait for the next instant. Its
// key has the present time in place of an instant. The job is none of the schedule's: it changes neither Next nor LastJob.
func (s *Schedules) Submission(ctx context.Context, name string) (sub jobs.Submission, err error) {
	err = s.store.View(ctx, func(tx store.Tx) error {
		found, err := find(tx, name)
		if err == nil {
			sub = found.submission(wall(tx))
		}
		return err
	})
	return sub, err
}

// DeleteUnreadable deletes a schedule if it cannot be read, and returns why it could not be read. Errors:
// jobs.ErrNotFound, unread.ErrReadable, the store's.
func (s *Schedules) DeleteUnreadable(ctx context.Context, name string) (*store.UnreadableError, error) {
	var u *store.UnreadableError
	err := s.store.Update(ctx, func(tx store.Tx) error {
		var err error
		if u, err = unread.Reason(CheckStored(tx, name), jobs.NotFound("record", name)); err != nil {
			return err
		}
		return tx.Delete(Collection, name)
	})
	if err != nil {
		return nil, err
	}
	s.opt.Unreadable.Forget(Collection, name)
	return u, nil
}

// wall is the time of day by which instants are due, in the precision of records.
func wall(tx store.Tx) time.Time { return tx.Wall().UTC().Truncate(time.Microsecond) }
