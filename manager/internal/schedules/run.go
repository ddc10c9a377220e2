package schedules

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

const (
	// duePage is how many schedules a round reads at a time, and atOnce how many transactions it makes at the same time.
	duePage, atOnce = 256, 16
	// retryAfter is the pause after a round with an error, and reportAfter that between two reports of the same one.
	retryAfter, reportAfter = time.Second, time.Minute
)

// Run enqueues the jobs of all instants until ctx ends: immediately, whenever an instant is due, and at least every
// Options.Interval. It passes errors to report, the same one once a minute, and the next round tries again. Several
// managers of one store may all run it.
func (s *Schedules) Run(ctx context.Context, report func(error)) {
	changed := s.store.Watch(topic)
	defer changed.Stop()
	var last string
	var reported time.Time
	for {
		pause, err := s.RunDue(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if text := err.Error(); text != last || time.Since(reported) >= reportAfter {
				last, reported = text, time.Now()
				report(err)
			}
			pause = retryAfter
		}
		t := time.NewTimer(min(pause, s.opt.Interval))
		select {
		case <-t.C:
		case <-changed.C():
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// RunDue decides all instants that are due, and returns how long it is until the next one. The error is that of the
// first schedule by name that has one, and names it; the others are decided nevertheless. Schedules that cannot be read are passed by.
func (s *Schedules) RunDue(ctx context.Context) (untilNext time.Duration, err error) {
	var after *store.Hit
	var first string // of the schedules with an error, by name
	for {
		hits, pause, failed := s.due(ctx, after)
		if failed != nil {
			return 0, failed
		}
		if len(hits) == 0 {
			return pause, err
		}
		after = &store.Hit{SortKey: hits[len(hits)-1].SortKey, Key: hits[len(hits)-1].Key}
		// Managers that wake up at the same instant begin with different schedules.
		rand.Shuffle(len(hits), func(i, j int) { hits[i], hits[j] = hits[j], hits[i] })
		var group errgroup.Group
		group.SetLimit(atOnce)
		var mu sync.Mutex // of first and err
		for _, h := range hits {
			group.Go(func() error {
				if failed := s.catchUp(ctx, h.Key); failed != nil {
					mu.Lock()
					defer mu.Unlock()
					if err == nil || h.Key < first {
						first, err = h.Key, failed
					}
				}
				return nil
			})
		}
		_ = group.Wait()
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
}

// due returns a page of the schedules whose next instant has come, and how long it is until that of another one.
func (s *Schedules) due(ctx context.Context, after *store.Hit) (hits []store.Hit, untilNext time.Duration, err error) {
	err = s.store.View(ctx, func(tx store.Tx) error {
		now := wall(tx)
		edge := timeKey(now.Add(time.Microsecond))
		var err error
		if hits, err = tx.Scan(Collection, idxNext, store.Range{To: edge, After: after, Limit: duePage}); err != nil || len(hits) > 0 {
			return err
		}
		untilNext = s.opt.Interval
		ahead, err := tx.Scan(Collection, idxNext, store.Range{From: edge, Limit: 1})
		if err == nil && len(ahead) > 0 {
			untilNext = max(keyTime(ahead[0].SortKey).Sub(now), time.Millisecond)
		}
		return err
	})
	return hits, untilNext, err
}

// catchUp decides the instants of a schedule until none is due.
func (s *Schedules) catchUp(ctx context.Context, name string) error {
	for ctx.Err() == nil {
		more, err := s.decideOne(ctx, name)
		var u *store.UnreadableError
		if s.opt.Unreadable.Met(err) && errors.As(err, &u) && u.Collection == Collection {
			return nil
		}
		if err != nil {
			return fmt.Errorf("schedule %s: %w", name, err)
		}
		if !more {
			return nil
		}
	}
	return ctx.Err()
}

// decideOne decides at most one instant with a job, and those before it that have none. more says that another one may be
// due.
func (s *Schedules) decideOne(ctx context.Context, name string) (more bool, err error) {
	a := &attempt{queue: s.queue}
	var now time.Time
	err = s.store.View(ctx, func(tx store.Tx) error {
		now = wall(tx)
		var err error
		a.read, err = tx.Get(Collection, name)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if a.seen, err = decode(name, a.read); err != nil || a.seen.Next.IsZero() || a.seen.Next.After(now) {
		return false, err
	}
	c, err := a.seen.calendar()
	if err != nil {
		return false, err
	}
	elsewhere, err := s.elsewhere(a.seen)
	if err != nil {
		return false, err
	}
	if a.home = s.Home(a.seen); elsewhere {
		a.next = c.next(now)
	} else if a.decision = a.seen.decide(c, now); !a.instant.IsZero() {
		a.submission = a.seen.submission(a.instant)
	}
	if err := a.commit(ctx, s.store); err != nil {
		return false, err
	}
	if a.foreign {
		a.submission.Key, a.submission.ReturnExisting = "", false
		if err := a.commit(ctx, s.store); err != nil {
			return false, err
		}
	}
	if a.enqueued {
		s.queue.Committed(a.out)
		s.enqueued.Add(1)
	}
	if a.overlaps {
		s.overlap.Add(1)
	}
	if a.decided {
		s.missed.Add(int64(a.missed))
	}
	return a.more, nil
}

// attempt is a decision on its way into the store.
type attempt struct {
	queue      *jobs.Queue
	seen       *Schedule
	read       []byte // of which seen was decoded
	submission jobs.Submission
	home       string
	decision

	out                         jobs.Outcome
	decided, enqueued, overlaps bool
	// more: another instant may be due. foreign: nothing was decided, because a job of a submitter has the key. It is not the
	// schedule's, and must not keep it from its own.
	more, foreign bool
}

// commit stores the decision and enqueues its job in one transaction.
func (a *attempt) commit(ctx context.Context, st store.Store) error {
	var p *jobs.Prepared
	if !a.instant.IsZero() {
		var err error
		if p, err = a.queue.Prepare(a.submission); err != nil {
			return err
		}
	}
	err := st.Update(ctx, func(tx store.Tx) error { return a.run(tx, p) })
	if err != nil {
		a.queue.Refused(err)
	}
	return err
}

func (a *attempt) run(tx store.Tx, p *jobs.Prepared) error {
	a.decided, a.enqueued, a.overlaps, a.more, a.foreign = false, false, false, false, false
	b, err := tx.Get(Collection, a.seen.Name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return err
	case wall(tx).Before(a.seen.Next): // the clock was set back
		return nil
	case !bytes.Equal(b, a.read): // another manager decided it, or a caller changed the schedule
		a.more = true
		return nil
	}
	s := *a.seen
	s.Next, s.DecidedBy = a.next, a.home
	s.MissedInstants += uint64(a.missed)
	if p != nil && s.Overlap == OverlapSkip && s.LastJob != "" {
		if a.overlaps, err = jobs.LiveTx(tx, s.LastJob); err != nil {
			return err
		}
	}
	switch {
	case a.overlaps:
		s.OverlappedInstants++
	case p != nil:
		if a.out, err = a.queue.EnqueueTx(tx, p); err != nil {
			return err
		}
		if a.foreign = a.out.Existing && a.out.Job.Owner != ""; a.foreign {
			return nil
		}
		s.Last, s.LastJob, a.enqueued = a.instant, a.out.Job.ID, true
	}
	a.decided, a.more = true, true
	return s.save(tx)
}

// Counters count what this manager decided.
type Counters struct{ Enqueued, Missed, Overlapped int64 }

// Counters returns the counters since New.
func (s *Schedules) Counters() Counters {
	return Counters{s.enqueued.Load(), s.missed.Load(), s.overlap.Load()}
}

// Depth is how many schedules there are, and for how long the instant that is due and waits longest has waited, 0 if none
// is.
type Depth struct {
	Active, Paused int
	Late           time.Duration
}

// Depth counts the schedules. Where managers share the store, the counts may be a few seconds old.
func (s *Schedules) Depth(ctx context.Context) (d Depth, err error) {
	all, err := s.store.Len(ctx, Collection, "")
	if err != nil {
		return d, err
	}
	if d.Active, err = s.store.Len(ctx, Collection, idxNext); err != nil {
		return d, err
	}
	d.Paused = max(all-d.Active, 0)
	err = s.store.View(ctx, func(tx store.Tx) error {
		hits, err := tx.Scan(Collection, idxNext, store.Range{Limit: 1})
		if d.Late = 0; err == nil && len(hits) > 0 {
			d.Late = max(wall(tx).Sub(keyTime(hits[0].SortKey)), 0)
		}
		return err
	})
	return d, err
}
