// Package front lets scans that are made again and again start where the live entries of a range begin.
//
// A queue is worked off from the beginning of an index. What was taken is dead, but the servers of some engines keep
// it for minutes, until they vacuum or compact, and each scan from the beginning walks through all of it. So a scan
// starts at the front: the position before which an earlier one found nothing.
//
// Entries that this process adds before the front move it back. Those of other processes are found by a scan of the
// whole range. It comes from time to time, the less often the longer it takes, and sooner when a scan from the front
// finds nothing. The front also lags a moment behind what was found, since a transaction that began earlier may end
// later. So no entry is missed for long, and without other processes the order stays exact.
package front

import (
	"slices"
	"sync"
	"time"
)

const (
	// least and most bound how long a scan of the whole range counts, and share is how many times as long as it took.
	least, most = 100 * time.Millisecond, time.Second
	share       = 20
	// A scan from the front that finds nothing asks for the whole range when the last scan of that is ago as long as
	// shareOfEmpty times what it took, at most mostOfEmpty.
	shareOfEmpty = 8
	mostOfEmpty  = 400 * time.Millisecond
	// lag is how long the front lags behind what was found.
	lag = 100 * time.Millisecond
	// cheap is what a scan of the whole range may take to be made at once when one from the front finds too little.
	cheap = 2 * time.Millisecond
	// maxRanges bounds the ranges of an index that have a front, and maxAdded the additions that are remembered.
	maxRanges = 64
	maxAdded  = 10000
)

// Fronts has the fronts of all ranges, by what names an index. The zero value is ready for use, and safe for concurrent use.
type Fronts[I comparable] struct {
	mu     sync.Mutex
	ranges map[I]map[string]*front // by index, then by where they begin
	// added is a ring of what this process added last. The next addition has the number next and the index next%maxAdded.
	added []entry[I]
	next  uint64
	// Now is time.Now if nil. Tests may set it before the first use.
	Now func() time.Time
}

type entry[I comparable] struct {
	index I
	at    string
}

// front is that of a range. The range's end does not matter.
type front struct {
	at    string        // nothing lives between the beginning and here
	next  string        // what at becomes after a moment; empty if nothing
	found time.Time     // when next was found
	top   string        // the last position that the last scan with hits returned
	whole time.Time     // the moment whose state the last scan of the whole range saw
	cost  time.Duration // of that scan
	empty bool          // a scan from the front found nothing since, and asked for no more
}

func (f *Fronts[I]) now() time.Time {
	if f.Now != nil {
		return f.Now()
	}
	return time.Now()
}

// Mark is a moment. A scan has one that is no later than the state that it reads, so that Fronts knows what this process
// added since.
type Mark struct {
	next uint64
	at   time.Time
}

// Mark returns the present moment.
func (f *Fronts[I]) Mark() Mark {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Mark{f.next, f.now()}
}

// Since returns how much later the mark is than another one.
func (m Mark) Since(other Mark) time.Duration { return m.at.Sub(other.at) }

// Holds reports whether what was found from one position of an index to another at a moment may still be taken for what is
// there: this process has added nothing since, and the moment is so recent that additions of others may be missed.
func (f *Fronts[I]) Holds(m Mark, index I, from, to string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	since, known := f.since(m)
	return known && f.now().Sub(m.at) < least &&
		!slices.ContainsFunc(since, func(e entry[I]) bool { return e.index == index && e.at >= from && e.at <= to })
}

// Scan is a scan of a range that begins at a fixed position of an index.
type Scan[I comparable] struct {
	// From is where to start, and Whole whether that is the beginning of the range.
	From  string
	Whole bool

	fronts *Fronts[I]
	mark   Mark
	index  I
	from   string
	began  time.Time
}

// Begin returns a scan to make, of the whole range if the caller wants that.
func (f *Fronts[I]) Begin(m Mark, index I, from string, whole bool) Scan[I] {
	s := Scan[I]{From: from, Whole: true, fronts: f, mark: m, index: index, from: from, began: f.now()}
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.ranges[index][from]
	if r == nil {
		return s
	}
	r.ripen(s.began)
	counts := min(max(share*r.cost, least), most)
	if r.empty {
		counts = min(counts, r.pause())
	}
	if !whole && r.at > from && s.began.Before(r.whole.Add(counts)) {
		s.From, s.Whole = r.at, false
	}
	return s
}

// pause is how long after a scan of the whole range a scan from the front that finds nothing asks for another one.
func (r *front) pause() time.Duration { return min(shareOfEmpty*r.cost, mostOfEmpty) }

// ripen moves the front to what was found a moment ago.
func (r *front) ripen(now time.Time) {
	if r.next != "" && now.Sub(r.found) >= lag {
		r.at, r.next = r.next, ""
	}
}

// End takes what the scan found: how many entries, their first and last position, and to, the end of the range, empty if it
// is that of the index. few says that there were fewer than asked for. End reports whether the caller is to scan the
// whole range.
func (s Scan[I]) End(n int, first, last, to string, few bool) (again bool) {
	f := s.fronts
	now := f.now()
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.ranges[s.index][s.from]
	if r == nil {
		r = &front{at: s.from}
		f.add(s.index, s.from, r)
	}
	switch {
	case s.Whole && few && to != "" && to < r.at:
		// It says nothing of what lives between its end and the front.
	case s.Whole:
		r.cost, r.whole, r.empty = now.Sub(s.began), s.mark.at, false
	case few && r.cost < cheap:
		again = true
	case n == 0:
		again = now.Sub(r.whole) >= r.pause()
		r.empty = !again
	}
	at := first
	if n > 0 {
		r.top = last
	} else {
		// Nothing lives before the end. What others add mostly comes after what was there, so that is where to look.
		if at = r.top; to != "" {
			at = min(at, to)
		}
		at = max(at, r.at)
	}
	since, known := f.since(s.mark)
	for _, a := range since {
		if a.index == s.index && a.at >= s.from {
			at = min(at, a.at)
		}
	}
	switch {
	case at < r.at: // entries of another process
		r.at, r.next = max(at, s.from), ""
	case r.next == "" && at > r.at && known && s.From <= r.at, r.next != "" && at < r.next:
		// Else something that this scan did not see may live before at.
		r.next, r.found = at, now
	}
	return again
}

// add adds a front. Where an index has too many, all of them are dropped.
func (f *Fronts[I]) add(index I, from string, r *front) {
	if f.ranges == nil {
		f.ranges = make(map[I]map[string]*front)
	}
	if of := f.ranges[index]; of == nil || len(of) >= maxRanges {
		f.ranges[index] = make(map[string]*front)
	}
	f.ranges[index][from] = r
}

// Added moves fronts back to an entry that a commit may have added before them. It must be called after the commit, whatever
// that returned, and before its caller returns.
func (f *Fronts[I]) Added(index I, at string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for from, r := range f.ranges[index] {
		if at < from {
			continue
		}
		r.at = min(r.at, at)
		if r.next != "" {
			r.next = min(r.next, at)
		}
	}
	if e := (entry[I]{index, at}); len(f.added) < maxAdded {
		f.added = append(f.added, e)
	} else {
		f.added[f.next%maxAdded] = e
	}
	f.next++
}

// since returns what was added since a moment, in any order, and whether that is all.
func (f *Fronts[I]) since(m Mark) (added []entry[I], all bool) {
	n := f.next - m.next
	if n > maxAdded {
		return f.added, false
	}
	if n == 0 {
		return nil, true
	}
	from, to := m.next%maxAdded, f.next%maxAdded
	if from < to {
		return f.added[from:to], true
	}
	return slices.Concat(f.added[from:], f.added[:to]), true
}
