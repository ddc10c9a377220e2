package hostsim

// half is one direction of a stream on its way through the filter: Envoy's filter
// manager with a single filter in the chain. It is
//
//	iterating     everything goes through the filter's callbacks and on
//	stopSingle    the filter stopped on headers (with AllowOnHeadersStopIteration), body or
//	              trailers: further body still reaches its callbacks; "continue" from one of
//	              them, or a resume, sends on all that is held
//	stopAll       the filter stopped on headers: nothing reaches it, everything is held until
//	              a resume, which sends the headers on and then plays the held body and
//	              trailers through the filter's callbacks
type half struct {
	s        *Stream
	response bool

	state            iterationState
	stopAllStreaming bool // what streaming is for body that comes in stopAll
	started          bool // headers have come in
	headersContinued bool // headers have been sent on
	ended            bool // the message's end has come in
	outEnded         bool // the message's end has been sent on
	aborted          bool // a local reply took over: what still comes in is dropped

	headers, trailers Headers
	haveTrailers      bool

	// What is held: haveBuffer is true also for an empty buffer, which stands for an
	// empty piece that ends the message. streaming says that a buffer that gets over the
	// limit slows the sender down rather than ending the stream. above: it did, and has
	// not come down to half the limit since.
	buffer     []byte
	haveBuffer bool
	streaming  bool
	above      bool

	// What the filter's host functions see.
	seeHeaders, seeTrailers bool
	body                    *[]byte // the piece at hand; after a pause, nothing
	stale                   bool    // Envoy would still show the filter a piece that is gone
	buffering               bool    // the filter paused on body: it sees buffer, not body

	window window
}

type iterationState uint8

const (
	iterating iterationState = iota
	stopSingle
	stopAll
)

func (h *half) dirName() string {
	if h.response {
		return "response"
	}
	return "request"
}

// headersIn takes the message's headers.
func (h *half) headersIn(hd Headers, endStream bool) {
	h.started, h.ended, h.headers = true, endStream, hd
	decoding := h.s.enterDecoding(h)
	st := h.callHeaders(endStream)
	if h.s.leaveDecoding(h, decoding) {
		return
	}
	switch st {
	case headersContinue:
		if !h.headersContinued {
			h.headersContinued = true
			h.sendHeaders(endStream)
		}
	case headersStopSingle:
		h.stop(stopSingle)
	case headersStopAllBuffer, headersStopAllWatermark:
		h.stop(stopAll)
		h.stopAllStreaming = st == headersStopAllWatermark
	}
}

func (h *half) stop(to iterationState) {
	if !h.s.over {
		h.state = to
	}
}

// dataIn takes a piece of the message's body.
func (h *half) dataIn(b []byte, endStream bool) {
	h.ended = h.ended || endStream
	if h.state == stopAll {
		h.streaming = h.stopAllStreaming
		h.hold(b)
		return
	}
	h.filterData(b, endStream, false)
}

// trailersIn takes the message's trailers.
func (h *half) trailersIn(t Headers) {
	h.ended, h.haveTrailers, h.trailers = true, true, t
	if h.state == stopAll {
		return
	}
	h.filterTrailers()
}

// filterData runs a piece of body through the filter. held says that it is the held
// buffer itself that is played again after a resume.
func (h *half) filterData(b []byte, endStream, held bool) {
	s := h.s
	decoding := s.enterDecoding(h)
	if h.buffering && !held {
		// The filter collects: it is shown all there is so far. A request that is now too
		// large is shown once more before the 413 goes out; a response is not.
		h.streaming = false
		h.hold(b)
		b = nil
		if s.over || h.aborted {
			return
		}
	}
	st := h.callBody(&b, endStream)
	if s.leaveDecoding(h, decoding) {
		return
	}
	if held {
		h.replace(b) // what the filter made of it
		if s.over || h.aborted {
			return
		}
	}
	switch st {
	case dataContinue:
		if h.state == stopSingle {
			if !held {
				h.hold(b)
			}
			h.proceed()
			return
		}
		if held {
			b = h.take()
		}
		// Trailers that the filter added while it saw the last piece come after it.
		h.sendData(b, endStream && !h.haveTrailers)
		if endStream && h.haveTrailers {
			h.sendTrailers()
		}
		return
	case dataStopBuffer, dataStopWatermark:
		h.stop(stopSingle)
		h.streaming = st == dataStopWatermark
		if !held {
			h.hold(b)
		}
	case dataStopNoBuffer:
		h.stop(stopSingle)
		if h.ended && !h.haveTrailers && !h.haveBuffer {
			h.haveBuffer = true // the end must still come through after a resume
		}
	}
}

