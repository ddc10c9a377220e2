package gate

import (
	"slices"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/internal/fields"
	"github.com/oncegate/oncegate/plugin/request"
)

// answer is what the gate knows about upstream's answer while it passes.
type answer struct {
	outcome      config.Outcome
	outcomeValue string // the value of the outcome header
	status       int
	headers      []api.Header
	expected     int64  // content-length; -1: not declared
	passed       int64  // bytes of body that came
	fitted       int64  // bytes of body that the host held when the last piece came
	stalled      bool   // the body stood still and was released
	streamed     bool   // its media type is one of streamed_types
	body         []byte // the copy of the body so far
	claimed      int    // bytes that body counts in ledger.heldBytes
}

// classifyAnswer decides what an answer to a forwarded request means for its reservation.
func (s *Stream) classifyAnswer(end bool) Action {
	p := s.plugin
	switch p.fate() {
	case fateNotSent:
		s.releaseKey()
		s.status = statusNotSent
		s.setStatusHeader()
		return Continue
	case fateUnknown:
		s.endUnknown()
		s.setStatusHeader()
		return Continue
	}
	headers := p.host.ResponseHeaders()
	text, ok := fields.Value(headers, headerStatus)
	if !ok {
		text, _ = p.host.ResponseHeader(headerStatus)
	}
	status, _ := fields.Decimal(text)
	a := &s.answer
	a.status = int(status)
	headers = s.classify(headers)
	if s.rpc && a.status == 200 {
		s.outcomeFromHeaders(headers, end)
	}
	if s.route.Ledger == config.LedgerUpstream {
		s.upstreamLedger(headers)
	} else if a.outcome == config.OutcomeRelease {
		s.status = statusReleased
	}
	s.setStatusHeader()
	if s.ledgerNone() {
		p.host.SetResponseHeader(headerLedger, "none")
	}
	if s.endUnrecorded() {
		return Continue
	}
	if s.route.Ledger != config.LedgerManager && !s.owner {
		s.phase = phasePass
		return Continue
	}
	return s.startRecording(headers, end)
}

// classify sets the outcome of upstream's answer, whose status is known. It returns the headers without the one that only
// the gate may see.
func (s *Stream) classify(headers [][2]string) [][2]string {
	a, name := &s.answer, s.route.OutcomeHeader
	_, retry := fields.Value(headers, headerRetryAfter)
	if name != "" {
		if value, n := request.Headers(headers).Get(name); n == 1 {
			a.outcomeValue = fields.Trim(value)
		}
		headers = slices.DeleteFunc(headers, func(h [2]string) bool { return h[0] == name })
	}
	a.outcome = s.route.Outcome(a.status, retry, a.outcomeValue)
	return headers
}

// upstreamLedger adapts the outcome to an upstream that keeps the ledger itself. The cache may repeat only answers that
// this ledger has certainly recorded.
func (s *Stream) upstreamLedger(headers [][2]string) {
	a := &s.answer
	if a.outcome != config.OutcomeCommit || a.status >= 400 {
		a.outcome = config.OutcomeRelease
	}
	if v, ok := fields.Value(headers, api.HeaderReplayed); ok && v == "true" {
		s.status = statusReplayed
	}
}

// setStatusHeader changes the headers of an answer that passes.
func (s *Stream) setStatusHeader() {
	if s.route != nil && s.route.OutcomeHeader != "" {
		s.plugin.host.RemoveResponseHeader(s.route.OutcomeHeader)
	}
	if s.status == "" {
		return
	}
	s.plugin.host.SetResponseHeader(api.HeaderStatus, s.status)
	if name := s.route.EchoHeader(); name != "" && s.key != "" {
		s.plugin.host.SetResponseHeader(name, s.key)
	}
	switch name, ttl := s.route.Response.TTLHeader, s.outcomeTTL(); {
	case name == "", ttl == 0 && s.ledgerUpstream():
	case ttl == 0:
		s.plugin.host.RemoveResponseHeader(name) // upstream does not know how long the gate remembers its answer
	default:
		s.plugin.host.SetResponseHeader(name, strconv.FormatInt(ttl/second, 10))
	}
}

