package jobs

import (
	"sync"
	"time"
)

// Rates are what one manager did with the jobs of a function in the last minute.
type Rates struct {
	// Enqueued, Claimed, Completed and Failed are as in Counters.
	Enqueued, Claimed, Completed, Failed int
}

// Kinds of events that rates count.
const (
	rateEnqueued = iota
	rateClaimed
	rateCompleted
	rateFailed
	rateKinds
)

// A minute is kept in steps, and rates of at most maxRated functions.
const (
	rateStep  = 5 * time.Second
	rateSteps = int64(time.Minute / rateStep)
	maxRated  = 1000
)

// minute counts in a ring of steps.
type minute [rateSteps + 1]struct {
	step int64
	n    [rateKinds]int
}

// rates count by function.
type rates struct {
	mu     sync.Mutex
	all    map[string]*minute
	tidied int64 // the step of the last tidy
}

func rateNow() int64 { return time.Now().UnixNano() / int64(rateStep) }

func (r *rates) add(function string, kind int) { r.addAt(function, kind, rateNow()) }

func (r *rates) addAt(function string, kind int, now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.all[function]
	if m == nil {
		// Once a step is enough: where more functions are busy than fit, each event would look at all of them.
		if len(r.all) >= maxRated && r.tidied != now {
			r.tidy(now)
			r.tidied = now
		}
		if len(r.all) >= maxRated {
			return
		}
		if r.all == nil {
			r.all = make(map[string]*minute)
		}
		m = new(minute)
		r.all[function] = m
	}
	b := &m[now%(rateSteps+1)]
	if b.step != now {
		b.step, b.n = now, [rateKinds]int{}
	}
	b.n[kind]++
}

// tidy drops the functions of which nothing happened for a minute.
func (r *rates) tidy(now int64) {
	for name, m := range r.all {
		if m.sum(now) == [rateKinds]int{} {
			delete(r.all, name)
		}
	}
}

func (m *minute) sum(now int64) (n [rateKinds]int) {
	for _, b := range m {
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
	m := q.rates.all[function]
	if m == nil {
		return Rates{}
	}
	n := m.sum(rateNow())
	return Rates{Enqueued: n[rateEnqueued], Claimed: n[rateClaimed], Completed: n[rateCompleted], Failed: n[rateFailed]}
}
