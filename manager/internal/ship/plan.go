package ship

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
)

// plan is what a restore reads.
type plan struct {
	manifest *manifest
	history  *history
	base     *snapshot // nil: from the first record on
	runs     []run
	at       int64 // records after the first point from here on are left out
}

// makePlan chooses the objects to read for the state at a time, or the newest one when at is
// zero. With one or more *DamageError it returns what can be read besides the damage, or nil.
func makePlan(ctx context.Context, s object.Store, at time.Time) (*plan, error) {
	m, damaged, _, err := readShipped(ctx, s)
	if errors.Is(err, object.ErrNotFound) {
		return nil, noManifest(s)
	}
	if err != nil {
		return nil, err
	}
	limit := int64(1<<63 - 1)
	if !at.IsZero() {
		limit = at.UnixMilli()
	}
	for i := range slices.Backward(m.Histories) {
		h := &m.Histories[i]
		if h.Began > limit {
			continue
		}
		p := planOf(h, limit)
		if p != nil {
			p.manifest = m
		}
		if err := damaged[h]; err != nil && (len(h.Runs) == 0 || h.Runs[len(h.Runs)-1].To < limit) {
			return p, err // the time asked for may be after the damage
		}
		if p != nil {
			return p, nil
		}
	}
	if at.IsZero() {
		return nil, fmt.Errorf("%w: %s holds no record yet", ErrNothing, s)
	}
	return nil, fmt.Errorf("%w: nothing in %s is as old as %s", ErrNothing, s, at.UTC().Format(time.RFC3339Nano))
}

// planOf finds the newest snapshot that is not newer than limit, and the runs that
// follow it up to the first one that ends at limit or later; nil when the history has nothing of that age.
func planOf(h *history, limit int64) *plan {
	if h.Reach > 0 && !h.caughtUp() {
		return nil
	}
	p := &plan{history: h, at: limit}
	next, covered, reached := uint64(1), uint64(0), false
	for i := range h.Snapshots {
		if s := &h.Snapshots[i]; s.Time <= limit {
			p.base, next, covered = s, s.Sequence+1, s.Sequence
		}
	}
	for _, r := range h.Runs {
		if r.Last < next {
			continue
		}
		if r.First > next || reached && r.First > covered { // a gap, or the future
			break
		}
		p.runs = append(p.runs, r)
		next, reached = r.Last+1, r.To >= limit
	}
	if p.base == nil && len(p.runs) == 0 {
		return nil
	}
	return p
}

// again returns a plan for the rest of the records, from next on, or for all when next is 0; nil when the manifest does not have them, or did not change.
func (p *plan) again(ctx context.Context, o *RestoreOptions, next uint64) (*plan, error) {
	m, _, _, err := readShipped(ctx, o.Store)
	if err != nil || m.sameAs(p.manifest) || len(p.runs) == 0 {
		return nil, err
	}
	if next == 0 {
		next = p.runs[0].First
	}
	until := p.runs[len(p.runs)-1].Last
	for i := range m.Histories {
		h := &m.Histories[i]
		if h.Log != p.history.Log || h.Began != p.history.Began {
			continue
		}
		rest := &plan{manifest: m, history: h, at: p.at}
		for _, r := range h.Runs {
			if r.Last >= next && r.First <= until {
				rest.runs = append(rest.runs, r)
			}
		}
		if len(rest.runs) > 0 && rest.runs[0].First <= next {
			return rest, nil
		}
	}
	return nil, nil
}

// parts is how many parts of a snapshot it reads.
func (p *plan) parts() int {
	if p.base == nil {
		return 0
	}
	return len(p.base.Parts)
}

// fetched has the records of an object.
type fetched struct {
	name   string
	header header
	bodies [][]byte
	err    error
}

// ahead is how many objects are fetched at once.
const ahead = 4

// fetch calls fn for the parts of the snapshot and then for the runs, in order. fn gets a
// nil run for a part. After damage fetch continues, without fn, to find all of it.
func (p *plan) fetch(ctx context.Context, o *RestoreOptions, fn func(r *run, f fetched) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parts := p.parts()
	n := parts + len(p.runs)
	slots := make(chan chan fetched, ahead)
	go func() {
		defer close(slots)
		for i := range n {
			slot := make(chan fetched, 1)
			select {
			case slots <- slot:
			case <-ctx.Done():
				return
			}
			go func() {
				var f fetched
				if i < parts {
					f.name = p.base.Parts[i].Name
					f.header, f.bodies, f.err = fetchPart(ctx, o.Store, p.base, i, p.history.Log)
				} else {
					f.name = p.runs[i-parts].Name
					f.header, f.bodies, f.err = fetchRun(ctx, o.Store, p.runs[i-parts], p.history.Log)
				}
				slot <- f
			}()
		}
	}()
	var damages []error
	i := 0
	for slot := range slots {
		f := <-slot
		switch {
		case errors.Is(f.err, object.ErrNotFound):
			damages = append(damages, missing(logPrefix+"/"+f.name))
		case isDamage(f.err):
			damages = append(damages, f.err)
		case f.err != nil:
			return f.err
		case len(damages) == 0:
			var r *run
			if i >= parts {
				r = &p.runs[i-parts]
			}
			if err := fn(r, f); err != nil {
				return err
			}
		}
		i++
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return errors.Join(damages...)
}
