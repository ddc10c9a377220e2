package gate

import (
	"fmt"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// However many streams are due at once, one callback answers or resumes only a few, and the
// callbacks that follow do the rest without waiting for the tick.
func TestOneCallbackAnswersFewStreams(t *testing.T) {
	const crowd = 20 * maxHandled
	config := fmt.Sprintf(`{"max_waiters":%d,"pending_wait_timeout":1}`, 2*crowd)
	sent := func(h *fakeHost, p *Plugin, key func(i int) string) {
		for i := range crowd {
			s, _ := h.open(p, uint32(i+1), key(i))
			s.OnRequestHeaders(true)
		}
	}
	known := api.ReserveReply{
		State: api.StateCommitted, ExpiresIn: time.Minute, Result: api.Result{Status: 200, Body: []byte("the answer")},
	}
	one := func(int) string { return "k" }
	each := func(i int) string { return fmt.Sprint("k", i) }
	for _, c := range []struct {
		name  string
		begin func(h *fakeHost, p *Plugin) // the callback in which all become due
		want  int                          // replies in all
	}{
		{"an answer that all wait for", func(h *fakeHost, p *Plugin) {
			sent(h, p, one)
			h.ready(p)
			h.respond(p, 0, "200", known)
		}, crowd},
		{"a reservation that fails", func(h *fakeHost, p *Plugin) {
			sent(h, p, one)
			h.ready(p)
			h.respond(p, 0, "503", api.ReserveReply{})
		}, crowd},
		{"time-outs in one tick", func(h *fakeHost, p *Plugin) {
			sent(h, p, one)
			h.ready(p)
			h.respond(p, 0, "201", granted)
			h.now += int64(2 * time.Second)
			h.tick(p)
		}, crowd - 1},
		{"calls whose managers stay away", func(h *fakeHost, p *Plugin) {
			h.goAway(p)
			sent(h, p, each)
			h.ready(p)
			h.now += int64(lastBackoff)
			h.tick(p)
		}, crowd},
		{"answers of the ledger that get lost", func(h *fakeHost, p *Plugin) {
			sent(h, p, each)
			h.ready(p)
			h.now += int64(time.Minute)
			h.tick(p)
		}, crowd},
		{"streams that the host has forgotten", func(h *fakeHost, p *Plugin) {
			sent(h, p, one)
			h.ready(p)
			for i := range crowd / 2 {
				h.gone[uint32(2*i+2)] = true
			}
			h.respond(p, 0, "200", known)
		}, crowd / 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newFakeHost(t)
			p := started(t, h, config)
			c.begin(h, p)
			for range crowd {
				h.ready(p)
			}
			if h.mostActs > maxHandled+1 {
				t.Errorf("%d replies and resumes in one callback", h.mostActs)
			}
			replies := 0
			for _, f := range h.streams {
				replies += len(f.replies)
			}
			expect(t, "replies", replies, c.want)
			expect(t, "waiting", p.waiting.size, 0)
		})
	}
}

// One callback also handles only a few answers that stand still, and a few requests whose bodies never come.
func TestOneTickHandlesFewStalledStreams(t *testing.T) {
	const crowd = 20 * maxHandled
	t.Run("answers that stand still", func(t *testing.T) {
		h := newFakeHost(t)
		p := started(t, h, "")
		for i := range crowd {
			s, _ := h.open(p, uint32(i+1), fmt.Sprint("k", i))
			s.OnRequestHeaders(true)
			h.ready(p)
			h.respond(p, i, "201", granted)
			f := h.streams[uint32(i+1)]
			h.current = uint32(i + 1)
			s.OnResponseHeaders(false)
			f.responseBody = make([]byte, stallBytes)
			expect(t, "body", s.OnResponseBody(stallBytes, false), Pause)
		}
		h.mostActs = 0
		for range stallTicks + crowd/maxHandled {
			h.tick(p)
		}
		expect(t, "most", h.mostActs, maxHandled)
		for id, f := range h.streams {
			if f.resumedResponse != 1 {
				t.Fatalf("answer %d was let go %d times", id, f.resumedResponse)
			}
		}
	})
	t.Run("bodies that do not come", func(t *testing.T) {
		h := newWatchedHost(t)
		for range crowd {
			h.hold(5)
		}
		h.pass(bodyPatience + time.Second)
		expect(t, "most", h.mostActs, maxHandled)
		expect(t, "refused", h.values["oncegate_gate_requests_body_unavailable_total"], crowd)
	})
}
