package front

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const index = "i"

// world is a server with one index, a process that scans it through Fronts, and a clock that only the test moves.
type world struct {
	t      *testing.T
	fronts Fronts[string]
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
func end(s Scan[string], hits []string, to string, limit int) (again bool) {
	var first, last string
	if n := len(hits); n > 0 {
		first, last = hits[0], hits[n-1]
	}
	return s.End(len(hits), first, last, to, len(hits) < limit)
}

// scan scans the range that begins at a, as an engine does. It returns the hits, and where it started each time.
func (w *world) scan(to string, limit int) (hits, starts []string) {
	m := w.fronts.Mark()
	for whole := false; ; whole = true {
		s := w.fronts.Begin(m, index, "a", whole)
		if s.Whole != (s.From == "a") {
			w.t.Errorf("a scan from %q says that whole is %t", s.From, s.Whole)
		}
		hits, starts = find(w.live, s.From, to, limit), append(starts, s.From)
		w.pass(w.cost)
		if !end(s, hits, to, limit) {
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
	found, from := w.scan(to, limit)
	if f, h := strings.Join(from, " "), strings.Join(found, " "); f != starts || h != hits {
		w.t.Errorf("scans from %q found %q, want %q and %q", f, h, starts, hits)
	}
}

// settle makes the first entry the front. The last scan of the whole range is then lag/2 ago.
func (w *world) settle() {
	w.t.Helper()
	w.scan("", 1)
	w.pass(lag / 2)
	w.scan("", 1)
	w.pass(lag / 2)
	w.want(w.live[0], w.live[0])
}

// TestFrontAdvancesAfterAMoment: until then a transaction that began earlier may add something before it.
func TestFrontAdvancesAfterAMoment(t *testing.T) {
	w := newWorld(t, "m", "p", "q")
	w.want("a", "m")
	w.pass(lag - 1)
	w.want("a", "m")
	w.pass(1)
	w.want("m", "m")
	w.pass(1)
	w.remove("m")
	w.want("m", "p")
	w.remove("p") // what was found first is the next front, and does not wait for what is found later
	w.want("m", "q")
	w.pass(lag - 2)
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
	w.cost = lag
	w.want("a", "m")
	w.cost = 0
	w.want("a", "m")
	w.pass(lag - 1)
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
			s := w.fronts.Begin(w.fronts.Mark(), index, "a", false)
			hits := find(w.live, s.From, "", 1)
			if during {
				w.add("c")
			}
			end(s, hits, "", 1)
			if !during {
				w.add("c")
			}
			w.pass(lag - 1)
			w.scan("", 1) // so that the next scan need not be one of the whole range
			w.pass(1)
			w.want("c", "c")
		})
	}
	t.Run("elsewhere", func(t *testing.T) {
		w := newWorld(t, "m")
		for range 2 {
			s := w.fronts.Begin(w.fronts.Mark(), index, "a", false)
			w.fronts.Added(index, "n")
			w.fronts.Added(index, "Z")
			w.fronts.Added("other", "c")
			end(s, w.live, "", 1)
			w.pass(lag / 2)
		}
		w.fronts.Added(index, "Z")
		w.want("m", "m")
	})
}

// TestScanOfAnOldStateAdvancesNothing: too much was added since to be remembered.
func TestScanOfAnOldStateAdvancesNothing(t *testing.T) {
	for start, added := range map[string]int{"m": maxAdded, "a": maxAdded + 1} {
		for _, before := range []int{0, 1, maxAdded - 1, maxAdded, maxAdded + 1, 3 * maxAdded / 2} {
			w := newWorld(t, "m")
			for range before {
				w.fronts.Added("other", "x")
			}
			for range 2 {
				m := w.fronts.Mark()
				for range added {
					w.fronts.Added("other", "x")
				}
				end(w.fronts.Begin(m, index, "a", false), w.live, "", 1)
				w.pass(lag / 2)
			}
			w.want(start, "m")
		}
	}
}

// TestScanOfAFixedStateCountsFromItsMark: it does not see what others added since, but what this process added is known.
func TestScanOfAFixedStateCountsFromItsMark(t *testing.T) {
	for _, before := range []int{0, maxAdded - 1, maxAdded} {
		w := newWorld(t, "m")
		for range before {
			w.fronts.Added("other", "x")
		}
		w.settle()
		m, state := w.fronts.Mark(), w.live
		w.add("d")
		w.fronts.Added("other", "b")
		w.addElsewhere("c")
		w.pass(least - 1)
		end(w.fronts.Begin(m, index, "a", true), find(state, "a", "", 1), "", 1)
		w.want("d", "d")
		w.pass(1)
		w.want("a", "c")
	}
}

