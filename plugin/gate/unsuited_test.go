package gate

import (
	"strconv"
	"strings"
	"testing"
)

func TestPathRingForgetsTheOldest(t *testing.T) {
	var r pathRing
	hash := func(i int) uint64 { return hashPath("POST", "h", "/"+strconv.Itoa(i)) }
	const more = 10
	for i := range maxUnsuited + more {
		if !r.add(hash(i)) || r.add(hash(i)) {
			t.Fatalf("path %d is not added once", i)
		}
	}
	for i := range maxUnsuited + more {
		if r.has(hash(i)) != (i >= more) {
			t.Errorf("path %d: %v", i, r.has(hash(i)))
		}
	}
	if len(r.hashes) != maxUnsuited {
		t.Errorf("%d paths", len(r.hashes))
	}
	r.remove(hash(0)) // long gone
	r.remove(hash(more))
	if r.has(hash(more)) || !r.has(hash(more+1)) {
		t.Error("another path than the removed one is gone")
	}
}

func TestHashPathTellsPathsApart(t *testing.T) {
	seen := map[uint64]bool{}
	for _, p := range [][3]string{
		{"POST", "h", "/a"}, {"POSTh", "", "/a"}, {"POST", "h/a", ""}, {"POST", "", "h/a"}, {"", "", ""}, {"PATCH", "h", "/a"},
	} {
		hash := hashPath(p[0], p[1], p[2])
		if hash == 0 || seen[hash] {
			t.Errorf("%q: %x", p, hash)
		}
		seen[hash] = true
	}
}

// The log names each path once, without its query, and nothing in it breaks the line.
func TestLogNamesAPathWhoseAnswersDoNotSuit(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, continuing)
	stream := [][2]string{{":status", "200"}, {headerServiceTime, "1"}, {headerContentType, "text/event-stream"}}
	s, f := h.open(p, 1, "k")
	f.request[1] = [2]string{":path", "/a\"b\n" + strings.Repeat("c", maxQuoted) + "?secret"}
	s.OnRequestHeaders(true)
	h.ready(p)
	h.respond(p, 0, "201", granted)
	h.fullHeaders, h.current = stream, 0
	p.OnCallResponse(1, 0)
	line := "oncegate: an answer for POST h/a?b?c"
	var lines []string
	for _, l := range h.logs {
		if strings.Contains(l, "an answer for") {
			lines = append(lines, l)
		}
	}
	if len(lines) != 1 || !strings.HasPrefix(lines[0], line) || strings.Contains(lines[0], "secret") || !strings.Contains(lines[0], " streams (text/event-stream), ") {
		t.Errorf("%q", lines)
	}
}
