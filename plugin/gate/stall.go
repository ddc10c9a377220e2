package gate

import "strconv"

// Bodies that stand still.

const (
	// stallTicks is how many ticks an answer may stand still before the gate takes the host's buffer to be full.
	stallTicks = 5
	// stallBytes is less than any useful buffer limit. The gate always holds smaller bodies.
	stallBytes = 4 << 10
)

// checkStalls looks for bodies that stand still. An answer stands still because upstream is slow, or because the host's
// buffer is full; in the second case nothing comes until the gate releases the buffer. Releasing it is right in both cases:
// the gate copies the rest of the answer, and its end waits for the ledger. About a request's body the gate can only write
// to the log.
func (p *Plugin) checkStalls() {
	p.ticks++
	for s, next := p.awaitingBody.first, (*Stream)(nil); s != nil && !p.atLimit(); s = next {
		next = s.next
		still := p.ticks - s.lastProgress
		switch {
		case s.phase == phaseHolding && still >= stallTicks && s.answer.passed >= stallBytes:
			p.awaitingBody.remove(s)
			if p.makeCurrent(s.id) {
				s.releaseBody()
			}
		case s.phase == phaseBody && still >= int64(bodyPatience/tickPeriod) && s.upload.body.Len() >= stallBytes && !p.stallLogged:
			p.stallLogged = true
			p.host.Log(LevelWarn, "oncegate: a request body stands still after "+strconv.FormatInt(s.upload.body.Len(), 10)+
				" bytes; unless the client is slow, "+limitHint+"max_request_body_bytes")
		}
	}
}

// releaseBody releases the body that the host holds. If that is the whole body, it records the answer instead, and the body
// waits for the ledger.
func (s *Stream) releaseBody() {
	p, a := s.plugin, &s.answer
	s.phase, s.lastProgress, a.stalled = phaseCopying, p.ticks, true
	if a.complete() && s.recordWhole() == Pause {
		return // the answer waits for the ledger
	}
	s.resumeResponse()
}

// learnBufferSize records the size of the host's buffer: an answer that moves as soon as it is released had filled it.
func (p *Plugin) learnBufferSize(s *Stream) {
	a := &s.answer
	if !a.stalled {
		return
	}
	a.stalled = false
	if p.ticks-s.lastProgress > 1 {
		return // upstream was slow
	}
	// Half of it is a safe estimate: a piece or two may have come after the buffer was full.
	fits := max(a.fitted/2, stallBytes)
	if p.hostBufferBytes == 0 {
		p.host.Log(LevelWarn, "oncegate: the host stopped reading an answer before max_response_body_bytes; answers of more than "+strconv.FormatInt(fits, 10)+
			" bytes begin to pass before they are recorded; "+limitHint+"max_response_body_bytes")
	}
	if p.hostBufferBytes == 0 || fits < p.hostBufferBytes {
		p.hostBufferBytes = fits
	}
}

const limitHint = "per_connection_buffer_limit_bytes of the listener (for HTTP/2, initial_stream_window_size) should not be below "
