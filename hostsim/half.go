package hostsim

// half is one direction of a stream through the filter: Envoy's filter manager with a single filter in the chain. Its
// states are
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
	stopAllStreaming bool // what streaming will be for body that arrives in stopAll
	started          bool // headers have arrived
	headersContinued bool // headers have been sent on
	ended            bool // the end of the message has arrived
	outEnded         bool // the end of the message has been sent on
	aborted          bool // a local reply replaced the message: whatever still arrives is dropped

	headers, trailers Headers
	haveTrailers      bool

	// The held body. haveBuffer is also true for an empty buffer, which stands for an empty piece that ends the
	// message. streaming says that a buffer above the limit slows the sender down instead of ending the stream. above
	// says that the buffer exceeded the limit and has not fallen to half of it since.
	buffer     []byte
	haveBuffer bool
	streaming  bool
	above      bool

	// What the filter's host functions see.
	seeHeaders, seeTrailers bool
	body                    *[]byte // the current piece; nil after a pause
	stale                   bool    // Envoy would still show the filter a piece that was freed
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

// headersIn handles the message's headers.
func (h *half) headersIn(hd Headers, endStream bool) {
	h.started, h.ended, h.headers = true, endStream, hd
	if !h.response {
		h.s.grpc = isGrpc(hd)
	}
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

// dataIn handles a piece of the message's body.
func (h *half) dataIn(b []byte, endStream bool) {
	h.ended = h.ended || endStream
	if h.state == stopAll {
		h.streaming = h.stopAllStreaming
		h.hold(b)
		return
	}
	h.filterData(b, endStream, false)
}

// trailersIn handles the message's trailers.
func (h *half) trailersIn(t Headers) {
	h.ended, h.haveTrailers, h.trailers = true, true, t
	if h.state == stopAll {
		return
	}
	h.filterTrailers()
}

// filterData passes a piece of body through the filter. held says that b is the held buffer, passed again after a
// resume.
func (h *half) filterData(b []byte, endStream, held bool) {
	s := h.s
	decoding := s.enterDecoding(h)
	if h.buffering && !held {
		// The filter collects the body, so it gets everything so far. A request that is now too large is shown once
		// more before the 413 is sent; a response is not.
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
		h.replace(b) // with the filter's changes
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
			b = h.takeBuffer()
		}
		// Trailers that the filter added during the last piece come after it.
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
			h.haveBuffer = true // the end must still be sent after a resume
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

// resume is the filter's request to continue.
func (h *half) resume() {
	s := h.s
	if s.over || h.aborted {
		return // a local reply replaced the message meanwhile
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

// proceed sends on what is held. After stopAll it first calls the filter's body and trailer callbacks.
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
			h.sendData(h.takeBuffer(), end)
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

// replace sets the held buffer and applies its consequences. As with Envoy's two watermarks, only the moment at which
// the buffer exceeds the limit matters: a buffer that was already above it ends no stream.
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
	h.updateWindow()
}

func (h *half) takeBuffer() []byte {
	b := h.buffer
	h.replace(nil)
	h.haveBuffer = false
	return b
}

// updateWindow tells the feeder's window what Envoy tells the socket: not to read while the buffer is above its limit.
// Below the limit the held bytes do not count, so one read can add as much as the limit to them.
func (h *half) updateWindow() {
	held := 0
	if h.above {
		held = max(len(h.buffer), h.s.host.cfg.BufferLimit+1)
	}
	h.window.setHeld(held)
}

// tooLarge ends a stream whose collected body exceeds the limit.
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