func (h *half) filterTrailers() {
	decoding := h.s.enterDecoding(h)
	st := h.callTrailers()
	if h.s.leaveDecoding(h, decoding) {
		return
	}
	if st == trailersStop {
		if h.state == iterating {
			h.stop(stopSingle)
		}
		return
	}
	if h.state == stopSingle {
		h.proceed()
		return
	}
	h.sendTrailers()
}

// resume is the filter's own wish to go on.
func (h *half) resume() {
	s := h.s
	if s.over || h.aborted {
		return // answered meanwhile
	}
	if !h.started {
		s.violation(h.dirName() + " resumed before it has begun; Envoy crashes here")
		return
	}
	if h.state == iterating {
		s.violation(h.dirName() + " resumed although it is not paused")
		if h.headersContinued && !h.haveBuffer {
			return
		}
	}
	h.proceed()
}

// proceed sends on what is held. After stopAll the filter's own body and trailer
// callbacks come first.
func (h *half) proceed() {
	if h.s.over || h.aborted {
		return
	}
	fromFilter := h.state == stopAll
	h.state = iterating
	if !h.headersContinued {
		h.headersContinued = true
		h.sendHeaders(h.ended && !h.haveBuffer && !h.haveTrailers)
	}
	hadTrailers := h.haveTrailers
	if h.haveBuffer && !h.s.over {
		end := h.ended && !hadTrailers
		if fromFilter {
			h.filterData(h.buffer, end, true)
		} else {
			h.sendData(h.take(), end)
		}
	}
	if !hadTrailers || h.s.over || h.aborted || h.state == stopAll {
		return
	}
	if fromFilter {
		h.filterTrailers()
	} else {
		h.sendTrailers()
	}
}

// hold adds a piece to the held buffer.
func (h *half) hold(b []byte) {
	if len(h.buffer) == 0 {
		h.replace(b)
	} else {
		h.replace(append(h.buffer, b...))
	}
}

// replace changes the held buffer and takes the consequences, as Envoy does with its
// two watermarks: only the moment at which the buffer gets over the limit counts, so that
// one that is above already ends no stream.
func (h *half) replace(b []byte) {
	h.buffer, h.haveBuffer = b, true
	limit := h.s.host.cfg.BufferLimit
	switch {
	case h.above && len(b) <= limit/2:
		h.above = false
	case !h.above && len(b) > limit:
		h.above = true
		if !h.streaming {
			h.tooLarge()
		}
	}
	h.account()
}

func (h *half) take() []byte {
	b := h.buffer
	h.replace(nil)
	h.haveBuffer = false
	return b
}

// account tells the feeder's window what Envoy tells the socket: not to be read while
// the buffer is above its limit. Below it, what is held does not count, so that one read
// can bring as much as the limit on top of it.
func (h *half) account() {
	held := 0
	if h.above {
		held = max(len(h.buffer), h.s.host.cfg.BufferLimit+1)
	}
	h.window.setHeld(held)
}

// tooLarge ends a stream whose collected body is over the limit.
func (h *half) tooLarge() {
	s := h.s
	if s.over || h.aborted {
		return
	}
	if h.response {
		s.sendLocalReply(&localReply{code: 500, body: []byte("Internal Server Error"), details: "response_payload_too_large", grpcStatus: -1}, ResetTooLarge)
		return
	}
	s.sendLocalReply(&localReply{code: 413, body: []byte("Payload Too Large"), details: "request_payload_too_large", grpcStatus: -1}, ResetTooLarge)
}

// --- sending on ---

func (h *half) sink() Sink {
	if h.response {
		return h.s.opts.Downstream
	}
	return h.s.opts.Upstream
}

func (h *half) sendHeaders(endStream bool) {
	s := h.s
	if s.over {
		return
	}
	if !h.response {
		s.upstreamOpen = true
	}
	hd := h.headers
	if h.seeHeaders {
		hd = hd.Clone() // the filter can still change its map
	}
	h.outEnded = endStream
	h.sink().Headers(hd, endStream)
	if endStream {
		h.sentEnd()
	}
}

func (h *half) sendData(b []byte, endStream bool) {
	if h.s.over || h.outEnded || len(b) == 0 && !endStream {
		return
	}
	h.outEnded = endStream
	if h.response {
		h.s.info.respBytes += uint64(len(b))
	}
	h.sink().Data(b, endStream)
	if endStream {
		h.sentEnd()
	}
}

func (h *half) sendTrailers() {
	if h.s.over || h.outEnded {
		return
	}
	h.outEnded = true
	h.seeTrailers = false
	h.sink().Trailers(h.trailers)
	h.sentEnd()
}

func (h *half) sentEnd() {
	if h.response {
		h.s.finish(ResetResponseFirst)
	}
}
