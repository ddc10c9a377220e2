package front

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

const index = "i"

// world is a server with one index, a process that scans it through Fronts, and a clock that only the test moves.
type world struct {
	t      *testing.T
	fronts Fronts
	now    time.Time
	cost   time.Duration // of a scan
	live   []string      // the entries, in order
}

func newWorld(t *testing.T, live ...string) *world {
	w := &world{t: t, now: time.Unix(1, 0), live: live}
	w.fronts.Now = func() time.Time { return w.now }
	return w
}

func (w *world) pass(d time.Duration) { w.now = w.now.Add(d) }

// addElsewhere adds an entry as another process does: this one does not hear of it.
func (w *world) addElsewhere(at string) {
	if i, found := slices.BinarySearch(w.live, at); !found {
		w.live = slices.Insert(w.live, i, at)
	}
}

func (w *world) add(at string) {
	w.addElsewhere(at)
	w.fronts.Added(index, at)
}

func (w *world) remove(at string) {
	w.live = slices.DeleteFunc(w.live, func(e string) bool { return e == at })
}

// find returns the first of the entries that lie in a range.
func find(live []string, from, to string, limit int) (hits []string) {
	for _, e := range live {
		if e >= from && (to == "" || e < to) && len(hits) < limit {
			hits = append(hits, e)
		}
	}
	return hits
}

// end ends a scan that found the hits.
func end(s Scan, o *Observer, hits []string, to string, limit int) (again bool) {
	var first, last string
	if n := len(hits); n > 0 {
		first, last = hits[0], hits[n-1]
	}
	return s.End(o, len(hits), first, last, to, len(hits) < limit)
}

// scan scans the range that begins at a, as an engine does. It returns the hits, and where it started each time.
func (w *world) scan(to string, limit int, observes bool) (hits, starts []string) {
	var o *Observer
	if observes {
		o = w.fronts.Observe()
		defer o.Stop()
	}
	for whole := false; ; whole = true {
		s := w.fronts.Begin(index, "a", whole)
		if s.Whole != (s.From == "a") {
			w.t.Errorf("a scan from %q says that whole is %t", s.From, s.Whole)
		}
		hits, starts = find(w.live, s.From, to, limit), append(starts, s.From)
		w.pass(w.cost)
		if !end(s, o, hits, to, limit) {
			return hits, starts
		}
	}
}

// want scans to the end of the index for one entry.
func (w *world) want(start, hit string) {
	w.t.Helper()
	w.wantTo("", 1, start, hit)
}

// wantTo scans. Starts and hits are joined with blanks.
func (w *world) wantTo(to string, limit int, starts, hits string) {
	w.t.Helper()
	found, from := w.scan(to, limit, true)
	if f, h := strings.Join(from, " "), strings.Join(found, " "); f != starts || h != hits {
		w.t.Errorf("scans from %q found %q, want %q and %q", f, h, starts, hits)
	}
}

// settle makes the first entry the front. The last scan of the whole range is then behind/2 ago.
func (w *world) settle() {
	w.t.Helper()
	w.scan("", 1, true)
	w.pass(behind / 2)
	w.scan("", 1, true)
	w.pass(behind / 2)
	w.want(w.live[0], w.live[0])
}

// TestFrontAdvancesAfterAMoment: until then a transaction that began earlier may add something before it.
func TestFrontAdvancesAfterAMoment(t *testing.T) {
	w := newWorld(t, "m", "p", "q")
	w.want("a", "m")
	w.pass(behind - 1)
	w.want("a", "m")
	w.pass(1)
	w.want("m", "m")
	w.pass(1)
	w.remove("m")
	w.want("m", "p")
	w.remove("p") // what was found first is the next front, and does not wait for what is found later
	w.want("m", "q")
	w.pass(behind - 2)
	w.want("a", "q") // the last time was long ago
	w.want("m", "q")
	w.pass(1)
	w.want("m", "q")
	w.pass(1)
	w.want("p", "q")
}

// TestMomentCountsFromTheEndOfAScan: a scan may take longer than the moment itself.
func TestMomentCountsFromTheEndOfAScan(t *testing.T) {
	w := newWorld(t, "m")
	w.cost = behind
	w.want("a", "m")
	w.cost = 0
	w.want("a", "m")
	w.pass(behind - 1)
	w.want("a", "m")
	w.pass(1)
	w.want("m", "m")
}

