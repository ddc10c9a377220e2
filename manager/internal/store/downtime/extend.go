package downtime

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

const (
	// pieceSize is how many records one transaction extends. Even the largest jobs fit into a transaction that many
	// times.
	pieceSize = 400
	// minAhead and maxAhead bound how far ahead of the present a plan sets the time at which serving begins again.
	minAhead, maxAhead = 200 * time.Millisecond, time.Minute
	// perLease estimates the time that a fast engine takes for one lease. A slow engine needs a second plan. A higher
	// estimate would let all engines wait longer.
	perLease = 10 * time.Microsecond
)

// errMoved ends a transaction that did not find the plan where this manager left it, because another manager of a
// shared engine works on it too.
var errMoved = errors.New("downtime: another manager extends the leases, too")

// extendIfAway extends the leases after this manager was away. The first caller that notices does it, and the others
// wait.
func (s *Store) extendIfAway(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.turn }()
	if last := s.last.Load(); last != 0 && !s.extending.Load() {
		// Another caller may have done it during the wait.
		away := false
		err := s.Store.View(ctx, func(tx store.Tx) error {
			away = time.Duration(s.now(tx).UnixNano()-last) > s.gap
			return nil
		})
		if err != nil || !away {
			return err
		}
	}
	s.extending.Store(true)
	// After an error extending stays set, and the next call continues.
	began := time.Now()
	report := Report{Extended: make(map[string]int)}
	ahead, err := s.estimate(ctx)
	if err != nil {
		return err
	}
	var now, begins time.Time
	for round := began; ; {
		var p *plan
		if p, now, begins, err = s.plan(ctx, ahead); err != nil {
			return fmt.Errorf("extend leases after a downtime: %w", err)
		}
		if p == nil {
			break
		}
		if report.To.IsZero() {
			report.From = p.away.From
		}
		report.To = p.away.To
		clear(report.Extended)
		if err := s.carryOut(ctx, &report); err != nil {
			return fmt.Errorf("extend leases after a downtime: %w", err)
		}
		took := time.Since(round)
		round, ahead = time.Now(), min(max(ahead, 2*took), maxAhead)
	}
	s.last.Store(begins.UnixNano())
	// A lease that is given out before that time could end before it, too. The next plan would take it for one that
	// was over.
	if err := s.opts.Wait(ctx, begins.Sub(now)); err != nil {
		return err
	}
	if s.shared {
		s.last.Store(s.opts.Clock().UnixNano())
	}
	s.extending.Store(false)
	if report.Took = time.Since(began); s.opts.OnExtended != nil && len(report.Extended) > 0 {
		s.opts.OnExtended(report)
	}
	return nil
}

// estimate returns how far ahead the first plan sets its end. In most cases that makes a second plan unnecessary.
func (s *Store) estimate(ctx context.Context) (time.Duration, error) {
	ahead := minAhead
	for _, l := range s.opts.Leases {
		n, err := s.Store.Len(ctx, l.Collection, l.Index)
		if err != nil {
			return 0, err
		}
		ahead += time.Duration(n) * perLease
	}
	// A lease more or less changes nothing, so that the simulation's worlds do not depend on how many calls of one instant
	// had become durable.
	const step = 10 * time.Millisecond
	return min((ahead+step-1)/step*step, maxAhead), nil
}

// plan returns the unfinished plan, or makes one if one is needed. A finished plan is deleted if the time at which it
// ends has not come yet. Otherwise the next plan covers the time since then. Without a plan, serving may begin at
// begins, which is now or later.
func (s *Store) plan(ctx context.Context, ahead time.Duration) (p *plan, now, begins time.Time, err error) {
	last := s.last.Load()
	err = s.Store.Update(ctx, func(tx store.Tx) error {
		p, now = nil, tx.Now()
		begins = now
		var from time.Time
		old, err := getPlan(tx)
		switch {
		case err != nil:
			return err
		case old != nil && old.stage < len(s.opts.Leases):
			p = old
			return nil
		case old != nil && !now.After(old.away.To):
			if err := tx.Delete(Collection, planKey); err != nil {
				return err
			}
			// If the manager stops before that time, the next plan gives what is missing from then on.
			begins = old.away.To
			return putBeat(tx, begins)
		case old != nil:
			from = old.away.To
		default:
			if from, err = getBeat(tx); err != nil {
				return err
			}
			switch {
			case !s.shared && last > now.UnixNano():
				begins = time.Unix(0, last) // the call that extended the leases ended while it waited
				return nil
			case !s.shared && last != 0:
				from = time.Unix(0, last)
			case s.shared && from.IsZero():
				return putBeat(tx, now)
			case s.shared && from.After(now) && from.Sub(now) <= maxAhead:
				begins = from // another manager has extended them, or this one
				return nil
			case s.shared && now.Sub(from) <= s.gap:
				return nil // without a beat: this manager may never serve
			}
			if leased, err := s.leased(tx); err != nil || !leased {
				return err
			}
		}
		p = &plan{away: store.Away{From: from, To: now.Add(ahead)}}
		return p.put(tx)
	})
	return p, now, begins, err
}

