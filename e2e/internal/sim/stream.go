package sim

import (
	"strconv"

	"github.com/oncegate/oncegate/plugin/gate"
)

// stream is a request and its answer in a proxy whose only filter is the gate.
type stream struct {
	v    *vm
	id   uint32
	gate *gate.Stream
	try  *try // the client's side; nil once it is gone
	over bool

	request, response half
	up                *exchange // the exchange with upstream; nil: none yet

	// The values of properties.
	details, address, mark string
	flags                  uint64
	code                   int
	received               int
}

// half is one direction: Envoy's filter manager with one filter, as hostsim has it, without
// the buffers' limits.
type half struct {
	s        *stream
	response bool
	state    halting

	headers    [][2]string
	piece      []byte // the piece that the body callback is for
	held       []byte
	haveHeld   bool
	started    bool
	headersOut bool
	ended      bool // the message's end has come in
	outEnded   bool
	aborted    bool // a local reply took over
	collecting bool // the filter sees everything that is held, not only the piece
}

type halting uint8

const (
	flowing   halting = iota
	stopSome          // held, and body still reaches the filter
	stopWhole         // nothing reaches the filter
)

// newStream opens a stream of a client.
func (v *vm) newStream(t *try) *stream {
	v.p.streams++
	s := &stream{v: v, id: v.p.streams, try: t}
	s.request.s, s.response.s, s.response.response = s, s, true
	v.streams[s.id] = s
	s.gate = v.plugin.NewStream(s.id)
	return s
}

// headersIn takes the message's headers.
func (h *half) headersIn(headers [][2]string, end bool) {
	s := h.s
	h.started, h.ended, h.headers = true, end, headers
	var a gate.Action
	ran := false
	s.v.enter(s, func() {
		if h.response {
			a = s.gate.OnResponseHeaders(end)
		} else {
			a = s.gate.OnRequestHeaders(end)
		}
		ran = true
	})
	if !ran || s.over || h.aborted {
		return
	}
	switch {
	case a == gate.Continue:
		if !h.headersOut {
			h.sendHeaders(end)
		}
	case h.state != flowing || h.headersOut:
	case a == gate.PauseAll || !s.v.p.w.plan.Body:
		h.state = stopWhole
	default:
		h.state = stopSome
	}
}

// dataIn takes a piece of the message's body.
func (h *half) dataIn(b []byte, end bool) {
	h.ended = h.ended || end
	if h.state == stopWhole {
		h.hold(b)
		return
	}
	h.filter(b, end, false)
}

// filter runs a piece through the gate. replay says that the piece was held before.
func (h *half) filter(b []byte, end, replay bool) {
	s := h.s
	if h.collecting && !replay {
		h.hold(b)
		b = h.held
	}
	h.piece = b
	var a gate.Action
	ran := false
	s.v.enter(s, func() {
		if h.response {
			a = s.gate.OnResponseBody(len(b), end)
		} else {
			a = s.gate.OnRequestBody(len(b), end)
		}
		ran = true
	})
	b, h.piece = h.piece, nil
	if !ran || s.over || h.aborted {
		return
	}
	keep := func() {
		switch {
		case h.collecting && !replay:
		case replay:
			h.held, h.haveHeld = b, true
		default:
			h.hold(b)
		}
	}
	switch a {
	case gate.Continue:
		if h.state == stopSome {
			keep()
			h.proceed()
			return
		}
		if replay || h.collecting {
			h.held, h.haveHeld = nil, false
		}
		h.sendData(b, end)
	case gate.Drop:
		h.state = stopSome
		if h.ended && !h.haveHeld {
			h.haveHeld = true
		}
	default:
		h.state = stopSome
		keep()
		h.collecting = a == gate.Collect
	}
}

func (h *half) hold(b []byte) {
	h.held, h.haveHeld = append(h.held[:len(h.held):len(h.held)], b...), true
}

// resume is called when the gate resumes the direction.
func (h *half) resume() {
	if h.s.over || h.aborted {
		return
	}
	if h.state == flowing {
		h.s.v.p.w.fail("%s resumes stream %d, which is not paused", h.s.v.name, h.s.id)
		return
	}
	h.proceed()
}

// proceed sends on what is held.
func (h *half) proceed() {
	if h.s.over || h.aborted {
		return
	}
	whole := h.state == stopWhole
	h.state = flowing
	if !h.headersOut {
		h.sendHeaders(h.ended && !h.haveHeld)
	}
	if !h.haveHeld || h.s.over {
		return
	}
	if whole {
		h.filter(h.held, h.ended, true)
		return
	}
	b := h.held
	h.held, h.haveHeld = nil, false
	h.sendData(b, h.ended)
}

func (h *half) sendHeaders(end bool) {
	h.headersOut, h.outEnded = true, end
	s := h.s
	if h.response {
		if s.try != nil {
			s.try.headers(h.headers)
		}
	} else {
		s.up = s.v.p.w.upstream.open(s, h.headers)
	}
	if end {
		h.sentEnd()
	}
}

func (h *half) sendData(b []byte, end bool) {
	if h.s.over || h.outEnded || len(b) == 0 && !end {
		return
	}
	h.outEnded = end
	if h.response {
		if h.s.try != nil {
			h.s.try.data(b)
		}
	} else if h.s.up != nil {
		h.s.up.body = append(h.s.up.body, b...)
	}
	if end {
		h.sentEnd()
	}
}

func (h *half) sentEnd() {
	if !h.response {
		h.s.up.begin()
		return
	}
	if t := h.s.try; t != nil {
		h.s.try = nil
		t.complete()
	}
	h.s.destroy()
}

// localReply answers in upstream's place: the gate's own replies, and the proxy's.
func (s *stream) localReply(status int, details string, flags uint64, headers [][2]string, body []byte) {
	if s.over {
		return
	}
	if s.response.started {
		s.cut() // too late for another answer
		return
	}
	s.request.aborted = true
	s.details, s.flags, s.code = details, flags, status
	list := append([][2]string{{":status", strconv.Itoa(status)}}, headers...)
	s.response.headersIn(list, len(body) == 0)
	if len(body) > 0 && !s.over {
		s.response.dataIn(body, true)
	}
}

// cut breaks the stream off: the client sees a reset.
func (s *stream) cut() {
	if s.over {
		return
	}
	if t := s.try; t != nil {
		s.try = nil
		t.reset("connection reset")
	}
	s.destroy()
}

// left is called when the client leaves.
func (s *stream) left() {
	s.try = nil
	if s.over {
		return
	}
	s.flags |= 0x4000
	s.destroy()
}

// destroy ends the stream and its exchange with upstream.
func (s *stream) destroy() {
	if s.over {
		return
	}
	s.over = true
	if s.up != nil {
		s.up.stream = nil
	}
	v := s.v
	v.enter(s, s.gate.OnDone)
	delete(v.streams, s.id)
}
