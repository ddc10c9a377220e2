package gate

import "github.com/oncegate/oncegate/plugin/config"

// collectBytes is the largest body that the gate asks the host to collect. The host fails an
// answer beyond its own limit, which is larger than this unless it was configured.
const collectBytes = 512 << 10

// OnResponseBody is called for a piece of the answer's body, of size bytes. In
// phaseCollecting the piece is everything that has come.
func (s *Stream) OnResponseBody(size int, end bool) Action {
	s.plugin.chosen = s.id
	switch s.phase {
	case phaseHolding, phaseCopying:
		return s.copyBody(size, end)
	case phaseCollecting:
		return s.collectBody(size, end)
	case phaseStreaming:
		return s.streamBody(size, end)
	case phaseRecording:
		return Pause
	case phaseReplied:
		return s.addTrailers(end)
	case phaseFilling:
		return s.fillBody(end)
	}
	return Continue
}

// OnResponseTrailers is called for trailers, which end the answer.
func (s *Stream) OnResponseTrailers() Action {
	s.plugin.chosen = s.id
	switch s.phase {
	case phaseHolding, phaseCopying, phaseCollecting:
		trailers := s.plugin.host.ResponseTrailers()
		if s.grading && s.settleGraded(s.grade(trailers)) {
			return Continue
		}
		s.keepTrailers(trailers)
	}
	switch s.phase {
	case phaseHolding, phaseCopying:
		return s.recordCopied()
	case phaseCollecting:
		return s.recordCollected(int(s.answer.passed))
	case phaseStreaming:
		return s.endAnswer(s.commitsBeforeReply())
	case phaseRecording:
		return Pause
	}
	return Continue
}

// copyBody copies a piece. The host holds the piece in phaseHolding and passes it on in
// phaseCopying. The end of the answer waits for the ledger in both. If the length is known, the
// piece with the last byte counts as the end.
func (s *Stream) copyBody(size int, end bool) Action {
	a, p := &s.answer, s.plugin
	first := a.passed == 0
	if s.phase == phaseHolding {
		a.fitted = a.passed
	}
	a.passed += int64(size)
	complete := end || a.complete()
	if first && !complete && s.phase == phaseHolding && a.expected > 0 && a.expected <= collectBytes && p.hostBufferBytes == 0 && !s.claim(int(a.expected)) {
		// The VM has no room for the copy, and the host's buffer is not known to be too small.
		s.phase = phaseCollecting
		return Collect
	}
	if !s.copyPiece(size, complete) {
		p.stopAwaiting(s)
		s.phase = phaseStreaming
		s.recordOutcome(nil, true)
		if complete {
			return s.endAnswer(s.commitsBeforeReply())
		}
		return Continue
	}
	switch {
	case end || complete && s.phase == phaseCopying && s.commitsBeforeReply() && !s.grading:
		return s.recordCopied()
	case s.phase == phaseCopying:
		p.learnBufferSize(s)
		return Continue
	case !complete && p.hostBufferBytes > 0 && a.passed > p.hostBufferBytes:
		p.stopAwaiting(s)
		s.phase = phaseCopying
		return Continue
	}
	p.awaitMore(s)
	return Pause
}

// complete reports whether as much body has come as was announced.
func (a *answer) complete() bool { return a.expected >= 0 && a.passed >= a.expected }

// copyPiece adds a piece to the copy of the body. False: the body is too large, the VM holds
// too much already, or the host does not hand the piece over.
func (s *Stream) copyPiece(size int, last bool) bool {
	a := &s.answer
	if a.passed > int64(s.route.MaxResponseBody) {
		return false
	}
	if size == 0 {
		return true
	}
	need := len(a.body) + size
	if !last && a.expected > 0 {
		need = int(a.expected)
	}
	if !s.claim(need) {
		return false
	}
	piece := s.plugin.host.ResponseBody(size)
	if len(piece) != size {
		return false
	}
	switch {
	case a.body != nil:
		a.body = append(a.body, piece...)
	case last || a.expected <= 0:
		a.body = piece
	default:
		a.body = append(make([]byte, 0, need), piece...)
	}
	return true
}

// recordCopied records an answer whose whole body is copied.
func (s *Stream) recordCopied() Action {
	if s.grading && s.settleGraded(false) {
		return Continue
	}
	s.plugin.stopAwaiting(s)
	s.recordOutcome(s.answer.body, false)
	return s.endAnswer(s.commitsBeforeReply())
}

// collectBody lets the host collect a body that the VM has no room for, until its end.
func (s *Stream) collectBody(size int, end bool) Action {
	s.answer.passed = int64(size)
	if !end {
		return Collect
	}
	return s.recordCollected(size)
}

func (s *Stream) recordCollected(size int) Action {
	if s.grading && s.settleGraded(false) {
		return Continue
	}
	var body []byte
	if size > 0 {
		body = s.plugin.host.ResponseBody(size)
	}
	s.recordOutcome(body, len(body) != size)
	return s.endAnswer(s.commitsBeforeReply())
}

// claim raises the bytes that are claimed for the copy of the answer's body to total.
// False: the VM holds too much already.
func (s *Stream) claim(total int) bool {
	a, l := &s.answer, &s.plugin.calls
	more := total - a.claimed
	if more <= 0 {
		return true
	}
	if !l.makeRoom(more) {
		return false
	}
	a.claimed += more
	l.heldBytes += more
	return true
}

// streamBody passes a body that is not recorded. Its end waits for the ledger, too.
func (s *Stream) streamBody(size int, end bool) Action {
	a := &s.answer
	a.passed += int64(size)
	if end || a.complete() {
		return s.endAnswer(s.commitsBeforeReply())
	}
	return Continue
}

// commitsBeforeReply reports whether the end of the answer waits for the ledger.
func (s *Stream) commitsBeforeReply() bool {
	return s.route.Ledger == config.LedgerManager && s.route.Commit == config.CommitBeforeReply
}

// endAnswer ends the answer: now, or with hold when the ledger has the outcome.
func (s *Stream) endAnswer(hold bool) Action {
	s.forgetUnsuited()
	if hold && s.call != nil {
		s.phase = phaseRecording
		return Pause
	}
	s.phase = phaseDone
	return Continue
}

// answerRecorded is called in the plugin context when the ledger has the outcome,
// or could not be. s is nil if the stream has ended.
func (s *Stream) answerRecorded() {
	if s == nil {
		return
	}
	switch s.phase {
	case phaseSettling:
		s.handOver()
		return
	case phaseRecording:
	default:
		return
	}
	s.phase = phaseDone
	s.plugin.acts++
	if !s.plugin.host.ResumeResponse() {
		s.plugin.host.Log(LevelError, "oncegate: the host refused to resume a response")
	}
}
