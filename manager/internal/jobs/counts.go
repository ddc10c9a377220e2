package jobs

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Function describes one function.
type Function struct {
	Name string
	// Paused: no jobs are delivered, since PausedAt.
	Paused   bool
	PausedAt time.Time
	// Queued, Scheduled, Active and Dead count its jobs in these states. They are exact up to MaxCounted in each state, and
	// as long as there are no more than MaxCountedTogether of all functions.
	Queued, Scheduled, Active, Dead int
	// AtLeast: there are more jobs than were counted.
	AtLeast bool
	// Oldest is for how long the queued job that waits longest could have run, of any priority; 0 without one.
	Oldest time.Duration
	// Limits are those that SetLimits has set.
	Limits Limits
	// DeadAt is when the newest dead letter that was counted failed; zero without one.
	DeadAt time.Time
}

// MaxCounted is the largest count in a Function, MaxCountedTogether is how many jobs of all functions are counted one by
// one, and MaxActive is how many active jobs of all functions are looked at.
const (
	MaxCounted         = 200_000
	MaxCountedTogether = 500_000
	MaxActive          = 100_000
)

// counter counts the jobs of functions by their entries in idxFunction, without reading the jobs. It reads them page by
// page, and skips what is finished and what is beyond the bounds.
type counter struct {
	functions []Function
	more      bool // there are more functions than the limit
	examined  int
	now       time.Time // of the last page
	// oldest is when the job that waits longest in the last function could first have run.
	oldest time.Time
	// class and its count in the last function.
	class class
	n     int
}

