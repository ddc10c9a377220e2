package mem

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// hidden are the positions that are known to be hidden, one by one: position i is pos(i).
type hidden []bool

func pos(i int) string { return fmt.Sprintf("%04d", i) }

// at is position i, and the end of the index after the last one.
func (h hidden) at(i int) string {
	if i == len(h) {
		return ""
	}
	return pos(i)
}

// next is the first position from i on that may be visible.
func (h hidden) next(i int) int {
	for i < len(h) && h[i] {
		i++
	}
	return i
}

// trim makes the positions from the first entry of each stretch on unknown.
func (h hidden) trim(entries []bool) {
	cut := false
	for i := range h {
		if !h[i] {
			cut = false
		} else if cut = cut || entries[i]; cut {
			h[i] = false
		}
	}
}

// check compares p with h, or, if p may have forgotten some, checks that it has no others.
func (h hidden) check(t *testing.T, p *passed, exact bool) {
	t.Helper()
	for i, s := range p.spans {
		if s.to != "" && s.from >= s.to || i > 0 && (p.spans[i-1].to == "" || p.spans[i-1].to >= s.from) {
			t.Fatalf("span %d of %q is out of order or touches the one before", i, p.spans)
		}
	}
	if len(p.spans) > maxSpans {
		t.Fatalf("there are %d spans, want at most %d", len(p.spans), maxSpans)
	}
	for i := range h {
		got, end := p.skip(pos(i))
		want := h.at(h.next(i))
		if end != (got == "") || exact && got != want || got < pos(i) && !end || want != "" && (end || got > want) {
			t.Fatalf("from %d on the first one is %q (end: %v), want %q, with %q", i, got, end, want, p.spans)
		}
	}
}

// What passed remembers is what a naive set of positions has, through additions and flushes.
func TestPassedIsASetOfPositions(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 31))
		n := 1 + rnd.IntN(60)
		var p passed
		h := make(hidden, n)
		for range 60 {
			if rnd.IntN(6) == 0 {
				entries := make([]bool, n)
				for range rnd.IntN(4) {
					entries[rnd.IntN(n)] = true
				}
				p.trim(func(from string) (string, bool) {
					for i := range n {
						if entries[i] && pos(i) >= from {
							return pos(i), true
						}
					}
					return "", false
				})
				h.trim(entries)
			} else {
				from, to := rnd.IntN(n), rnd.IntN(n+2) // also empty ones, and to the end
				to = min(to, n)
				p.add(pos(from), h.at(to))
				for i := from; i < to; i++ {
					h[i] = true
				}
			}
			h.check(t, &p, true)
		}
	}
}

// However many stretches there are, passed remembers some of them, and nothing that is not hidden.
func TestPassedForgetsSpans(t *testing.T) {
	for seed := range uint64(3) {
		rnd := rand.New(rand.NewPCG(seed, 32))
		var p passed
		h := make(hidden, 4*maxSpans)
		order := rnd.Perm(len(h))
		slices.SortStableFunc(order, func(a, b int) int { return a%2 - b%2 }) // those that do not touch first
		for n, i := range order[:len(order)*3/4] {
			p.add(pos(i), h.at(i+1))
			h[i] = true
			if next, _ := p.skip(pos(i)); next == pos(i) {
				t.Fatalf("%d is forgotten at once", i)
			}
			if n%16 == 0 {
				h.check(t, &p, false)
			}
		}
		h.check(t, &p, false)
	}
}

// A span whose start trim cannot place is dropped.
func TestPassedDropsWhatItCannotPlace(t *testing.T) {
	var p passed
	p.add("a", "c")
	p.add("d", "")
	p.trim(func(from string) (string, bool) { return "", from == "d" })
	if want := []span{{"a", "c"}}; !slices.Equal(p.spans, want) {
		t.Errorf("the spans are %q, want %q", p.spans, want)
	}
}
