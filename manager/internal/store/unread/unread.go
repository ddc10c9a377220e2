// Package unread helps the domain to skip records that cannot be read. Tracker counts them and reports each once, Front
// lets a search begin after many of them, and Finder finds them for an operator.
package unread

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// MaxKnown bounds the records that a Tracker remembers. Further records are counted but not reported.
const MaxKnown = 1000

// Tracker counts the unreadable records that a manager meets. It is safe for concurrent use and never blocks. A nil
// Tracker does nothing.
type Tracker struct {
	mu    sync.Mutex
	known map[store.ID]string
	met   map[store.Collection]uint64
	news  chan *store.UnreadableError
}

// New returns a tracker.
func New() *Tracker {
	return &Tracker{
		known: make(map[store.ID]string), met: make(map[store.Collection]uint64),
		news: make(chan *store.UnreadableError, 64),
	}
}

// Met reports whether err says that a record is unreadable, and counts it. It may be called in a transaction's
// function: a record that another run of the function meets again only counts twice.
func (t *Tracker) Met(err error) bool {
	var u *store.UnreadableError
	if err == nil || !errors.As(err, &u) {
		return false
	}
	if t == nil {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.met[u.Collection]++
	id := store.ID{Collection: u.Collection, Key: u.Key}
	if _, known := t.known[id]; known || len(t.known) == MaxKnown {
		return true
	}
	select {
	case t.news <- u:
		id.Key = strings.Clone(id.Key)
		t.known[id] = u.Reason
	default: // reported when it is met again
	}
	return true
}

// News delivers each record when it is met for the first time. It is never closed. A caller that does not receive from
// it misses only the news.
func (t *Tracker) News() <-chan *store.UnreadableError { return t.news }

// Known returns the records that were met and not forgotten, in order.
func (t *Tracker) Known() []*store.UnreadableError {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*store.UnreadableError, 0, len(t.known))
	for id, reason := range t.known {
		out = append(out, &store.UnreadableError{Collection: id.Collection, Key: id.Key, Reason: reason})
	}
	slices.SortFunc(out, func(a, b *store.UnreadableError) int {
		return cmp.Or(cmp.Compare(a.Collection, b.Collection), cmp.Compare(a.Key, b.Key))
	})
	return out
}

// Forget removes a record that is deleted or can be read again.
func (t *Tracker) Forget(c store.Collection, key string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.known, store.ID{Collection: c, Key: key})
}

// Count is what a Tracker knows about a collection.
type Count struct {
	// Known records, at most MaxKnown in all collections.
	Known int
	// Met is how often an unreadable record was met.
	Met uint64
}

// Counts returns the counts of the collections that had any.
func (t *Tracker) Counts() map[store.Collection]Count {
	out := make(map[store.Collection]Count)
	if t == nil {
		return out
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for c, n := range t.met {
		out[c] = Count{Met: n}
	}
	for id := range t.known {
		c := out[id.Collection]
		c.Known++
		out[id.Collection] = c
	}
	return out
}

// Front remembers how far from its beginning an index has only records to skip. A search of bounded length can begin
// after them and so passes them in the end, however many there are. An index here is any part of an index that is
// searched from its beginning; the caller chooses its name. The zero value is ready for use and safe for concurrent
// use.
type Front struct {
	mu sync.Mutex
	at map[string]front
}

type front struct {
	last  store.Hit
	until time.Time
}

const (
	// frontTTL is how long a Front is valid. A record that can be read again, or was put in front of the others, is
	// found after this time at the latest.
	frontTTL = 5 * time.Second
	// maxFronts bounds the indexes that a Front remembers.
	maxFronts = 1000
)

// After returns the hit after which to begin; nil for the beginning.
func (f *Front) After(index string) *store.Hit {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, ok := f.at[index]
	if !ok {
		return nil
	}
	if time.Now().After(at.until) {
		delete(f.at, index)
		return nil
	}
	return &at.last
}

// Pass records that a search which began at After found nothing usable up to and including last.
func (f *Front) Pass(index string, last store.Hit) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, ok := f.at[index]
	if !ok {
		if f.at == nil || len(f.at) >= maxFronts {
			f.at = make(map[string]front)
		}
		at.until = time.Now().Add(frontTTL)
	}
	at.last = last
	f.at[index] = at
}

// Lead collects the hits at the beginning of a search that it could not use: their records are missing, cannot be read,
// or do not belong to the search.
type Lead struct {
	last store.Hit
	over bool
}

// See is called for the hits in order. used says whether the search could use the hit.
func (l *Lead) See(h store.Hit, used bool) {
	if l.over = l.over || used; !l.over {
		l.last = h
	}
}

// Leads reports whether there were hits and none could be used so far.
func (l *Lead) Leads() bool { return !l.over && l.last.Key != "" }

// Pass lets the next search begin after the unusable hits.
func (l *Lead) Pass(f *Front, index string) {
	if l.last.Key != "" {
		f.Pass(index, l.last)
	}
}