// carryOut works on the plan until it is finished.
func (s *Store) carryOut(ctx context.Context, report *Report) error {
	for {
		var p *plan
		err := s.Store.View(ctx, func(tx store.Tx) error {
			var err error
			p, err = getPlan(tx)
			return err
		})
		if err != nil || p == nil || p.stage >= len(s.opts.Leases) {
			return err
		}
		if err := s.carryOutStage(ctx, p, report); err != nil && !errors.Is(err, errMoved) {
			return err
		}
	}
}

// carryOutStage extends the leases of one index piece by piece, from its end.
func (s *Store) carryOutStage(ctx context.Context, p *plan, report *Report) error {
	ends, err := s.pieces(ctx, p)
	if err != nil {
		return err
	}
	for i := len(ends) - 1; i >= 0; i-- {
		next := plan{away: p.away, stage: p.stage}
		if i > 0 {
			next.done = ends[i-1]
		} else {
			next.stage++
		}
		if err := s.piece(ctx, p, &next, ends[i], report); err != nil {
			return err
		}
		p = &next
	}
	return nil
}

// pieces scans what is still to be extended and returns where each piece ends.
func (s *Store) pieces(ctx context.Context, p *plan) ([]store.Hit, error) {
	var ends []store.Hit
	l := s.opts.Leases[p.stage]
	for {
		r := store.Range{Limit: pieceSize}
		if len(ends) > 0 {
			r.After = &ends[len(ends)-1]
		}
		var hits []store.Hit
		err := s.Store.View(ctx, func(tx store.Tx) error {
			var err error
			hits, err = tx.Scan(l.Collection, l.Index, r)
			return err
		})
		if err != nil {
			return nil, err
		}
		more := len(hits) == pieceSize
		hits = upTo(hits, p.done)
		if len(hits) > 0 {
			ends = append(ends, hits[len(hits)-1])
		}
		if !more || len(hits) < pieceSize {
			break
		}
	}
	if len(ends) == 0 {
		ends = append(ends, store.Hit{}) // nothing is left, which the plan has to record
	}
	return ends, nil
}

// upTo removes the hits after end; it removes none when end is zero.
func upTo(hits []store.Hit, end store.Hit) []store.Hit {
	if end == (store.Hit{}) {
		return hits
	}
	for i, h := range hits {
		if h.SortKey > end.SortKey || h.SortKey == end.SortKey && h.Key > end.Key {
			return hits[:i]
		}
	}
	return hits
}

// piece extends the leases after next.done, up to and including end, and records that in the plan.
func (s *Store) piece(ctx context.Context, p, next *plan, end store.Hit, report *Report) error {
	l := s.opts.Leases[p.stage]
	extended := 0
	err := s.Store.Update(ctx, func(tx store.Tx) error {
		extended = 0
		have, err := getPlan(tx)
		if err != nil {
			return err
		}
		if have == nil || *have != *p {
			return errMoved
		}
		r := store.Range{Limit: pieceSize}
		if next.done != (store.Hit{}) {
			r.After = &next.done
		}
		var hits []store.Hit
		if end != (store.Hit{}) {
			if hits, err = tx.Scan(l.Collection, l.Index, r); err != nil {
				return err
			}
			hits = upTo(hits, end)
		}
		ids := make([]store.ID, len(hits))
		for i, h := range hits {
			ids[i] = store.ID{Collection: l.Collection, Key: h.Key}
		}
		if err := tx.Prefetch(ids); err != nil {
			return err
		}
		for _, id := range ids {
			value, err := tx.Get(id.Collection, id.Key)
			if unknown(err) {
				continue
			}
			if err != nil {
				return err
			}
			later, err := l.Extend(tx, id.Key, value, p.away)
			if err != nil {
				return err
			}
			if later {
				extended++
			}
		}
		return next.put(tx)
	})
	if err == nil && extended > 0 {
		report.Extended[l.Name] += extended
	}
	return err
}
