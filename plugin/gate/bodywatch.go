package gate

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// bodyPatience is how long the host may have bytes of a held request's body without a
// callback. After that the gate takes the configuration to be wrong. It is not shorter because
// a filter before the gate may hold a body while it asks another service about it.
const bodyPatience = time.Second

// bodyProbe is the time after which another request is held to find out whether bodies come now.
const bodyProbe = 10 * time.Second

// bodyWatch notices a host that holds the body back together with the headers. On such a
// host every request of a route in body mode would hang. The proof is a body of which bytes
// have come (request.total_size) without a callback; a slow client proves nothing.
// The first body that the host delivers ends the watch forever.
type bodyWatch struct {
	seen bool // the host delivered a body while headers were held
	// unavailable: the host delivers no bodies. Requests are refused, except one per
	// bodyProbe, which is held to find out whether that is still so.
	unavailable bool
	refusing    bool  // the requests that are held now must be refused
	probed      int64 // when a request was last held, or last proved that no body comes

	streams list // the watched streams: their requests are held and have had no body callback
}

// watched is what the watch knows of a held request.
type watched struct {
	size      uint64 // request.total_size at the headers
	heldSince int64  // since when the host is known to hold bytes back; 0: not known
}

// watch begins to watch the current stream. False: the stream must be refused.
func (b *bodyWatch) watch(s *Stream) bool {
	if b.seen {
		return true
	}
	p := s.plugin
	now := p.host.Now()
	if b.unavailable && (b.streams.first != nil || now >= b.probed && now-b.probed < int64(bodyProbe)) {
		return false
	}
	b.probed = now
	s.watched = watched{size: p.totalSize()}
	b.streams.add(s)
	return true
}

// unwatch ends the watch of one stream.
func (b *bodyWatch) unwatch(s *Stream) {
	b.streams.remove(s)
	b.refusing = b.refusing && b.streams.first != nil
}

// delivered must be called in every callback after the headers of a held request.
func (b *bodyWatch) delivered(h Host) {
	if b.seen {
		return
	}
	b.seen = true
	if b.unavailable {
		b.unavailable = false
		h.Log(LevelInfo, "oncegate: request bodies arrive now; mode body works")
	}
	for b.streams.first != nil {
		b.unwatch(b.streams.first)
	}
}

// checkBodies looks for the proof. It runs in the plugin context.
func (p *Plugin) checkBodies(now int64) {
	b := &p.bodies
	for s := b.streams.first; s != nil && !b.refusing; {
		next := s.next
		switch w := &s.watched; {
		case !p.choose(s.id):
			b.unwatch(s)
		case w.heldSince == 0 || now < w.heldSince:
			if p.totalSize() > w.size {
				w.heldSince = now
			}
		case now-w.heldSince >= int64(bodyPatience):
			b.refusing, b.probed = true, now
			if !b.unavailable {
				b.unavailable = true
				p.host.Log(LevelError, bodyHint)
			}
		}
		s = next
	}
}

const bodyHint = "oncegate: mode body is configured, but no body arrives while the request headers are held; " +
	"set allow_on_headers_stop_iteration in the plugin's configuration (Envoy 1.35 or newer), or use mode headers"

// totalSize returns how many bytes of the current stream's request the host has.
func (p *Plugin) totalSize() uint64 { return p.number("request", "total_size") }

// refuseBodies refuses the held requests, whose bodies will not come.
func (p *Plugin) refuseBodies() {
	b := &p.bodies
	for b.refusing && !p.spent() {
		s := b.streams.first
		b.unwatch(s)
		if p.choose(s.id) {
			s.bodyUnavailable()
		}
	}
}

func (s *Stream) bodyUnavailable() verdict {
	s.plugin.metrics.count(s.plugin.metrics.noBody)
	return s.refuse(&api.Problem{
		Status: 500,
		Code:   api.CodeBodyModeUnavailable,
		Title:  "The proxy does not show request bodies to the gate",
		Detail: "The request was not executed. The proxy's configuration must be corrected; its log says how.",
	})
}
