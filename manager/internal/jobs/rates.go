package jobs

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// Rates count what one manager did with the jobs of a function.
type Rates struct {
	// Enqueued, Claimed and Completed are as in Counters. Failed jobs became dead letters. Retried jobs have another
	// attempt, since a worker asked for one or lost its lease.
	Enqueued, Claimed, Completed, Failed, Retried int64
}

// Kinds of events that rates count.
const (
	rateEnqueued = iota
	rateClaimed
	rateCompleted
	rateFailed
	rateRetried
	rateKinds
)

type kinds [rateKinds]int64

func (n *kinds) rates() Rates {
	return Rates{Enqueued: n[rateEnqueued], Claimed: n[rateClaimed], Completed: n[rateCompleted], Failed: n[rateFailed], Retried: n[rateRetried]}
}

// A minute is kept in steps, and rates of at most maxRated functions. MaxSeries of these have series of their own, until
// they have no jobs and did nothing for idleSteps.
const (
	rateStep  = 5 * time.Second
	rateSteps = int64(time.Minute / rateStep)
	maxRated  = 1000
	MaxSeries = 100
	idleSteps = int64(time.Hour / rateStep)
)

// activity is what happened to a function's jobs.
type activity struct {
	// ring counts by step.
	ring [rateSteps + 1]struct {
		step int64
		n    kinds
	}
	last int64 // the step of the last event
	// series: the function has series of its own, which count to total.
	series bool
	total  kinds
}

// rates count by function.
type rates struct {
	mu     sync.Mutex
	all    map[string]*activity
	tidied int64 // the step of the last tidy
	series int   // functions with series of their own
	other  kinds // events of functions without
}

func rateNow() int64 { return time.Now().UnixNano() / int64(rateStep) }

func (r *rates) add(function string, kind int) { r.addAt(function, kind, rateNow()) }

func (r *rates) addAt(function string, kind int, now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.of(function, now)
	if a == nil || !r.hasSeries(a) {
		r.other[kind]++
	} else {
		a.total[kind]++
	}
	if a == nil {
		return
	}
	a.last = now
	b := &a.ring[now%(rateSteps+1)]
	if b.step != now {
		b.step, b.n = now, kinds{}
	}
	b.n[kind]++
}

// of returns a function's activity, nil if there is no room for it.
func (r *rates) of(function string, now int64) *activity {
	a := r.all[function]
	if a != nil {
		return a
	}
	// Once a step is enough: where more functions are busy than fit, each event would look at all of them.
	if len(r.all) >= maxRated && r.tidied != now {
		for name, a := range r.all {
			if !a.series && a.last <= now-rateSteps {
				delete(r.all, name)
			}
		}
		r.tidied = now
	}
	if len(r.all) >= maxRated {
		return nil
	}
	if r.all == nil {
		r.all = make(map[string]*activity)
	}
	a = new(activity)
	r.all[function] = a
	return a
}

// hasSeries reports whether a function has series of its own. It gets them while there is room.
func (r *rates) hasSeries(a *activity) bool {
	if !a.series && r.series < MaxSeries {
		a.series = true
		r.series++
	}
	return a.series
}

func (a *activity) sum(now int64) (n kinds) {
	for _, b := range a.ring {
		if b.step > now-rateSteps {
			for kind := range n {
				n[kind] += b.n[kind]
			}
		}
	}
	return n
}

// LastMinute returns what this queue, not the whole store, did with a function's jobs in the last minute, to within
// some seconds. It knows the 1000 functions that came first of those that were busy.
func (q *Queue) LastMinute(function string) Rates {
	q.rates.mu.Lock()
	defer q.rates.mu.Unlock()
	a := q.rates.all[function]
	if a == nil {
		return Rates{}
	}
	n := a.sum(rateNow())
	return n.rates()
}

// OtherFunctions is the name in a Series of all functions that have none of their own. No function can have it.
const OtherFunctions = "(other)"

// Series has the numbers of a function for metrics: what its jobs are now, and what this queue did with them since New,
// or since the series began.
type Series struct {
	Function
	Rates
}

// Series returns the numbers of up to MaxSeries functions, and of all others together. A function that has series keeps
// them until it has no jobs and was idle for an hour. Then they start again. Free ones go to the functions that have the
// most jobs. With more than countedCheaply jobs, the counts may be some seconds old.
func (q *Queue) Series(ctx context.Context) ([]Series, error) {
	all, err := q.allFunctions(ctx)
	if err != nil {
		return nil, err
	}
	return q.rates.seriesAt(all, rateNow()), nil
}

func (r *rates) seriesAt(all []Function, now int64) []Series {
	jobs := func(f Function) int { return f.Queued + f.Scheduled + f.Active + f.Dead }
	all = slices.DeleteFunc(slices.Clone(all), func(f Function) bool { return jobs(f) == 0 })
	slices.SortStableFunc(all, func(a, b Function) int { return cmp.Compare(jobs(b), jobs(a)) })
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, a := range r.all {
		if a.series && a.last <= now-idleSteps && !slices.ContainsFunc(all, func(f Function) bool { return f.Name == name }) {
			*a = activity{}
			r.series--
		}
	}
	out := make([]Series, 0, MaxSeries+1)
	other := Series{Function: Function{Name: OtherFunctions}, Rates: r.other.rates()}
	with := make(map[string]bool)
	for _, f := range all {
		if a := r.of(f.Name, now); a != nil && r.hasSeries(a) {
			with[f.Name] = true
			out = append(out, Series{f, a.total.rates()})
			continue
		}
		other.Queued += f.Queued
		other.Scheduled += f.Scheduled
		other.Active += f.Active
		other.Dead += f.Dead
		other.AtLeast = other.AtLeast || f.AtLeast
		other.Oldest = max(other.Oldest, f.Oldest)
	}
	for name, a := range r.all {
		if a.series && !with[name] {
			out = append(out, Series{Function{Name: name}, a.total.rates()})
		}
	}
	return append(out, other)
}
