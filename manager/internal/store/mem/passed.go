package mem

import (
	"slices"
	"strings"
)

// passed remembers parts of an index on disk in which scans found only entries that the layers hide. So a queue from
// which the front is taken again and again is not read from its start each time. It has positions (see
// package member); the spans are in order and apart from each other.
type passed struct{ spans []span }

// span is everything from a position to another one, which is not part of it; an empty to is the end of the index.
type span struct{ from, to string }

// maxSpans bounds the memory of an index's spans.
const maxSpans = 256

// at returns the number of the span that has position p, or else -1 and where such a span would be.
func (p *passed) at(pos string) (i, where int) {
	where, found := slices.BinarySearchFunc(p.spans, pos, func(s span, pos string) int { return strings.Compare(s.from, pos) })
	if found {
		return where, where
	}
	if where > 0 && (p.spans[where-1].to == "" || pos < p.spans[where-1].to) {
		return where - 1, where
	}
	return -1, where
}

// skip returns the first position at or after pos that may have a visible entry. end reports that there is none.
func (p *passed) skip(pos string) (next string, end bool) {
	if i, _ := p.at(pos); i >= 0 {
		return p.spans[i].to, p.spans[i].to == ""
	}
	return pos, false
}

// add remembers that nothing is visible from one position to another.
func (p *passed) add(from, to string) {
	if to != "" && from >= to {
		return
	}
	i, where := p.at(from)
	if i < 0 && where > 0 && p.spans[where-1].to == from {
		i = where - 1
	}
	if i < 0 {
		if len(p.spans) == maxSpans {
			p.spans = slices.Delete(p.spans, maxSpans-1, maxSpans)
			where = min(where, len(p.spans))
		}
		p.spans = slices.Insert(p.spans, where, span{from, to})
		i = where
	} else if p.spans[i].to != "" && (to == "" || to > p.spans[i].to) {
		p.spans[i].to = to
	}
	// Later spans may now be a part of this one.
	n := i + 1
	for n < len(p.spans) && (p.spans[i].to == "" || p.spans[n].from <= p.spans[i].to) {
		if p.spans[i].to != "" && (p.spans[n].to == "" || p.spans[n].to > p.spans[i].to) {
			p.spans[i].to = p.spans[n].to
		}
		n++
	}
	p.spans = slices.Delete(p.spans, i+1, n)
}

// trim cuts each span where first, called with its start, finds an entry that is on disk from now on. A span that would
// end where it starts, or before, is dropped.
func (p *passed) trim(first func(from string) (pos string, ok bool)) {
	kept := p.spans[:0]
	for _, s := range p.spans {
		pos, ok := first(s.from)
		if ok && pos <= s.from {
			continue
		}
		if ok && (s.to == "" || pos < s.to) {
			s.to = pos
		}
		kept = append(kept, s)
	}
	p.spans = kept
}
