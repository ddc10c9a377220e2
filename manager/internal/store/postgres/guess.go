package postgres

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/overlay"
)

const (
	// maxRecent bounds the records that are remembered, and recentBytes each of them.
	maxRecent   = 16 << 10
	recentBytes = 1 << 10
	// cautious is how many transactions read for each that met a wrong guess, its own or that of one with which it shared
	// its commit, and mostCautious how many at most. So where many of the keys are not new, one transaction in nine sends a
	// commit that is refused.
	cautious     = 8
	mostCautious = cautious * shareMost
	// clockFresh is how long the server's time is reckoned from what it last said.
	clockFresh = time.Second
	// clockBest is for how long the answer that came fastest counts more than later ones.
	clockBest = clockFresh / 2
)

// errGuessed makes the function run again with the records themselves.
var errGuessed = errors.New("postgres store: a guess was wrong or shows in the answer")

// recent remembers the records that this process wrote last. They are current unless another process changed them. A key
// that is reserved here is mostly committed here.
type recent struct {
	mu      sync.Mutex
	records map[recordName]*remembered
	order   []recordName // a ring of their names, and of names that were taken
	next    int
	wary    int // transactions that are to read
}

// remembered is a record as this process wrote it.
type remembered struct {
	value   []byte
	entries []store.Entry
	version uint32
	server  server
}

func nameOf(r *overlay.Record) recordName { return recordName{string(r.Collection), r.Key} }

// get returns what is remembered of a record, nil if nothing is.
func (r *recent) get(name recordName) *remembered {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.records[name]
}

// forget removes the records.
func (r *recent) forget(records []*overlay.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range records {
		delete(r.records, nameOf(w))
	}
}

// replace remembers the records that a transaction wrote and that keep wants, which learns what was remembered before.
func (r *recent) replace(records []*overlay.Record, version uint32, on server, keep func(w *overlay.Record, had bool) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range records {
		name := nameOf(w)
		had := r.records[name] != nil
		if had {
			delete(r.records, name)
		}
		size := len(w.Key) + len(w.Value)
		for _, e := range w.Entries {
			size += len(e.SortKey)
		}
		if !w.Present || size > recentBytes || !keep(w, had) {
			continue
		}
		if r.records == nil {
			r.records, r.order = make(map[recordName]*remembered), make([]recordName, maxRecent)
		}
		delete(r.records, r.order[r.next])
		r.records[name] = &remembered{value: slices.Clone(w.Value), entries: w.Entries, version: version, server: on}
		r.order[r.next] = name
		r.next = (r.next + 1) % maxRecent
	}
}

// trusted reports whether a transaction may guess.
func (r *recent) trusted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wary > 0 {
		r.wary--
		return false
	}
	return true
}

func (r *recent) wrong() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wary = min(r.wary+cautious, mostCautious)
}

// clock reckons the server's time for transactions that ask the server nothing before they commit. It is behind the
// server's clock by as long as the fastest of the last answers took, and never goes back while the server's does not.
type clock struct {
	mu     sync.Mutex
	server server
	said   time.Time // by the server
	at     time.Time // when its answer was here
	best   time.Time // when the answer came that counts; others may have come later
	latest time.Time // the latest time that was seen or returned
}

// saw takes the server's time, as of when it sent an answer that has arrived now.
func (c *clock) saw(on server, said time.Time) {
	at := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.said.Add(at.Sub(c.at))
	switch {
	case c.server != on || known.Sub(said) > clockFresh || c.latest.Sub(said) > clockFresh: // another clock, or it was set back
		c.server, c.said, c.best, c.latest = on, said, at, said
	case !said.Before(known) || at.Sub(c.best) > clockBest:
		c.said, c.best = said, at
	default:
		c.said = known // the server is there, and its clock runs
	}
	c.at = at
	if said.After(c.latest) {
		c.latest = said
	}
}

