package gate

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// watchedHost has a plugin in body mode.
type watchedHost struct {
	*fakeHost
	plugin *Plugin
	opened uint32
}

func newWatchedHost(t *testing.T) *watchedHost {
	h := newFakeHost(t)
	h.protocol = "HTTP/1.1" // in which a refusal does not wait for the end of a body without a length
	return &watchedHost{fakeHost: h, plugin: started(t, h, `{"mode":"body"}`)}
}

// hold opens a request that has a body; of it, size bytes have come.
func (h *watchedHost) hold(size uint64) (*Stream, *fakeStream) {
	h.opened++
	s, f := h.open(h.plugin, h.opened, "k"+strconv.Itoa(int(h.opened)))
	f.properties["request.total_size"] = flags(100)
	expect(h.t, "headers continue", s.OnRequestHeaders(false) == Continue, false)
	f.properties["request.total_size"] = flags(100 + size)
	h.ready(h.plugin) // sends the reply, if there is one
	return s, f
}

// pass lets time pass, with ticks and what they ask for.
func (h *watchedHost) pass(d time.Duration) {
	for range d / tickPeriod {
		h.now += int64(tickPeriod)
		h.tick(h.plugin)
		for range 100 {
			h.ready(h.plugin)
		}
	}
}

func (h *watchedHost) hints() (n int) {
	for _, line := range h.logs {
		if strings.Contains(line, "allow_on_headers_stop_iteration") {
			n++
		}
	}
	return n
}

func refused(t *testing.T, f *fakeStream) {
	t.Helper()
	if len(f.replies) != 1 || f.replies[0].status != 500 || !strings.Contains(f.replies[0].body, "body-mode-unavailable") {
		t.Fatalf("replies are %v, want body-mode-unavailable", f.replies)
	}
}

// If bytes of a body came without a callback, the gate refuses the held requests, and later ones immediately.
func TestRequestsAreRefusedIfBodiesAreHeldBack(t *testing.T) {
	h := newWatchedHost(t)
	_, slow := h.hold(0)
	h.pass(time.Minute)
	var held []*fakeStream
	for range 100 {
		_, f := h.hold(5)
		held = append(held, f)
	}
	gone, _ := h.hold(5)
	gone.OnDone()
	h.gone[h.opened] = true
	h.pass(bodyPatience - tickPeriod)
	expect(t, "replies before it is certain", len(held[0].replies), 0)
	h.pass(time.Second)
	refused(t, slow)
	for _, f := range held {
		refused(t, f)
	}
	_, later := h.hold(5)
	refused(t, later)
	expect(t, "hints", h.hints(), 1)
	expect(t, "count", h.values["oncegate_gate_requests_body_unavailable_total"], 102)
	// A request that is whole with its headers needs no body.
	h.opened++
	s, f := h.open(h.plugin, h.opened, "whole")
	expect(t, "headers", s.OnRequestHeaders(true), PauseAll)
	expect(t, "replies", len(f.replies), 0)
}

// Now and then a request is held to find out whether bodies come.
func TestRefusalEndsWhenBodiesArriveAgain(t *testing.T) {
	h := newWatchedHost(t)
	h.hold(5)
	h.pass(bodyPatience + bodyProbe + time.Second)
	for range 3 {
		_, probe := h.hold(5)
		_, other := h.hold(5)
		refused(t, other)
		h.pass(bodyPatience)
		expect(t, "replies to the probe", len(probe.replies), 0)
		h.pass(time.Second)
		refused(t, probe)
		_, soon := h.hold(5)
		refused(t, soon)
		h.pass(bodyProbe)
	}
	expect(t, "hints", h.hints(), 1)
	// A probe whose client leaves makes room for another.
	s, _ := h.hold(0)
	s.OnDone()
	h.pass(bodyProbe)
	s, f := h.hold(5)
	f.requestBody = []byte("hello")
	h.current = s.id
	expect(t, "body", s.OnRequestBody(5, true), Pause)
	expect(t, "replies", len(f.replies), 0)
	// From now on bodies come, however slow a client and the filters before the gate are.
	_, f = h.hold(5)
	h.pass(time.Minute)
	expect(t, "replies", len(f.replies), 0)
}

// The first clients are slow, then one is not.
func TestSlowBodiesProveNothing(t *testing.T) {
	h := newWatchedHost(t)
	var slow []*fakeStream
	for range 50 {
		_, f := h.hold(0)
		slow = append(slow, f)
		h.pass(time.Second)
	}
	s, f := h.hold(5)
	f.requestBody = []byte("hello")
	h.current = s.id
	expect(t, "body", s.OnRequestBody(2, false), Pause)
	h.pass(time.Minute)
	for _, f := range slow {
		expect(t, "replies", len(f.replies), 0)
	}
	expect(t, "hints", h.hints(), 0)
}
