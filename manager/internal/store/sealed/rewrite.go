package sealed

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/store"
)

const (
	// rewriteChunk is how many records one transaction examines.
	rewriteChunk = 64
	// rewriteBytes is about how many bytes one transaction puts again.
	rewriteBytes = 1 << 20
	// checkEvery is how often managers that share an engine look at the record.
	checkEvery = time.Minute
	// settleAfter is how long a pass may leave values that the record does not list: a manager that put them before
	// it was to list its key again may have ended. A pass after that time finds them.
	settleAfter = 2 * checkEvery
	// idleEvery is how long the next pass waits after one that changed nothing.
	idleEvery = time.Hour
	// rewriteShare is how many times as long as a pass took must go by before the next one.
	rewriteShare = 50
)

// Report is what a pass over the store found and did.
type Report struct {
	// Rewritten are the values that were stored again.
	Rewritten int
	// Failed are the values under other keys, or plain, that could not be stored again, since they cannot be read.
	Failed int
	// Retired are the ids that the record forgot: no value in the store is sealed under them. "" stands for plain values.
	Retired []string
	// Took is how long the pass took.
	Took time.Duration
}

// Run puts values again that are not sealed under the present key, until ctx ends or, on an engine of this process,
// until there are none. On an engine that managers share it looks through all values after its start, and again
// settleAfter a pass after which the record forgot a key. done, when set, is called after each pass, with the error that
// ended it early. Any other pass comes after a minute at least, and after an hour if the one before had nothing to put.
func (s *Store) Run(ctx context.Context, done func(Report, error)) {
	shared := s.Capabilities().Shared
	var next time.Time
	followed := false // the last pass was to be followed soon
	for {
		due, err := s.look(ctx)
		if err != nil && ctx.Err() == nil && done != nil {
			done(Report{}, err)
		}
		if due && err == nil && !time.Now().Before(next) {
			var r Report
			if r, err = s.Rewrite(ctx); ctx.Err() != nil {
				return
			}
			if done != nil {
				done(r, err)
			}
			pause := rewriteShare * r.Took
			switch {
			case err != nil:
			case !s.settled.Load() && !followed:
				pause = settleAfter
			case r.Rewritten == 0:
				pause = max(pause, idleEvery)
			}
			followed = err == nil && !s.settled.Load()
			next = time.Now().Add(pause)
			due = err != nil || len(s.Listed()) > 1
		}
		if !shared && !due && err == nil {
			return
		}
		if store.Wait(ctx, checkEvery) != nil {
			return
		}
	}
}

// look makes sure that the record lists what this manager puts values under. It reports whether values must be stored
// again: this manager's key is the one of the newest start, and there may be values under others.
func (s *Store) look(ctx context.Context) (due bool, err error) {
	read := func(tx store.Tx) (*record, error) {
		r, err := get(tx)
		if err == nil && r == nil && !s.opts.DecryptOnly {
			r = &record{Version: recordVersion, Current: s.opts.Ring.Current(), Keys: make(map[string][]byte), Plain: true}
		}
		return r, err
	}
	var r *record
	err = s.Store.View(ctx, func(tx store.Tx) (err error) {
		r, err = read(tx)
		return err
	})
	if err == nil && r != nil && !s.lists(r) {
		err = s.Store.Update(ctx, func(tx store.Tx) error {
			var err error
			if r, err = read(tx); err == nil && r != nil && s.list(r) {
				err = r.put(tx)
			}
			return err
		})
	}
	if err != nil || r == nil {
		return false, err
	}
	s.see(r)
	return !s.opts.DecryptOnly && r.Current == s.opts.Ring.Current() && len(s.Listed()) > 1, nil
}

// Rewrite puts all values again that are not sealed under the present key, a few in each transaction. When none is left,
// it takes the other keys off the record.
func (s *Store) Rewrite(ctx context.Context) (Report, error) {
	began := time.Now()
	p := pass{s: s, began: began, left: make(map[string]bool)}
	err := p.run(ctx)
	p.report.Took = time.Since(began)
	return p.report, err
}

// pass is one pass over the store.
type pass struct {
	s      *Store
	began  time.Time
	report Report
	left   map[string]bool // ids that must stay on the record
	plain  bool            // there may be plain values, which KeyIndex does not have
}

func (p *pass) run(ctx context.Context) error {
	p.plain = slices.Contains(p.s.Listed(), "")
	for i := range p.s.opts.Places {
		place := &p.s.opts.Places[i]
		indexes := place.Indexes
		if place.Unindexed {
			indexes = []string{KeyIndex}
		}
		for _, index := range indexes {
			if err := p.index(ctx, place, index); err != nil {
				return err
			}
		}
	}
	if err := p.scrub(ctx); err != nil {
		return err
	}
	return p.retire(ctx)
}

// scrub lets the engine remove what it still has of values that were stored again, before the record forgets their keys. So a
// pass that ends in between is repeated.
func (p *pass) scrub(ctx context.Context) error {
	scrub := p.s.Store.Capabilities().Scrub
	retires := slices.ContainsFunc(p.s.Listed(), func(id string) bool { return id != p.s.opts.Ring.Current() && !p.left[id] })
	if scrub == nil || !retires && p.report.Rewritten == 0 {
		return nil
	}
	return scrub(ctx, func(ctx context.Context) error {
		return p.s.Store.Update(ctx, func(tx store.Tx) error {
			r, err := get(tx)
			if err != nil || r == nil {
				return err
			}
			return r.put(tx)
		})
	})
}

