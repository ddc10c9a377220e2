package front

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestOrderStaysExact: without other processes a scan finds exactly the first entries of its range.
func TestOrderStaysExact(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t)
	partial := 0
	for step := range 20000 {
		w.pass(time.Duration(random.IntN(int(lag / 4))))
		next := fmt.Sprintf("b%04d", step/20+random.IntN(20)) // most come after what was there
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
			hits, starts := w.scan(to, limit)
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
	mark     Mark
	state    []string // nil until it is fixed
	s        Scan[string]
	due      []string // what s must find, if it lives in the state
	from, to string
	limit    int
}

func (p *party) begin(r *reading) {
	r.from, r.limit = fmt.Sprintf("b%03d", 100*p.random.IntN(3)), 1+p.random.IntN(4)
	r.to = []string{"", "", fmt.Sprintf("b%03d", p.random.IntN(400))}[p.random.IntN(3)]
	r.s = p.fronts.Begin(r.mark, index, r.from, p.random.IntN(20) == 0)
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
	end(r.s, find(r.state, r.s.From, r.to, r.limit), r.to, r.limit)
	if over = p.random.IntN(2) == 0; !over {
		p.begin(r)
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
	for range random.IntN(2 * maxAdded) {
		p.fronts.Added("other", "x")
	}
	for step := range 50000 {
		p.pass(time.Duration(random.IntN(int(lag / 10))))
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
			r := &reading{mark: p.fronts.Mark()}
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