// TestEntriesOfOthersMoveTheFrontBack: a scan of the whole range finds them, and the scans after it do.
func TestEntriesOfOthersMoveTheFrontBack(t *testing.T) {
	t.Run("and what was about to be the front", func(t *testing.T) {
		w := newWorld(t, "m", "p")
		w.settle()
		w.remove("m")
		w.addElsewhere("c")
		w.want("m", "p")
		w.pass(lag / 2)
		w.want("a", "c")
		w.pass(lag / 2)
		w.want("c", "c")
	})
	t.Run("and the next front", func(t *testing.T) {
		w := newWorld(t, "m")
		w.want("a", "m")
		w.addElsewhere("c")
		w.want("a", "c")
		w.pass(lag / 2)
		w.remove("c")
		w.want("a", "m")
		w.pass(lag / 2)
		w.want("c", "m")
	})
}

// TestOvertakenScanAdvancesNothing: a scan from the front does not pass by what another scan found before that meanwhile.
func TestOvertakenScanAdvancesNothing(t *testing.T) {
	for name, hits := range map[string][]string{"it found something": {"p"}, "it found nothing": nil} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "m", "p")
			w.scan("", 2) // so that p was seen
			w.settle()
			s := w.fronts.Begin(w.fronts.Mark(), index, "a", false)
			w.remove("m")
			w.pass(least)
			w.addElsewhere("c")
			w.cost = most / share // so that the whole range counts for longer than the front lags
			w.want("a", "c")
			end(s, hits, "", 1)
			w.pass(lag)
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
		s := w.fronts.Begin(w.fronts.Mark(), index, "a", true)
		began := w.now
		w.pass(test.cost)
		end(s, w.live, "", 1)
		w.now = began.Add(test.counts - 1)
		if s := w.fronts.Begin(w.fronts.Mark(), index, "a", false); s.From != "m" || s.Whole {
			t.Errorf("cost %v: a scan starts at %q before %v have passed", test.cost, s.From, test.counts)
		}
		w.pass(1)
		if s := w.fronts.Begin(w.fronts.Mark(), index, "a", false); s.From != "a" || !s.Whole {
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

// TestNothingAsksForTheWholeRange: the more often the less that takes.
func TestNothingAsksForTheWholeRange(t *testing.T) {
	for _, test := range []struct{ cost, pause time.Duration }{
		{0, 0},
		{cheap - 1, 0},
		{cheap, shareOfEmpty * cheap},
		{30 * time.Millisecond, shareOfEmpty * 30 * time.Millisecond},
		{mostOfEmpty / shareOfEmpty, mostOfEmpty},
		{mostOfEmpty, mostOfEmpty},
	} {
		w := newWorld(t, "m")
		w.settle()
		w.live = []string{"c"} // of another process
		s, began := w.fronts.Begin(w.fronts.Mark(), index, "a", true), w.now
		w.pass(test.cost)
		end(s, w.live[:0], "", 1) // it was not there yet
		starts := "m a"
		if test.pause > test.cost {
			w.now = began.Add(test.pause - 1)
			w.wantTo("", 1, "m", "")
			w.pass(1)
			starts = "a" // the one before found nothing
		}
		w.wantTo("", 1, starts, "c")
	}
}

// TestTwoScansFindWhatWasThere: where the first found nothing, the second finds all of it, also after what came since.
func TestTwoScansFindWhatWasThere(t *testing.T) {
	w := newWorld(t, "m")
	w.settle()
	w.remove("m")
	w.cost = mostOfEmpty / shareOfEmpty
	w.pass(least)
	w.want("a", "")
	w.cost = 0
	w.addElsewhere("c")
	w.want("m", "")
	w.addElsewhere("x")
	w.pass(mostOfEmpty - w.now.Sub(w.fronts.ranges[index]["a"].whole) - 1)
	w.want("m", "x")
	w.pass(1)
	w.wantTo("", 9, "a", "c x")
}

// TestShortScanOfTheWholeRangeCountsForItself: what lives between its end and the front is not known after it.
func TestShortScanOfTheWholeRangeCountsForItself(t *testing.T) {
	for to, front := range map[string]string{"c": "a", "m": "m", "p": "m", "": "m"} {
		w := newWorld(t, "m")
		w.settle()
		w.addElsewhere("f")
		w.pass(least)
		s := w.fronts.Begin(w.fronts.Mark(), index, "a", true)
		end(s, nil, to, 1) // before f was there
		if s := w.fronts.Begin(w.fronts.Mark(), index, "a", false); s.From != front {
			t.Errorf("after a scan to %q one starts at %q, want %q", to, s.From, front)
		}
	}
}

// TestFrontOfAnEmptyRange: the front is the last position where something was, since what others add mostly comes after that.
func TestFrontOfAnEmptyRange(t *testing.T) {
	for _, test := range []struct{ to, front string }{{"", "q"}, {"z", "q"}, {"q", "q"}, {"p", "p"}, {"m", "m"}, {"b", "a"}} {
		w := newWorld(t, "m", "p", "q")
		w.wantTo("", 3, "a", "m p q")
		w.settle()
		w.wantTo("", 3, "m", "m p q")
		w.live = nil
		w.pass(least)
		w.cost = 2 * lag / share // so that the whole range counts for longer than the front lags
		w.wantTo(test.to, 1, "a", "")
		w.cost = 0
		w.pass(lag)
		w.addElsewhere("x")
		w.want(test.front, "x")
	}
	w := newWorld(t)
	for range 5 { // nothing was ever seen
		w.want("a", "")
		w.pass(lag / 2)
	}
}

// TestFrontOfAnEmptyRangeComesBack: an entry at the end of the order, such as a job of low priority, does not hide for long
// what others add before it.
func TestFrontOfAnEmptyRangeComesBack(t *testing.T) {
	w := newWorld(t, "z")
	w.settle()
	w.remove("z")
	w.pass(least)
	w.cost = mostOfEmpty / shareOfEmpty
	w.want("a", "")
	w.cost = 0
	w.pass(mostOfEmpty)
	w.addElsewhere("m")
	w.wantTo("", 1, "z a", "m")
	w.remove("m")
	w.pass(lag)
	w.addElsewhere("n")
	w.cost = 2 * lag / share // so that the whole range counts for longer than the front lags
	w.want("a", "n")
	w.pass(lag)
	w.want("n", "n")
	w.remove("n")
	w.wantTo("", 1, "n a", "")
	w.pass(lag)
	w.addElsewhere("o")
	w.want("n", "o")
}

// TestTooManyRanges: all of the index start again, those of other indexes do not.
func TestTooManyRanges(t *testing.T) {
	w := newWorld(t, "m")
	start := func(index, from string) string {
		s := w.fronts.Begin(w.fronts.Mark(), index, from, false)
		end(s, w.live, "", 1)
		return s.From
	}
	from := func(i int) string { return fmt.Sprintf("c%03d", i) }
	for range 2 {
		start("other", "a")
		for i := range maxRanges {
			start(index, from(i))
		}
		w.pass(lag / 2)
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

// TestHolds: what was found holds until this process adds to it, or for as long as additions of others may be passed by.
func TestHolds(t *testing.T) {
	for name, test := range map[string]struct {
		change func(w *world)
		holds  bool
	}{
		"nothing":         {func(*world) {}, true},
		"a moment passes": {func(w *world) { w.pass(least - 1) }, true},
		"long ago":        {func(w *world) { w.pass(least) }, false},
		"before":          {func(w *world) { w.add("a") }, true},
		"the beginning":   {func(w *world) { w.add("b") }, false},
		"the end":         {func(w *world) { w.add("d") }, false},
		"after":           {func(w *world) { w.add("d0") }, true},
		"another index":   {func(w *world) { w.fronts.Added("other", "c") }, true},
		"too much": {func(w *world) {
			for range maxAdded + 1 {
				w.fronts.Added("other", "c")
			}
		}, false},
	} {
		w := newWorld(t)
		w.add("c")
		m := w.fronts.Mark()
		test.change(w)
		if holds := w.fronts.Holds(m, index, "b", "d"); holds != test.holds {
			t.Errorf("%s: holds %t", name, holds)
		}
	}
}