// index goes through an index.
func (p *pass) index(ctx context.Context, place *Place, index string) error {
	var after *store.Hit
	for {
		began := time.Now()
		var hits []store.Hit
		var old []found
		err := p.s.Store.View(ctx, func(tx store.Tx) (err error) {
			old = nil
			if hits, err = tx.Scan(place.Collection, index, store.Range{After: after, Limit: rewriteChunk}); err != nil {
				return err
			}
			ids := make([]store.ID, len(hits))
			for i, h := range hits {
				ids[i] = store.ID{Collection: place.Collection, Key: h.Key}
			}
			if err := tx.Prefetch(ids); err != nil {
				return err
			}
			for _, h := range hits {
				found, err := p.find(tx, place, h)
				if err != nil {
					return err
				}
				old = append(old, found...)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := p.putAgain(ctx, old); err != nil {
			return err
		}
		if len(hits) < rewriteChunk {
			return nil
		}
		after = &hits[len(hits)-1]
		// Callers get at least every other moment of the engine.
		if err := store.Wait(ctx, time.Since(began)); err != nil {
			return err
		}
	}
}

// found is a value that is not sealed under the present key.
type found struct {
	place *Place
	hit   store.Hit // with a key only, for one that another record led to
	size  int
}

// find returns what must be stored again of the record that a hit leads to and of those that only it leads to.
func (p *pass) find(tx store.Tx, place *Place, h store.Hit) (out []found, err error) {
	value, old, err := p.stale(tx, place.Collection, h.Key)
	if err != nil || value == nil {
		return nil, err
	}
	if old {
		out = append(out, found{place, h, len(value)})
	}
	if !p.plain || place.Unindexed {
		return out, nil
	}
	plain, err := OpenValue(p.s.opts.Ring, place.Collection, h.Key, value)
	if err != nil {
		return out, nil // putAgain reports it
	}
	_, more, err := place.Describe(h, plain)
	if err != nil {
		return out, nil
	}
	for _, id := range more {
		value, old, err := p.stale(tx, id.Collection, id.Key)
		if err != nil {
			return nil, err
		}
		if other, ok := p.s.places[id.Collection]; ok && old {
			out = append(out, found{other, store.Hit{Key: id.Key}, len(value)})
		}
	}
	return out, nil
}

// stale reads a stored value, nil when there is none or the engine cannot read it, and reports whether it is not sealed
// under the present key.
func (p *pass) stale(tx store.Tx, c store.Collection, key string) (value []byte, old bool, err error) {
	value, err = tx.Get(c, key)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrUnreadable) {
		return nil, false, nil
	}
	id, ok := crypt.KeyOf(value)
	return value, err == nil && (!ok || id != p.s.opts.Ring.Current()), err
}

// putAgain puts values again, in transactions of about rewriteBytes.
func (p *pass) putAgain(ctx context.Context, old []found) error {
	for len(old) > 0 {
		n, size := 0, 0
		for n < len(old) && (n == 0 || size+old[n].size <= rewriteBytes) {
			size += old[n].size
			n++
		}
		var rewritten, failed int
		var left []string
		err := p.s.Store.Update(ctx, func(tx store.Tx) error {
			rewritten, failed, left = 0, 0, left[:0]
			for _, f := range old[:n] {
				c, key := f.place.Collection, f.hit.Key
				value, old, err := p.stale(tx, c, key)
				if err != nil {
					return err
				}
				if value == nil || !old {
					continue
				}
				var entries []store.Entry
				plain, err := OpenValue(p.s.opts.Ring, c, key, value)
				if err == nil {
					entries, err = f.place.entries(f.hit, plain, p.s.opts.Ring.Current())
				}
				if err != nil {
					failed++
					id, _ := crypt.KeyOf(value)
					left = append(left, id)
					continue
				}
				if err := tx.Put(c, key, p.s.opts.Ring.Seal(nil, string(c), key, plain), entries...); err != nil {
					return err
				}
				rewritten++
			}
			return nil
		})
		if err != nil {
			return err
		}
		p.report.Rewritten += rewritten
		p.report.Failed += failed
		p.s.rewritten.Add(uint64(rewritten))
		for _, id := range left {
			p.left[id] = true
		}
		old = old[n:]
	}
	return nil
}

// retire takes the keys off the record that no value needs, unless another manager has chosen another key meanwhile.
func (p *pass) retire(ctx context.Context) error {
	current := p.s.opts.Ring.Current()
	var retired []string
	var seen *record
	err := p.s.Store.Update(ctx, func(tx store.Tx) error {
		retired, seen = nil, nil
		r, err := get(tx)
		if err != nil || r == nil || r.Current != current {
			return err
		}
		for _, id := range slices.Sorted(maps.Keys(r.Keys)) {
			if id != current && !p.left[id] {
				delete(r.Keys, id)
				retired = append(retired, id)
			}
		}
		if r.Plain && !p.left[""] {
			r.Plain = false
			retired = append(retired, "")
		}
		if seen = r; len(retired) == 0 {
			return nil
		}
		return r.put(tx)
	})
	if err == nil && seen != nil {
		p.report.Retired = retired
		if p.s.Capabilities().Shared {
			p.s.settle(p.began, len(retired) > 0)
		}
		p.s.see(seen)
	}
	return err
}

// settle records a pass. One that made the record forget keys may have come before the last values of a manager that ended.
func (s *Store) settle(began time.Time, forgot bool) {
	if forgot {
		s.forgot = time.Now()
	}
	s.settled.Store(!forgot && (s.settled.Load() || began.Sub(s.forgot) >= settleAfter))
}
