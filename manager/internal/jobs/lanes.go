package jobs

import (
	"cmp"
	"slices"
	"strings"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// lane is a part of an index from which queued jobs are claimed.
type lane struct {
	index    string
	from, to string
	skip     int // bytes of the sort key before priority and run_at
	after    *store.Hit
	lead     unread.Lead
	// found is what search found, for the next claiming scan.
	found    []store.Hit
	searched bool
	// quota bounds the jobs of the lane's function, nil if nothing does.
	quota *quota
	// line, if set, has the lane's jobs, which have concurrency keys. The fields above do not count then.
	line *keyLine
	// key, if set, is the concurrency key whose jobs the lane has.
	key *lineKey
}

func functionLane(f string) *lane {
	from, to := functionRange(f, classQueued)
	return &lane{index: idxFunction, from: from, to: to, skip: len(from)}
}

// onlyLane returns the lane of a claim that has to search a single one, else nil.
func onlyLane(functions []string, set settings) *lane {
	switch {
	case len(functions) == 0 && len(set) == 0:
		return &lane{index: idxQueued}
	case len(functions) == 1 && set.find(functions[0]) == nil:
		return functionLane(functions[0])
	}
	return nil
}

// claimLanes returns where to search: the lanes of each function, or the one that holds all queued jobs. While anything is
// set for functions, a claim for any function searches the functions one by one, so that the jobs of those that may not
// run are not in the way, however many there are.
func (c *claimRun) claimLanes(functions []string) ([]*lane, error) {
	if l := onlyLane(functions, c.settings); l != nil {
		return []*lane{l}, nil
	}
	if len(functions) == 0 {
		var err error
		if functions, err = functionsWithJobs(c.tx, "", 0); err != nil {
			return nil, err
		}
	}
	lanes := make([]*lane, 0, len(functions))
	for _, f := range functions {
		s := c.settings.find(f)
		if s == nil {
			lanes = append(lanes, functionLane(f))
			continue
		}
		quota, err := c.quotaOf(s)
		if err != nil && !c.q.opt.Unreadable.Met(err) {
			return nil, err
		}
		if err != nil || !s.paused.IsZero() || quota.left == 0 {
			continue
		}
		l := functionLane(f)
		l.quota = quota
		if lanes = append(lanes, l); s.keyed != 0 {
			lanes = append(lanes, c.keyedLane(s, quota))
		}
	}
	return lanes, nil
}

// search makes the next claiming scan in advance, and reads a record with it.
func (l *lane) search(tx store.Tx, limit int, with store.ID) (err error) {
	l.found, err = tx.Scan(colJobs, l.index, store.Range{From: l.from, To: l.to, Limit: limit, Claim: true, With: []store.ID{with}})
	l.searched = true
	if len(l.found) > 0 {
		l.after = &l.found[len(l.found)-1]
	}
	return err
}

func (l *lane) scan(tx store.Tx, limit int, claim bool) ([]laneHit, error) {
	if l.quota != nil {
		limit = min(limit, l.quota.left)
	}
	if limit == 0 {
		return nil, nil
	}
	if l.line != nil {
		return l.line.next(limit, claim)
	}
	var hits []store.Hit
	if l.searched && claim {
		hits = l.found
		l.found, l.searched = nil, false
	} else {
		var err error
		if hits, err = tx.Scan(colJobs, l.index, store.Range{From: l.from, To: l.to, After: l.after, Limit: limit, Claim: claim}); err != nil {
			return nil, err
		}
		if claim && len(hits) > 0 {
			l.after = &hits[len(hits)-1]
		}
	}
	out := make([]laneHit, len(hits))
	for i, h := range hits {
		out[i] = laneHit{h, l}
	}
	return out, nil
}

// skipAhead lets a lane that found nothing usable so far continue where an earlier search gave up. give says that this
// search gives up.
func (l *lane) skipAhead(f *unread.Front, give bool) {
	if l.line != nil {
		l.line.skipAhead(f, give)
		return
	}
	if !l.lead.Leads() {
		return
	}
	name := l.index + "\x00" + l.from
	at := f.After(name)
	switch {
	case at != nil && (at.SortKey > l.after.SortKey || at.SortKey == l.after.SortKey && at.Key > l.after.Key):
		l.after = at
	case give:
		l.lead.Pass(f, name)
	}
}

// candidates returns the next hits of the lanes in claim order.
func (c *claimRun) candidates(lanes []*lane, need int) ([]laneHit, error) {
	for len(lanes) > 1 {
		hits, open, err := c.merged(lanes, need)
		if err != nil || len(hits) > 0 || len(open) == len(lanes) {
			return hits, err
		}
		// Other managers are claiming all of the first jobs, and their lanes have no others, so the rest is next.
		lanes = open
	}
	if len(lanes) == 0 {
		return nil, nil
	}
	return lanes[0].scan(c.tx, need, true)
}

// laneHit is a hit of a lane.
type laneHit struct {
	store.Hit
	lane *lane
}

// rank is a hit's place in the order of claims.
type rank struct {
	level string // the priority
	turn  int    // the place among the lane's hits of this priority
	start int    // the lane's place in a turn
	rest  string // run_at and place
	key   string
}

func (a rank) compare(b rank) int {
	return cmp.Or(strings.Compare(a.level, b.level), a.turn-b.turn, a.start-b.start, strings.Compare(a.rest, b.rest), strings.Compare(a.key, b.key))
}

// merged returns hits of several lanes, and the lanes that may have more for this claim. It first finds out how many of
// each lane are among the next hits, and then claims only those, because an engine hides the hits of a claiming scan
// from other claimers.
//
// Within a priority, lanes of functions that the claim names take turns. Which begins is random, so that claims of one
// job are fair as well.
func (c *claimRun) merged(lanes []*lane, need int) (hits []laneHit, open []*lane, err error) {
	type candidate struct {
		rank
		lane int
	}
	var all []candidate
	found := make([][]laneHit, len(lanes))
	first := int(c.turn * float64(len(lanes)))
	collect := func(limit func(lane int) int, claim bool) error {
		all = all[:0]
		for i, l := range lanes {
			n := limit(i)
			if n == 0 {
				continue
			}
			var err error
			if found[i], err = l.scan(c.tx, n, claim); err != nil {
				return err
			}
			var last rank
			for _, h := range found[i] {
				own := h.SortKey[h.lane.skip:]
				level := min(len(own), priorityBytes)
				r := rank{level: own[:level], rest: own[level:], key: h.Key}
				if l.line != nil && r.level < last.level {
					r.level = last.level // keys take turns whatever their jobs' priorities
				}
				if c.named {
					r.start = (i - first + len(lanes)) % len(lanes)
					if r.level == last.level {
						r.turn = last.turn + 1
					}
				}
				last = r
				all = append(all, candidate{r, i})
			}
		}
		slices.SortFunc(all, func(a, b candidate) int { return a.compare(b.rank) })
		return nil
	}
	if err := collect(func(int) int { return need }, false); err != nil {
		return nil, nil, err
	}
	share := make([]int, len(lanes))
	for _, x := range all[:min(need, len(all))] {
		share[x.lane]++
	}
	if err := collect(func(i int) int { return share[i] }, true); err != nil {
		return nil, nil, err
	}
	for i, l := range lanes {
		if share[i] == 0 || len(found[i]) > 0 {
			open = append(open, l)
		}
	}
	hits = make([]laneHit, len(all))
	for i, x := range all { // the hits of a line are not in the order of their ranks
		hits[i], found[x.lane] = found[x.lane][0], found[x.lane][1:]
	}
	return hits, open, nil
}
