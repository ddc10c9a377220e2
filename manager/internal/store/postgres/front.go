package postgres

import (
	"slices"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

const (
	// frontFresh is how long after a scan from the beginning of a range claiming scans may start at its front. It bounds
	// how long they pass by an entry that another process added before it.
	frontFresh = 100 * time.Millisecond
	// frontRanges bounds the ranges of an index that have a front.
	frontRanges = 64
)

// fronts knows where the first entries of claimed ranges are. The entries of what was claimed are dead, but they stay in
// the index until the server vacuums it: a queue of some thousand jobs a second leaves hundreds of pages of them at the
// beginning of its range, and each claiming scan from there walks through all of them.
//
// A claiming scan starts at the first hit of an earlier one, its front. Entries that this process added before the front
// move it back. Those of other processes are found by the scan from the beginning that comes every frontFresh, and by the
// one that follows when a scan from the front has fewer hits than it may have. So no job stays behind, and without other
// processes the order stays exact.
type fronts struct {
	mu sync.Mutex
	m  map[indexName][]*front
}

type indexName struct{ collection, index string }

// front is the front of one range.
type front struct {
	from, to string
	at       string // sort key
	until    time.Time
	scans    []*frontScan // under way
}

// frontScan is a claiming scan that is under way.
type frontScan struct {
	fronts *fronts
	front  *front
	from   string
	whole  bool
	began  time.Time
	added  []string // the least sort key that was added since it began, if any
}

// begin returns a scan of the range, to start at its from. The caller ends it.
func (f *fronts) begin(c store.Collection, index string, r store.Range, whole bool) *frontScan {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := indexName{string(c), index}
	i := slices.IndexFunc(f.m[name], func(x *front) bool { return x.from == r.From && x.to == r.To })
	if i < 0 {
		if f.m == nil {
			f.m = make(map[indexName][]*front)
		}
		if len(f.m[name]) == frontRanges {
			delete(f.m, name) // the scans under way then end without a result
		}
		i = len(f.m[name])
		f.m[name] = append(f.m[name], &front{from: r.From, to: r.To})
	}
	s := &frontScan{fronts: f, front: f.m[name][i], from: r.From, whole: true, began: time.Now()}
	if !whole && s.began.Before(s.front.until) {
		s.from, s.whole = s.front.at, false
	}
	s.front.scans = append(s.front.scans, s)
	return s
}

// end takes the hits of the scan; full says that they are as many as it may have. Without that the range is short, and
// the next scan starts at its beginning.
func (s *frontScan) end(hits []store.Hit, full bool) {
	s.fronts.mu.Lock()
	defer s.fronts.mu.Unlock()
	f := s.front
	f.scans = slices.DeleteFunc(f.scans, func(x *frontScan) bool { return x == s })
	switch {
	case !full || len(hits) == 0:
		f.until = time.Time{}
		return
	case s.whole:
		f.until = s.began.Add(frontFresh)
	}
	f.at = slices.Min(append(s.added, hits[0].SortKey))
}

// added moves the fronts back behind which a commit may have added entries. It must be called after the commit, whatever
// that returned, and before its caller returns.
func (f *fronts) added(c *changes) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, what := range c.entWhat {
		if what == remove {
			continue
		}
		for _, x := range f.m[indexName{c.entColl[i], c.entNewIdx[i]}] {
			key := c.entNewSort[i]
			if string(key) < x.from || x.to != "" && string(key) >= x.to {
				continue
			}
			if string(key) < x.at {
				x.at = string(key)
			}
			for _, s := range x.scans {
				if len(s.added) == 0 || string(key) < s.added[0] {
					s.added = []string{string(key)}
				}
			}
		}
	}
}
