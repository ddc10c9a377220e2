package etcd

import (
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/front"
	"github.com/oncegate/oncegate/manager/internal/store/internal/member"
	"github.com/oncegate/oncegate/manager/internal/store/internal/overlay"
)

const (
	// A claim within aheadWithin of the last one of its range reads aheadTimes as many records as it needs, at
	// most mostAhead more.
	aheadWithin = 50 * time.Millisecond
	aheadTimes  = 4
	mostAhead   = 2 * maxReads
	// maxUpcoming bounds the ranges of which something is known.
	maxUpcoming = 64
)

// ahead knows what comes next in ranges that are claimed again and again. A claim then needs no read. It guesses that the
// records are as they were, and its commit compares their revisions.
type ahead struct {
	mu     sync.Mutex
	ranges map[string]*upcoming // by where they begin and end
}

// upcoming is what comes next in a range. The records are remembered like those that this process wrote (see recent), so
// those that it changes meanwhile are not taken for what they were.
type upcoming struct {
	name    string
	claimed front.Mark // when the range was claimed last
	mark    front.Mark
	hits    []store.Hit
	with    map[store.ID]*mvccpb.KeyValue // the records of Range.With, as they were read; nil for an absent one
}

// of returns what is known of a range, which the caller may change while it holds the lock.
func (a *ahead) of(name string) *upcoming {
	u := a.ranges[name]
	if u == nil {
		if a.ranges == nil || len(a.ranges) >= maxUpcoming {
			a.ranges = make(map[string]*upcoming)
		}
		u = &upcoming{name: name}
		a.ranges[name] = u
	}
	return u
}

// take removes and returns the next hits of a range, with the records of Range.With, if there are as many as the limit.
// more is how many the caller is to read ahead otherwise.
func (a *ahead) take(f *front.Fronts[string], now front.Mark, name, prefix, from string, limit int) (hits []store.Hit, with map[store.ID]*mvccpb.KeyValue, more int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.of(name)
	if now.Since(u.claimed) < aheadWithin {
		more = min(aheadTimes*limit, mostAhead)
	}
	u.claimed = now
	if len(u.hits) < limit || !f.Holds(u.mark, prefix, from, hitKey(prefix, u.hits[len(u.hits)-1])) {
		u.hits = nil
		return nil, nil, more
	}
	hits, u.hits = u.hits[:limit:limit], u.hits[limit:]
	return hits, u.with, 0
}

// put takes what was read ahead.
func (a *ahead) put(next *upcoming) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.of(next.name)
	u.mark, u.hits, u.with = next.mark, next.hits, next.with
}

// clear forgets everything.
func (a *ahead) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ranges = nil
}

// inParts reports whether a stored record is malformed or has its value in parts.
func inParts(b []byte) bool {
	_, _, rest, why := split(b)
	return why != "" || rest[0] == valueInParts
}

// hitKey is the key of a hit's index entry.
func hitKey(prefix string, h store.Hit) string { return prefix + member.Join(h.SortKey, h.Key) }

// claimAhead claims what was read ahead. ok is false if there is not enough of it.
func (t *tx) claimAhead(c store.Collection, index string, hits []store.Hit, with map[store.ID]*mvccpb.KeyValue, r store.Range) (ok bool, err error) {
	found := make([]*mvccpb.KeyValue, len(hits))
	for i, h := range hits {
		if found[i] = t.s.recent.take(t.s.recordKey(c, h.Key)); found[i] == nil || t.Loaded(c, h.Key) {
			return false, nil
		}
		// This process may have changed it.
		if _, entries, _, _ := split(found[i].Value); !slices.Contains(entries, store.Entry{Index: index, SortKey: h.SortKey}) {
			return false, nil
		}
	}
	others, err := t.Unread(r.With)
	if err != nil {
		return false, err
	}
	for _, o := range others {
		if _, known := with[store.ID{Collection: o.Collection, Key: o.Key}]; !known {
			return false, nil
		}
	}
	if !t.s.claims.TakeAll(&t.claimed, c, hits) {
		return false, nil
	}
	t.guessed = true
	for i, h := range hits {
		rec := &overlay.Record{Collection: c, Key: h.Key}
		if err := t.preload(rec, found[i]); err != nil {
			return false, err
		}
		t.taken = append(t.taken, rec)
	}
	for _, o := range others {
		if err := t.preload(o, with[store.ID{Collection: o.Collection, Key: o.Key}]); err != nil {
			return false, err
		}
	}
	return true, nil
}

// settle ends a claim. What it read ahead is taken by the next one if it wrote all that it took. Otherwise what comes after
// would overtake the rest.
func (t *tx) settle(err error) {
	switch {
	case !t.asked:
	case err != nil || slices.ContainsFunc(t.taken, func(r *overlay.Record) bool { return !r.Written }):
		t.s.ahead.clear()
	case t.next != nil:
		t.s.ahead.put(t.next)
	}
}

// readAhead reads the records of a claim, and with them others that come next in the range.
func (t *tx) readAhead(name string, c store.Collection, records []*overlay.Record, next []store.Hit, with []store.ID) error {
	all := slices.Clone(records)
	for _, h := range next {
		all = append(all, &overlay.Record{Collection: c, Key: h.Key})
	}
	if len(next) > 0 {
		for _, id := range with {
			all = append(all, &overlay.Record{Collection: id.Collection, Key: id.Key})
		}
	}
	found, err := t.fetch(all)
	if err != nil {
		return err
	}
	if err := t.fillAll(records, found); err != nil || len(next) == 0 {
		return err
	}
	found = found[len(records):]
	var hits []store.Hit
	for i, h := range next {
		if kv := found[i]; kv == nil {
			continue // the hit is stale
		} else if !t.s.recent.put(kv) {
			break
		}
		hits = append(hits, h)
	}
	t.next = &upcoming{name: name, mark: t.mark, hits: hits, with: make(map[store.ID]*mvccpb.KeyValue, len(with))}
	for i, id := range with {
		kv := found[len(next)+i]
		if kv != nil && inParts(kv.Value) {
			t.next = nil
			break
		}
		t.next.with[id] = kv
	}
	return nil
}

// preload lets the function meet a record as etcd had it; nil if it was absent.
func (t *tx) preload(r *overlay.Record, kv *mvccpb.KeyValue) error {
	if kv != nil {
		if err := t.fill(r, kv); err != nil {
			return t.Fail(err)
		}
	}
	t.Preload(r)
	return nil
}