// now returns the time by the server's clock, in the server's precision, if that is known.
func (c *clock) now() (t time.Time, on server, known bool) {
	at := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if since := at.Sub(c.at); c.server == "" || since > clockFresh {
		return time.Time{}, "", false
	}
	t = c.said.Add(at.Sub(c.at)).Truncate(time.Microsecond)
	if t.Before(c.latest) {
		t = c.latest
	}
	c.latest = t
	return t, c.server, true
}

// Guess implements store.Guesser. The commit compares the versions of these records like those of all others.
func (t *tx) Guess(ids []store.ID) error {
	t.remember = true
	return t.guessOf(ids, true)
}

// Recall implements store.Guesser.
func (t *tx) Recall(ids []store.ID) error { return t.guessOf(ids, false) }

// guessOf takes records as they are remembered. The others are taken for absent, or read.
func (t *tx) guessOf(ids []store.ID, absent bool) error {
	if !t.guesses || t.Err != nil || !t.s.recent.trusted() {
		return t.FetchAll(ids)
	}
	at, on, known := t.s.clock.now()
	if !known {
		return t.FetchAll(ids)
	}
	records, err := t.Unread(ids)
	if err != nil {
		return err
	}
	var others []store.ID
	guessed := records[:0]
	for _, r := range records {
		if m := t.s.recent.get(nameOf(r)); m != nil && m.server == on {
			r.Stored, r.StoredValue, r.StoredEntries, r.Version = true, m.value, m.entries, int64(m.version)
		} else if !absent {
			others = append(others, store.ID{Collection: r.Collection, Key: r.Key})
			continue
		}
		guessed = append(guessed, r)
	}
	t.Preload(guessed...)
	t.guessed = t.guessed || len(guessed) > 0
	if t.guessed {
		if err := t.ranOn(on); err != nil {
			return err
		}
		if t.clock.IsZero() {
			t.clock = at
		}
	}
	return t.FetchAll(others)
}

// byValue is the version of a record that was not read, and that the commit compares by its value.
const byValue = -1

// Expect implements store.Guesser. The function meets a record as it is expected when it Gets it.
func (t *tx) Expect(records []store.Expected) error {
	if !t.guesses || t.Err != nil || !t.guessed && !t.s.recent.trusted() {
		return t.FetchAll(store.IDsOf(records))
	}
	if t.expected == nil {
		t.expected = make(map[recordName]string, len(records))
	}
	for _, r := range records {
		t.expected[recordName{string(r.Collection), r.Key}] = r.Value
	}
	return nil
}

// expects fills a record as it is expected.
func (t *tx) expects(r *overlay.Record) bool {
	value, found := t.expected[nameOf(r)]
	if !found {
		return false
	}
	r.Stored, r.StoredValue, r.Version = true, []byte(value), byValue
	t.guessed = true
	return true
}

// written remembers what the transaction wrote, if it is likely to be changed here next: what it inserted after a guess or
// claimed, and what was remembered before, such as a reservation that it extended.
func (t *tx) written(version uint32, on server) {
	t.s.recent.replace(t.Writes(), version, on, func(w *overlay.Record, had bool) bool {
		return t.remember && !w.Stored || w.Claimed || !t.guessed && had
	})
}

// guess returns errGuessed instead of an answer that may come from a guess: an error of the function, or what it found
// without writing anything. Only a commit proves a guess right.
func (t *tx) guess(err error) error {
	if !t.guessed || t.Err == nil && err == nil && len(t.Writes()) > 0 ||
		t.Err != nil && !errors.Is(t.Err, store.ErrTooLarge) {
		return err
	}
	return errGuessed
}

// refuted turns the error of a commit that wrote nothing, and perhaps has nothing to write, into errGuessed.
func (t *tx) refuted(err error) error {
	if !t.guessed || !conflict(err) && !errors.Is(err, store.ErrNoSpace) {
		return err
	}
	t.s.recent.forget(t.Records())
	t.s.recent.wrong()
	return errGuessed
}