// outcomeTTL is how long upstream's answer is remembered, nanoseconds; 0: not at all, or only the manager knows.
func (s *Stream) outcomeTTL() int64 {
	switch s.answer.outcome {
	case config.OutcomeCommit:
		return max(int64(s.route.CommittedTTL), 0) // ManagersTTL is negative
	case config.OutcomeReject:
		return max(int64(s.route.RejectedTTL), 0)
	}
	return 0
}

// fate is what became of a forwarded request.
type fate uint8

const (
	fateAnswered fate = iota // upstream answered
	fateNotSent              // it never reached upstream
	fateUnknown              // upstream may have run it
)

// Bits of the property response.flags.
const (
	// neverSent: no healthy host, connection failure, circuit breaker, no route, no filter configuration, no cluster,
	// overload, name resolution failed, load dropped.
	neverSent = 0x2 | 0x20 | 0x80 | 0x100 | 0x200000 | 0x1000000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x20000000
	// perhapsSent: upstream timeout, local reset, remote reset, connection termination, retry limit, stream idle, maximum
	// duration (two kinds), upstream protocol error.
	perhapsSent = 0x4 | 0x8 | 0x10 | 0x40 | 0x8000 | 0x10000 | 0x80000 | 0x400000 | 0x800000
)

// fate reports whether the passing answer is upstream's; the property response.code_details says so. The proxy or another
// filter made any other answer. Then fate reports whether the request had been sent.
func (p *Plugin) fate() fate {
	details, _ := p.host.Property("response", "code_details")
	if string(details) == "via_upstream" {
		return fateAnswered
	}
	flags := p.number("response", "flags")
	switch {
	case p.number("upstream", "request_attempt_count") > 1:
		// The details and flags describe only the router's last attempt. An earlier one may have reached upstream.
		return fateUnknown
	case refusedStream(string(details)):
		return fateNotSent
	case flags&perhapsSent != 0:
		return fateUnknown
	case flags&neverSent != 0:
		return fateNotSent
	}
	if address, ok := p.host.Property("upstream", "address"); ok && len(address) > 0 {
		return fateUnknown
	}
	return fateNotSent
}

// refusedStream reports whether response code details say that an HTTP/2 upstream did not process the request: it reset the
// stream with REFUSED_STREAM, or sent GOAWAY with an earlier stream as the last one (RFC 9113, 8.7).
func refusedStream(details string) bool {
	rest, ok := strings.CutPrefix(details, "upstream_reset_before_response_started{")
	return ok && strings.HasPrefix(rest, "remote_refused_stream_reset")
}

// startRecording starts to record an answer.
func (s *Stream) startRecording(headers [][2]string, end bool) Action {
	a := &s.answer
	limit := int64(s.route.MaxResponseBody)
	a.expected = -1
	if text, ok := fields.Value(headers, headerContentLength); ok {
		if n, ok := fields.Decimal(text); ok {
			a.expected = n
		}
	}
	contentType, _ := fields.Value(headers, headerContentType)
	a.streamed = s.route.Streamed(fields.MediaType(contentType))
	fits := s.copyHeaders(headers)
	switch {
	case end:
		s.recordOutcome(nil, !fits)
		return s.endAnswer()
	case s.route.Response.NoBody && fits:
		s.phase = phaseStreaming
		s.recordHead()
		return Continue
	case !fits || a.expected > limit || !s.rpc && a.streamed && !s.route.JSONRPC:
		s.phase = phaseStreaming
		s.recordOutcome(nil, true)
		return Continue
	case a.streamed && s.route.JSONRPC:
		s.phase = phaseCopying
		return Continue
	case s.commitsBeforeReply():
		s.phase = phaseHolding
		if s.route.Mode == config.ModeBody && s.plugin.bodies.seen {
			return Pause
		}
		// In headers mode a Pause would stop the body as well. So it might where no body has shown yet that body mode is
		// set up right, because all requests so far had none.
		return Continue
	}
	s.phase = phaseCopying
	return Continue
}