// count counts the functions of a range of idxFunction, the first limit ones if that is positive.
func (q *Queue) count(ctx context.Context, from, to string, limit int) (*counter, error) {
	c := &counter{}
	r := store.Range{From: from, To: to, Limit: leastPage}
	for {
		var hits []store.Hit
		err := q.store.View(ctx, func(tx store.Tx) (err error) {
			c.now = now(tx)
			hits, err = tx.Scan(colJobs, idxFunction, r)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, h := range hits {
			c.add(h.SortKey)
			if limit > 0 && len(c.functions) > limit {
				c.functions, c.more = c.functions[:limit], true
				return c, nil
			}
		}
		if c.examined += len(hits); len(hits) < r.Limit {
			c.close()
			return c, nil
		}
		last := hits[len(hits)-1]
		if r.From = c.skip(last.SortKey); r.From <= last.SortKey { // empty, or the key is damaged
			r.After, r.Limit = &last, min(2*r.Limit, mostPage)
		} else {
			r.After, r.Limit = nil, max(r.Limit/2, leastPage)
		}
	}
}

// add counts the job with this sort key of idxFunction.
func (c *counter) add(sortKey string) {
	name := functionOf(sortKey)
	rest := sortKey[min(len(name)+1, len(sortKey)):]
	if len(rest) == 0 { // damaged
		return
	}
	if len(c.functions) == 0 || c.functions[len(c.functions)-1].Name != name {
		c.close()
		c.functions = append(c.functions, Function{Name: name})
		c.class = 0
	}
	f := &c.functions[len(c.functions)-1]
	if class(rest[0]) != c.class {
		c.class, c.n = class(rest[0]), 0
	}
	c.n++
	var n *int
	switch rest = rest[1:]; c.class {
	case classQueued, classKeyed:
		n = &f.Queued
		if len(rest) >= priorityBytes {
			c.oldest = earliest(c.oldest, keyTime(rest[priorityBytes:]))
		}
	case classScheduled:
		n = &f.Scheduled
	case classDead:
		n = &f.Dead
		f.DeadAt = latest(f.DeadAt, keyTime(rest))
	default: // finished
		return
	}
	if *n++; *n > MaxCounted {
		*n, f.AtLeast = MaxCounted, true
	}
}

// close completes the last function.
func (c *counter) close() {
	if len(c.functions) > 0 && !c.oldest.IsZero() {
		c.functions[len(c.functions)-1].Oldest = max(c.now.Sub(c.oldest), 0)
	}
	c.oldest = time.Time{}
}

// skip returns where to continue after a page that ends with this sort key, empty for the next entry.
func (c *counter) skip(last string) string {
	if len(c.functions) == 0 {
		return ""
	}
	f := &c.functions[len(c.functions)-1]
	full := c.n >= MaxCounted || c.examined > MaxCountedTogether
	_, end := functionRange(f.Name, c.class)
	switch c.class {
	case classQueued, classKeyed, classScheduled, classDead:
		if !full {
			return ""
		}
		f.AtLeast = true
		start := len(f.Name) + 2
		if c.class != classQueued && c.class != classKeyed || len(last) < start+priorityBytes {
			return end
		}
		// The first job of each further priority may be the oldest.
		level := binary.BigEndian.Uint16([]byte(last[start:]))
		if level == 1<<16-1 {
			return end
		}
		return last[:start] + string(binary.BigEndian.AppendUint16(nil, level+1))
	}
	if c.n < leastPage { // a few finished jobs cost less than another scan
		return ""
	}
	return end
}

// activeJobs counts the active jobs of each function. more says that it ended at MaxActive.
func (q *Queue) activeJobs(ctx context.Context) (counts map[string]int, more bool, err error) {
	counts = make(map[string]int)
	left := MaxActive
	for hits, err := range q.pages(ctx, idxActive, store.Range{Limit: store.MaxScan}) {
		if err != nil {
			return nil, false, err
		}
		for _, h := range hits {
			if f := activeFunction(h.SortKey); f != "" {
				counts[f]++
			}
		}
		if left -= len(hits); left <= 0 {
			return counts, true, nil
		}
	}
	return counts, false, nil
}

// FunctionPage is one page of functions.
type FunctionPage struct {
	Functions []Function
	// Cursor leads to the next page; empty when this is the last one.
	Cursor string
}

// Functions lists, by name, the functions that have jobs or limits, or are paused. limit:
// 1 to MaxLimit, 100 when 0.
func (q *Queue) Functions(ctx context.Context, limit int, after string) (FunctionPage, error) {
	limit, err := PageLimit(limit)
	if err := cmp.Or(err, checkFilter("cursor", after)); err != nil {
		return FunctionPage{}, err
	}
	from := ""
	if after != "" {
		from = afterFunction(after)
	}
	c, err := q.functions(ctx, from, "", limit)
	if err != nil {
		return FunctionPage{}, err
	}
	all := slices.DeleteFunc(c.functions, func(f Function) bool { return f.Name <= after })
	if len(all) <= limit && !c.more {
		return FunctionPage{Functions: all}, nil
	}
	return FunctionPage{all[:limit], all[limit-1].Name}, nil
}

// Function describes one function; one without jobs that is not paused has zeros.
func (q *Queue) Function(ctx context.Context, name string) (Function, error) {
	if err := CheckName("function", name); err != nil {
		return Function{Name: name}, err
	}
	c, err := q.functions(ctx, name+"\x00", afterFunction(name), 1)
	if err != nil {
		return Function{Name: name}, err
	}
	for _, f := range c.functions {
		if f.Name == name {
			return f, nil
		}
	}
	return Function{Name: name}, nil
}

// functions counts the functions of a range of idxFunction, the first limit ones if that is positive, and adds all
// functions that are paused, have limits or active jobs. They are in the order of their names.
func (q *Queue) functions(ctx context.Context, from, to string, limit int) (*counter, error) {
	c, err := q.count(ctx, from, to, limit)
	if err != nil {
		return nil, err
	}
	var set settings
	if err := q.store.View(ctx, func(tx store.Tx) error {
		set, err = loadSettings(tx)
		return err
	}); err != nil && !q.opt.Unreadable.Met(err) {
		return nil, err
	}
	active, more, err := q.activeJobs(ctx)
	if err != nil {
		return nil, err
	}
	all := c.functions
	for name := range active {
		all = append(all, Function{Name: name})
	}
	for _, s := range set {
		if !s.paused.IsZero() || s.limits != (Limits{}) {
			all = append(all, Function{Name: s.name})
		}
	}
	slices.SortStableFunc(all, func(a, b Function) int { return cmp.Compare(a.Name, b.Name) })
	all = slices.CompactFunc(all, func(a, b Function) bool { return a.Name == b.Name })
	for i := range all {
		f := &all[i]
		f.Active = active[f.Name]
		f.AtLeast = f.AtLeast || more && f.Active > 0
		if s := set.find(f.Name); s != nil {
			f.Paused, f.PausedAt, f.Limits = !s.paused.IsZero(), s.paused, s.limits
		}
	}
	c.functions = all
	return c, nil
}

// countedCheaply is how many jobs may be looked at for each question. A larger count is used for countShare times as long
// as it took, so that it takes at most that part of the time.
const (
	countedCheaply = 10_000
	countShare     = 20
)

// knownFunctions is the last count of all functions.
type knownFunctions struct {
	busy  chan struct{} // holds a value while somebody counts
	all   []Function
	until time.Time
}

// allFunctions returns all functions by name. With more than countedCheaply jobs, the counts may be some seconds old.
func (q *Queue) allFunctions(ctx context.Context) ([]Function, error) {
	k := &q.known
	select {
	case k.busy <- struct{}{}: // callers that ask meanwhile share the count
		defer func() { <-k.busy }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	began := time.Now()
	if began.Before(k.until) {
		return k.all, nil
	}
	c, err := q.functions(ctx, "", "", 0)
	if err != nil {
		return nil, err
	}
	k.all, k.until = c.functions, time.Time{}
	if c.examined > countedCheaply {
		k.until = began.Add(countShare * time.Since(began))
	}
	return k.all, nil
}
