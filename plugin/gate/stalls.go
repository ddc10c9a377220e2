package gate

const (
	// stallTicks is how long, in ticks, an answer may stand still until the host's buffer
	// is taken for full.
	stallTicks = 5
	// stallBytes is less than any useful buffer limit: smaller answers are always held.
	stallBytes = 4 << 10
)

// await notes that the host holds a piece of s's body, and that the gate waits for more.
func (p *Plugin) await(s *Stream) {
	s.moved = p.ticks
	if s.list == nil {
		p.partial.add(s)
	}
}

// arrived notes that the gate does not wait any more.
func (p *Plugin) arrived(s *Stream) { p.partial.remove(s) }

// stalls looks for bodies that stand still. With an answer, either upstream is slow, or the
// host's buffer is full, and then nothing comes until the gate lets go of what is in it.
// Letting go is right in both cases: the answer is copied all the same, and its end waits
// for the ledger. With a request, only the log can tell.
func (p *Plugin) stalls() {
	p.ticks++
	for s, next := p.partial.first, (*Stream)(nil); s != nil && !p.spent(); s = next {
		next = s.next
		still := p.ticks - s.moved
		switch {
		case s.phase == phaseHeld && still >= stallTicks && s.answer.passed >= stallBytes:
			p.arrived(s)
			if p.choose(s.id) {
				s.letGo()
			}
		case s.phase == phaseBody && still >= int64(bodyPatience/tickPeriod) && s.upload.body.Len() >= stallBytes && !p.stuck:
			p.stuck = true
			p.host.Log(LevelWarn, "oncegate: a request body stands still after "+decimal(s.upload.body.Len())+
				" bytes; unless the client is slow, "+limitHint+"max_request_body_bytes")
		}
	}
}

// letGo has what the host holds of an answer pass, except the last byte.
func (s *Stream) letGo() {
	p, a := s.plugin, &s.answer
	s.phase, s.moved, a.stalled = phaseCopied, p.ticks, true
	if a.complete() && s.copied() == Pause {
		return // it is recorded now
	}
	p.acts++
	if !p.host.ResumeResponse() {
		p.host.Log(LevelError, "oncegate: the host refused to resume a response")
	}
}

// learn notes how much of an answer the host holds, when one moves as soon as it is let go.
func (p *Plugin) learn(s *Stream) {
	a := &s.answer
	if !a.stalled {
		return
	}
	a.stalled = false
	if p.ticks-s.moved > 1 {
		return // upstream was slow
	}
	// A piece or two may have come after the buffer was full.
	fits := max(a.fitted/2, stallBytes)
	if p.fullAt == 0 {
		p.host.Log(LevelWarn, "oncegate: the host stopped reading an answer before max_response_body_bytes; answers of more than "+decimal(fits)+
			" bytes begin to pass before they are recorded; "+limitHint+"max_response_body_bytes")
	}
	if p.fullAt == 0 || fits < p.fullAt {
		p.fullAt = fits
	}
}

const limitHint = "per_connection_buffer_limit_bytes of the listener (for HTTP/2, initial_stream_window_size) should not be below "