// copyHeaders copies the headers of an answer that a replay repeats. False: there are too many to record, or the host did
// not hand over any, so no replay can be faithful.
func (s *Stream) copyHeaders(headers [][2]string) bool {
	a := &s.answer
	recorded, fits := recordedHeaders(headers, s.route)
	a.headers = recorded
	if fits {
		s.addDate()
	}
	name := headerContentEncoding
	if s.rpc {
		name = headerGRPCEncoding
	}
	if encoding := fields.Joined(headers, name); encoding != "" && !fields.Accepts(s.accept, encoding) {
		a.addHeader(headerAccepted, s.accept)
	}
	return fits && len(headers) > 0
}

// collectBytes is the largest body that the gate asks the host to collect. The host fails an answer beyond its own limit,
// which is larger than this unless it was configured.
const collectBytes = 512 << 10

// copyBody copies a piece. The host holds the piece in phaseHolding and passes it on in phaseCopying. The end of the answer
// waits for the ledger in both. If the length is known, the piece with the last byte counts as the end.
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
		p.awaitingBody.remove(s)
		s.phase = phaseStreaming
		s.recordOutcome(nil, true)
		if complete {
			return s.endAnswer()
		}
		return Continue
	}
	switch {
	case end || complete && s.phase == phaseCopying && s.commitsBeforeReply() && !s.outcomeInTrailers:
		return s.recordWhole()
	case s.phase == phaseCopying:
		p.learnBufferSize(s)
		return Continue
	case !complete && p.hostBufferBytes > 0 && a.passed > p.hostBufferBytes:
		p.awaitingBody.remove(s)
		s.phase = phaseCopying
		return Continue
	}
	p.awaitBody(s)
	return Pause
}

// complete reports whether as much body has come as was announced.
func (a *answer) complete() bool { return a.expected >= 0 && a.passed >= a.expected }

// copyPiece adds a piece to the copy of the body. False: the body is too large, the VM holds too much already, or the host
// does not hand the piece over.
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

// claim raises the bytes that are claimed for the copy of the answer's body to total. False: the VM holds too much already.
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

// awaitBody records that the host holds a piece of s's body, and that the gate waits for more.
func (p *Plugin) awaitBody(s *Stream) {
	s.lastProgress = p.ticks
	if s.list == nil {
		p.awaitingBody.add(s)
	}
}

// recordWhole records an answer whose whole body has come.
func (s *Stream) recordWhole() Action {
	if s.outcomeInTrailers && s.endUnrecordedRPC(false) {
		return Continue
	}
	a, body, bare := &s.answer, s.answer.body, false
	if size := int(a.passed); s.phase == phaseCollecting && size > 0 {
		body = s.plugin.host.ResponseBody(size)
		bare = len(body) != size
	}
	s.plugin.awaitingBody.remove(s)
	s.recordOutcome(body, bare)
	return s.endAnswer()
}

// collectBody lets the host collect a body that the VM has no room for, until its end.
func (s *Stream) collectBody(size int, end bool) Action {
	s.answer.passed = int64(size)
	if !end {
		return Collect
	}
	return s.recordWhole()
}

// streamBody passes a body that is not recorded. Its end waits for the ledger, too.
func (s *Stream) streamBody(size int, end bool) Action {
	a := &s.answer
	a.passed += int64(size)
	if end || a.complete() {
		return s.endAnswer()
	}
	return Continue
}

// commitsBeforeReply reports whether the end of the answer waits for the ledger.
func (s *Stream) commitsBeforeReply() bool {
	return s.route.Ledger == config.LedgerManager && s.route.Commit == config.CommitBeforeReply
}

// endAnswer ends the answer: now, or when the ledger has the outcome.
func (s *Stream) endAnswer() Action {
	if s.path != 0 {
		s.forgetUnsuited()
	}
	if s.commitsBeforeReply() && s.call != nil {
		s.phase = phaseRecording
		return Pause
	}
	s.phase = phaseDone
	return Continue
}

// answerRecorded is called in the plugin context when the ledger has the outcome, or could not be. s is nil if the stream
// has ended.
func (s *Stream) answerRecorded() {
	if s == nil {
		return
	}
	switch s.phase {
	case phaseSettling:
		s.replySettled()
	case phaseRecording:
		s.phase = phaseDone
		s.resumeResponse()
	}
}

func (s *Stream) resumeResponse() {
	s.plugin.handled++
	if !s.plugin.host.ResumeResponse() {
		s.plugin.host.Log(LevelError, "oncegate: the host refused to resume a response")
	}
}
