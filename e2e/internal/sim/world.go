package sim

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing/synctest"
	"time"
)

// World is one simulated world: everything in it happens in the bubble's virtual time, and
// everything that is decided is decided by the seed. All its parts run in one goroutine, the
// loop; the managers' goroutines do their work between two events and report to the loop.
type World struct {
	seed   uint64
	plan   Plan
	rnd    *rand.Rand
	began  time.Time
	queue  eventQueue
	serial uint64

	line     timeline
	failures []string

	managers  []*manager
	proxies   []*proxy
	upstream  upstream
	ops       []*operation
	history   history
	spoiled   int  // records that cannot be read
	strays    int  // reservations of strangers' that nobody may end
	healed    bool // the adversary has left
	rushes    int
	cuts      int               // connections that broke
	parted    map[[2]string]int // pairs of data centres between which nothing arrives, by the partitions that say so
	pages     map[string][]*answer
	probed    time.Duration // when every operation was asked for once more
	conflicts int
	repeats   int                 // executions that a loss cost
	led       map[string]*manager // to which manager the peers' URL of a data centre leads, if it has two
	losing    bool                // a data centre is about to forget something
	// In worlds with several data centres: outcomes were acknowledged by managers, and known are those that they
	// answered or learned. offered are all that gates sent managers, by scope and key.
	outcomes, known []outcome
	sentAt          map[string]time.Duration
	offered         map[string]map[string]bool

	mu        sync.Mutex
	finished  []completion
	completed chan struct{} // has a value when finished is not empty
	// asides are goroutines that are not waited for otherwise.
	asides sync.WaitGroup
}

type event struct {
	at     time.Duration
	serial uint64
	do     func()
}

type eventQueue []event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].serial < q[j].serial
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *eventQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*q = old[:len(old)-1]
	return e
}

// completion is what a goroutine of a manager hands to the loop.
type completion struct {
	order uint64 // of those of one instant
	do    func()
}

// now is the virtual time since the world began.
func (w *World) now() time.Duration { return time.Since(w.began) }

// after has the loop do something so much later.
func (w *World) after(d time.Duration, do func()) {
	w.serial++
	heap.Push(&w.queue, event{w.now() + max(d, 0), w.serial, do})
}

// between is a duration of the range, to the nanosecond, so that hardly ever two things
// happen at the same instant.
func (w *World) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.rnd.Int64N(int64(hi-lo)+1))
}

// chance is true with a probability.
func (w *World) chance(p float64) bool { return w.rnd.Float64() < p }

// aside runs do in a goroutine and then has the loop do what it returns.
func (w *World) aside(do func() func()) {
	w.serial++
	order := w.serial
	w.asides.Go(func() {
		then := do()
		w.mu.Lock()
		w.finished = append(w.finished, completion{order, then})
		w.mu.Unlock()
		select {
		case w.completed <- struct{}{}:
		default:
		}
	})
}

// collect does what goroutines have handed over, in an order that does not depend on theirs.
func (w *World) collect() {
	for {
		synctest.Wait()
		w.mu.Lock()
		list := w.finished
		w.finished = nil
		w.mu.Unlock()
		if len(list) == 0 {
			return
		}
		slices.SortFunc(list, func(a, b completion) int {
			if a.order < b.order {
				return -1
			}
			return 1
		})
		for _, c := range list {
			if c.do != nil {
				c.do()
				synctest.Wait() // for what it woke, before another one kills a manager
			}
		}
	}
}

// run lets virtual time pass until the given instant, or until a check has failed.
func (w *World) run(until time.Duration) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for len(w.failures) == 0 {
		w.collect()
		next := until
		if len(w.queue) > 0 {
			next = min(next, w.queue[0].at)
		}
		if wait := next - w.now(); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-w.completed:
			}
			continue
		}
		if next >= until && (len(w.queue) == 0 || w.queue[0].at >= until) {
			return
		}
		heap.Pop(&w.queue).(event).do()
	}
}

// fail notes that a check has failed; the world stops.
func (w *World) fail(format string, args ...any) {
	w.failures = append(w.failures, fmt.Sprintf(format, args...))
	w.logf("CHECK", "FAILED: "+format, args...)
}

func (w *World) logf(actor, format string, args ...any) {
	w.line.add(w.now(), actor, format, args)
}

// close ends what runs in goroutines.
func (w *World) close() {
	for _, m := range w.managers {
		m.end()
	}
	w.asides.Wait()
	w.collect() // a process that was starting is ended now
	w.asides.Wait()
}

// background is a context without an end.
var background = context.Background()

// timeline is what happened, for people.
type timeline struct{ lines []line }

type line struct {
	at     time.Duration
	actor  string
	format string
	args   []any
}

func (t *timeline) add(at time.Duration, actor, format string, args []any) {
	t.lines = append(t.lines, line{at, actor, format, args})
}

// Text is the timeline, a line per event: virtual time, actor, event.
func (t *timeline) Text() []string {
	out := make([]string, len(t.lines))
	for i, l := range t.lines {
		out[i] = fmt.Sprintf("%12.6f  %-8s %s", l.at.Seconds(), l.actor, fmt.Sprintf(l.format, l.args...))
	}
	return out
}