// TestOwnAdditionMovesTheFrontBack: an entry of this process is found by the next scan, wherever it is.
func TestOwnAdditionMovesTheFrontBack(t *testing.T) {
	t.Run("before a scan", func(t *testing.T) {
		w := newWorld(t, "m")
		w.settle()
		w.add("c")
		w.want("c", "c")
	})
	for name, during := range map[string]bool{"during a scan": true, "after a scan": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "m")
			o := w.fronts.Observe()
			s := w.fronts.Begin(index, "a", false)
			hits := find(w.live, s.From, "", 1)
			if during {
				w.add("c")
			}
			end(s, o, hits, "", 1)
			if o.Stop(); !during {
				w.add("c")
			}
			w.pass(behind - 1)
			w.scan("", 1, false) // so that the next scan need not be one of the whole range
			w.pass(1)
			w.want("c", "c")
		})
	}
	t.Run("elsewhere", func(t *testing.T) {
		w := newWorld(t, "m")
		for range 2 {
			o := w.fronts.Observe()
			s := w.fronts.Begin(index, "a", false)
			w.fronts.Added(index, "n")
			w.fronts.Added(index, "Z")
			w.fronts.Added("other", "c")
			end(s, o, w.live, "", 1)
			o.Stop()
			w.pass(behind / 2)
		}
		w.fronts.Added(index, "Z")
		w.want("m", "m")
	})
}

// TestUnobservedScanAdvancesNothing: what was added since its state was fixed is unknown. That holds without an observer,
// and with one that had too much to remember.
func TestUnobservedScanAdvancesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		none  bool
		added int
		start string
	}{"none": {none: true, start: "a"}, "too much": {added: maxAdded + 1, start: "a"}, "much": {added: maxAdded, start: "m"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "m")
			for range 2 {
				o := w.fronts.Observe()
				for range test.added {
					w.fronts.Added("other", "x")
				}
				if o.Stop(); test.none {
					o = nil
				}
				end(w.fronts.Begin(index, "a", false), o, w.live, "", 1)
				w.pass(behind / 2)
			}
			w.want(test.start, "m")
			if n := len(w.fronts.observers); n != 0 {
				t.Errorf("%d observers are left", n)
			}
		})
	}
}

// TestEntriesOfOthersMoveTheFrontBack: a scan of the whole range finds them, and the scans after it do.
func TestEntriesOfOthersMoveTheFrontBack(t *testing.T) {
	for name, observes := range map[string]bool{"with an observer": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "m", "p")
			w.settle()
			w.remove("m")
			w.addElsewhere("c")
			w.want("m", "p") // so that p is about to be the front
			w.pass(behind / 2)
			if hits, starts := w.scan("", 1, observes); !slices.Equal(hits, []string{"c"}) || !slices.Equal(starts, []string{"a"}) {
				t.Errorf("found %q from %q", hits, starts)
			}
			w.pass(behind / 2)
			w.want("c", "c")
		})
	}
	t.Run("and the next front", func(t *testing.T) {
		w := newWorld(t, "m")
		w.want("a", "m")
		w.addElsewhere("c")
		w.want("a", "c")
		w.pass(behind / 2)
		w.remove("c")
		w.want("a", "m")
		w.pass(behind / 2)
		w.want("c", "m")
	})
}

// TestOvertakenScanAdvancesNothing: a scan from the front does not pass by what another scan found before that meanwhile.
func TestOvertakenScanAdvancesNothing(t *testing.T) {
	for name, hits := range map[string][]string{"it found something": {"p"}, "it found nothing": nil} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "m", "p")
			w.scan("", 2, true) // so that p was seen
			w.settle()
			o := w.fronts.Observe()
			defer o.Stop()
			s := w.fronts.Begin(index, "a", false)
			w.remove("m")
			w.pass(least)
			w.addElsewhere("c")
			w.cost = 2 * behind / share // so that the whole range counts for longer than the front stays behind
			w.want("a", "c")
			end(s, o, hits, "", 1)
			w.pass(behind)
			w.want("c", "c")
		})
	}
}

