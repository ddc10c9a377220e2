package mem

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/member"
	"github.com/oncegate/oncegate/manager/internal/store/state"
)

// A function that needs a record from the disk ends, the record is read without the lock, and the function runs again.
// So no transaction waits for the disk of another one. A function that needs one record after the other gets those that
// it needs from its fourth run on while it holds the lock.
const maxReruns = 3

// maxAlong bounds the hits of scans that are read together with one that a function asks for.
const maxAlong = 1000

// longRun is how many hidden entries in a row between two visible ones are worth remembering.
const longRun = 16

// errNotLoaded ends a function that needs a record from the disk.
var errNotLoaded = errors.New("mem: the record has to be read from disk first")

// loads are the records that were read from disk for a function.
type loads struct {
	// generation is that of the store before the reads. The records are right for as long as that does not change,
	// because a change since then is in the layers.
	generation uint64
	records    map[writeKey]loaded
	reruns     int
}

// loaded is what a read found: a record, an error, or neither for an absent record.
type loaded struct {
	rec *record
	err error
}

// cold returns what the disk has of a key that the layers do not have.
func (t *tx) cold(c *collection, key string) (*record, error) {
	st := t.s.state
	if st == nil || !st.MayHave(c.name, key) {
		return nil, nil
	}
	id := writeKey{c, key}
	if t.loads != nil {
		if l, ok := t.loads.records[id]; ok {
			return l.found()
		}
	}
	if t.loads == nil || t.loads.reruns < maxReruns {
		t.missed = append(t.missed, id)
		return nil, errNotLoaded
	}
	l := t.s.loadRecord(c, key)
	t.loads.keep(id, l)
	return l.found()
}

// found is what a function gets.
func (l loaded) found() (*record, error) {
	if l.err != nil {
		return nil, l.err
	}
	return l.rec, nil
}

func (l *loads) get(id writeKey) loaded {
	if l == nil {
		return loaded{}
	}
	return l.records[id]
}

func (l *loads) keep(id writeKey, found loaded) {
	if l.records == nil {
		l.records = make(map[writeKey]loaded)
	}
	l.records[writeKey{id.c, strings.Clone(id.key)}] = found
}

// version returns the version of a key that a function sees beside its own writes; nil when there is none.
func (t *tx) version(c *collection, key string) (rec *record, err error) {
	defer func() {
		if err == nil {
			t.known = writeKey{c, key}
		}
	}()
	if rec := c.find(key); rec != nil {
		if rec.gone {
			t.seen = max(t.seen, rec.seq)
			return nil, nil
		}
		return rec, nil
	}
	return t.cold(c, key)
}

// loadRecord reads a record from the state.
func (s *Store) loadRecord(c *collection, key string) loaded {
	r, err := s.state.Get(c.name, key)
	return c.loaded(key, r, err)
}

// loaded is the result of a read. A record that cannot be read can be deleted, and its entries stay.
func (c *collection) loaded(key string, r state.Record, err error) loaded {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return loaded{}
	case errors.Is(err, store.ErrUnreadable):
		return loaded{newRecord(key, 0, nil), err}
	case err != nil:
		return loaded{nil, translate(err)}
	}
	rec, err := c.newRecord(key, r.Value, r.Entries)
	return loaded{rec, err}
}

// load reads what a function lacked, and adds it to l, which may be nil.
func (s *Store) load(ctx context.Context, l *loads, missed []writeKey) (*loads, error) {
	if l == nil {
		l = new(loads)
		s.mu.Lock()
		l.generation = s.generation
		s.mu.Unlock()
	}
	slices.SortFunc(missed, func(a, b writeKey) int { return strings.Compare(a.key, b.key) })
	for i, id := range missed {
		if i%64 == 0 && ctx.Err() != nil {
			return l, ctx.Err()
		}
		if _, ok := l.records[id]; ok {
			continue
		}
		r, err := s.state.Get(id.c.name, id.key)
		s.mu.Lock() // which protects the list of indexes
		l.keep(id, id.c.loaded(id.key, r, err))
		s.mu.Unlock()
	}
	l.reruns++
	return l, nil
}

// Prefetch implements store.Tx.
func (h *handle) Prefetch(ids []store.ID) error {
	if h.t == nil {
		return errFinished
	}
	t := h.t
	if t.s.state == nil || len(ids) < 2 { // a Get does the same
		return nil
	}
	missed := len(t.missed)
	for _, id := range ids {
		c := t.s.find(id.Collection)
		if c == nil || id.Key == "" || t.find(c, id.Key) >= 0 || c.hides(id.Key) {
			continue
		}
		if _, err := t.cold(c, id.Key); errors.Is(err, state.ErrFailed) {
			return err
		}
	}
	if len(t.missed) > missed {
		return errNotLoaded
	}
	return nil
}

// PrefetchNew implements store.Tx.
func (h *handle) PrefetchNew(ids []store.ID) error { return h.Prefetch(ids) }

// scanned remembers hits on disk: a function that needs one of these records is likely to need the others.
func (t *tx) scanned(c *collection, hits []store.Hit) {
	for _, h := range hits[:min(len(hits), maxAlong-min(maxAlong, len(t.along)))] {
		t.along = append(t.along, writeKey{c, h.Key})
	}
}

// wanted is what must be read before the function runs again.
func (t *tx) wanted() []writeKey {
	for _, id := range t.missed {
		if slices.Contains(t.along, id) {
			return append(t.missed, t.along...)
		}
	}
	return t.missed
}

// scanDisk returns hits of the state that no layer hides, at most r.Limit and none after last.
func (s *Store) scanDisk(c *collection, ix *index, r store.Range, last *store.Hit) (hits []store.Hit, err error) {
	if s.state == nil || ix.onDisk == 0 {
		return nil, nil
	}
	from, to := bounds(r)
	if last != nil {
		if p := member.Join(last.SortKey, last.Key); to == "" || p < to {
			to = p
		}
	}
	start, end := ix.passed.skip(from)
	if end || to != "" && start >= to {
		return nil, nil
	}
	x, err := s.state.OpenIndex(c.name, ix.name)
	if err != nil {
		return nil, translate(err)
	}
	defer x.Close()
	// run is where a run of hidden entries begins, and length how many of them were looked at.
	run, length := from, 0
	remember := func(end string) {
		if length > 0 && run == from || length >= longRun {
			ix.passed.add(run, end)
		}
	}
	for ok := x.Seek([]byte(start)); ok; {
		ix.looked++
		if to != "" && string(x.Position()) >= to {
			break
		}
		h := x.Hit()
		if c.hides(h.Key) {
			if length++; length == 1 && run != from { // what follows an entry that stays may be known, too
				next, end := ix.passed.skip(string(x.Position()))
				if end {
					break
				}
				if next != string(x.Position()) {
					length = longRun
					ok = x.Seek([]byte(next))
					continue
				}
			}
			ok = x.Next()
			continue
		}
		remember(string(x.Position()))
		if hits = append(hits, h); len(hits) == r.Limit {
			return hits, nil
		}
		run, length = string(x.Position())+"\x00", 0
		ok = x.Next()
	}
	if err := x.Err(); err != nil {
		return nil, translate(err)
	}
	remember(to)
	return hits, nil
}