// TestWholeRangeIsScannedAgain: the less often the longer that takes.
func TestWholeRangeIsScannedAgain(t *testing.T) {
	for _, test := range []struct{ cost, counts time.Duration }{
		{0, least},
		{least / share, least},
		{least/share + 1, least + share},
		{most / share, most},
		{most/share + 1, most},
		{most, most},
	} {
		w := newWorld(t, "m")
		w.settle()
		o := w.fronts.Observe()
		s := w.fronts.Begin(index, "a", true)
		began := w.now
		w.pass(test.cost)
		end(s, o, w.live, "", 1)
		o.Stop()
		w.now = began.Add(test.counts - 1)
		if s := w.fronts.Begin(index, "a", false); s.From != "m" || s.Whole {
			t.Errorf("cost %v: a scan starts at %q before %v have passed", test.cost, s.From, test.counts)
		}
		w.pass(1)
		if s := w.fronts.Begin(index, "a", false); s.From != "a" || !s.Whole {
			t.Errorf("cost %v: a scan starts at %q after %v", test.cost, s.From, test.counts)
		}
	}
}

// TestTooFewHitsAskForTheWholeRange: only if that did not take long the last time.
func TestTooFewHitsAskForTheWholeRange(t *testing.T) {
	w := newWorld(t, "m")
	w.settle()
	w.addElsewhere("c")
	w.wantTo("", 1, "m", "m")
	w.wantTo("", 2, "m a", "c m")

	for cost, starts := range map[time.Duration]string{cheap - 1: "m a", cheap: "m"} {
		w := newWorld(t, "m")
		w.settle()
		w.pass(least)
		w.cost = cost
		w.wantTo("", 2, "a", "m")
		w.wantTo("", 2, starts, "m")
	}
}

// TestFrontOfAnEmptyRange: the front is the last place where something was, since what others add mostly comes behind that.
func TestFrontOfAnEmptyRange(t *testing.T) {
	for _, test := range []struct{ to, front string }{{"", "q"}, {"z", "q"}, {"q", "q"}, {"p", "p"}, {"m", "m"}, {"b", "m"}} {
		w := newWorld(t, "m", "p", "q")
		w.wantTo("", 3, "a", "m p q")
		w.settle()
		w.live = nil
		w.pass(least)
		w.cost = 2 * behind / share // so that the whole range counts for longer than the front stays behind
		w.wantTo(test.to, 1, "a", "")
		w.pass(behind)
		w.wantTo(test.to, 1, test.front, "")
		w.addElsewhere("x")
		w.want(test.front, "x")
	}
	w := newWorld(t)
	for range 5 { // nothing was ever seen
		w.want("a", "")
		w.pass(behind / 2)
	}
}

// TestTooManyRanges: all of the index begin anew, those of other indexes do not.
func TestTooManyRanges(t *testing.T) {
	w := newWorld(t, "m")
	start := func(index, from string) string {
		o := w.fronts.Observe()
		defer o.Stop()
		s := w.fronts.Begin(index, from, false)
		end(s, o, w.live, "", 1)
		return s.From
	}
	from := func(i int) string { return fmt.Sprintf("c%03d", i) }
	for range 2 {
		start("other", "a")
		for i := range maxRanges {
			start(index, from(i))
		}
		w.pass(behind / 2)
	}
	for i := range maxRanges {
		if got := start(index, from(i)); got != "m" {
			t.Errorf("the scan from %q starts at %q", from(i), got)
		}
	}
	start(index, "d")
	if one, another := start(index, from(0)), start("other", "a"); one != from(0) || another != "m" {
		t.Errorf("the scans start at %q and, in the other index, at %q", one, another)
	}
	if n := len(w.fronts.ranges[index]); n != 2 {
		t.Errorf("%d ranges have a front", n)
	}
}

// TestOrderStaysExact: without other processes a scan finds exactly the first entries of its range.
func TestOrderStaysExact(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t)
	partial := 0
	for step := range 20000 {
		w.pass(time.Duration(random.IntN(int(behind / 4))))
		next := fmt.Sprintf("b%04d", step/20+random.IntN(20)) // most come behind what was there
		switch {
		case random.IntN(3) == 0:
			w.add(next)
		case random.IntN(50) == 0:
			w.add(fmt.Sprintf("b%04d", random.IntN(1000)))
		case len(w.live) > 0 && random.IntN(2) == 0:
			w.remove(w.live[min(random.IntN(len(w.live)), random.IntN(20))])
		default:
			to, limit := []string{"", "", next}[random.IntN(3)], 1+random.IntN(5)
			w.cost = time.Duration(random.IntN(int(2 * cheap)))
			want := find(w.live, "a", to, limit)
			hits, starts := w.scan(to, limit, random.IntN(5) > 0)
			if !slices.Equal(hits, want) {
				t.Fatalf("step %d: scans from %q to %q for %d found %q, want %q", step, starts, to, limit, hits, want)
			}
			if len(starts) == 1 && starts[0] != "a" {
				partial++
			}
		}
	}
	if partial < 1000 {
		t.Errorf("only %d scans were from the front alone", partial)
	}
}

// party is a process whose scans and commits overlap.
type party struct {
	*world
	random *rand.Rand
	silent []string // entries whose commits have happened but not returned, so nobody has to find them yet
	open   []*reading
}

// reading is a transaction. All of its scans see one state.
type reading struct {
	o        *Observer // nil: it has none
	state    []string  // nil until it is fixed
	s        Scan
	due      []string // what s must find, if it lives in the state
	from, to string
	limit    int
}

func (p *party) begin(r *reading) {
	r.from, r.limit = fmt.Sprintf("b%03d", 100*p.random.IntN(3)), 1+p.random.IntN(4)
	r.to = []string{"", "", fmt.Sprintf("b%03d", p.random.IntN(400))}[p.random.IntN(3)]
	r.s = p.fronts.Begin(index, r.from, p.random.IntN(20) == 0)
	r.due = slices.DeleteFunc(find(p.live, r.from, r.to, len(p.live)), func(e string) bool { return slices.Contains(p.silent, e) })
}

func (p *party) read(r *reading) {
	if r.state == nil {
		r.state = append([]string{}, p.live...)
	}
}

// end ends a scan, and reports whether the transaction is over.
func (p *party) end(r *reading) (over bool) {
	p.read(r)
	for _, e := range r.due {
		if _, lives := slices.BinarySearch(r.state, e); lives && e < r.s.From {
			p.t.Fatalf("a scan from %q to %q started at %q and passed by %q", r.from, r.to, r.s.From, e)
		}
	}
	end(r.s, r.o, find(r.state, r.s.From, r.to, r.limit), r.to, r.limit)
	if over = p.random.IntN(2) == 0; !over {
		p.begin(r)
	} else if r.o != nil {
		r.o.Stop()
	}
	return over
}

// TestOverlappingScansPassByNothing: whatever happens at the same time, nothing that was added before a scan lives before
// the place where it starts.
func TestOverlappingScansPassByNothing(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	p := &party{world: newWorld(t), random: random}
	for step := range 50000 {
		p.pass(time.Duration(random.IntN(int(behind / 10))))
		switch kind := random.IntN(12); {
		case kind < 2 && len(p.live) < 30:
			if e := fmt.Sprintf("b%03d", random.IntN(400)); !slices.Contains(p.live, e) {
				p.addElsewhere(e)
				p.silent = append(p.silent, e)
			}
		case kind < 4 && len(p.silent) > 0:
			i := random.IntN(len(p.silent))
			p.fronts.Added(index, p.silent[i])
			p.silent = slices.Delete(p.silent, i, i+1)
		case kind < 6 && len(p.live) > 0:
			p.remove(p.live[min(random.IntN(len(p.live)), random.IntN(len(p.live)))])
		case kind < 8 && len(p.open) < 6:
			r := &reading{}
			if random.IntN(10) > 0 {
				r.o = p.fronts.Observe()
			}
			p.begin(r)
			p.open = append(p.open, r)
		case kind < 9 && len(p.open) > 0:
			p.read(p.open[random.IntN(len(p.open))])
		case len(p.open) > 0:
			if i := random.IntN(len(p.open)); p.end(p.open[i]) {
				p.open = slices.Delete(p.open, i, i+1)
			}
		}
		for from, r := range p.fronts.ranges[index] {
			for _, e := range p.live {
				if e >= from && e < max(r.at, r.next) && !slices.Contains(p.silent, e) {
					t.Fatalf("step %d: the front of %q is %q and next %q, but %q lives", step, from, r.at, r.next, e)
				}
			}
		}
	}
}
