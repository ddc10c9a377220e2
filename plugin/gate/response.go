package gate

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/request"
)

// answer is what the gate knows about upstream's answer while it passes.
type answer struct {
	outcome  config.Outcome
	said     string // the value of the outcome header
	status   int
	headers  []api.Header
	expected int64  // content-length; -1: not declared
	passed   int64  // bytes of body that came
	fitted   int64  // bytes of body that the host held when the last piece came
	stalled  bool   // the body stood still and was released
	streamed bool   // its media type is one of streamed_types
	body     []byte // the copy of the body so far
	claimed  int    // bytes that body counts in ledger.heldBytes
}

// Bits of the property response.flags.
const (
	// neverSent: no healthy host, connection failure, circuit breaker, no route, no
	// filter configuration, no cluster, overload, name resolution failed, load dropped.
	neverSent = 0x2 | 0x20 | 0x80 | 0x100 | 0x200000 | 0x1000000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x20000000
	// perhapsSent: upstream timeout, local reset, remote reset, connection
	// termination, retry limit, stream idle, maximum duration (two kinds),
	// upstream protocol error.
	perhapsSent = 0x4 | 0x8 | 0x10 | 0x40 | 0x8000 | 0x10000 | 0x80000 | 0x400000 | 0x800000
)

// fate is what became of a forwarded request.
type fate uint8

const (
	fateAnswered fate = iota // upstream answered
	fateNotSent              // it never reached upstream
	fateUnknown              // upstream may have run it
)

// fate reports whether the passing answer is upstream's; the property response.code_details
// says so. The proxy or another filter made any other answer. Then fate reports whether the
// request had been sent.
func (p *Plugin) fate() fate {
	details, _ := p.host.Property("response", "code_details")
	if string(details) == "via_upstream" {
		return fateAnswered
	}
	flags := p.number("response", "flags")
	switch {
	case p.number("upstream", "request_attempt_count") > 1:
		// The details and flags describe only the router's last attempt. An earlier one may have reached
		// upstream.
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

// refusedStream reports whether response code details say that an HTTP/2 upstream did not process the request: it reset
// the stream with REFUSED_STREAM, or sent GOAWAY with an earlier stream as the last one (RFC 9113, 8.7).
func refusedStream(details string) bool {
	rest, ok := strings.CutPrefix(details, "upstream_reset_before_response_started{")
	return ok && strings.HasPrefix(rest, "remote_refused_stream_reset")
}

// number reads an integer property; 0: it is not there.
func (p *Plugin) number(path ...string) uint64 {
	if b, ok := p.host.Property(path...); ok && len(b) == 8 {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// OnResponseHeaders is called when response headers pass: upstream's, or those of a
// local reply by the host, another filter or the gate. end: there is no body.
func (s *Stream) OnResponseHeaders(end bool) Action {
	s.plugin.chosen = s.id
	switch s.phase {
	case phaseReplied:
		s.fixOwnReply()
		return Continue
	case phaseBody, phaseWaiting, phaseReserving, phaseCarried, phaseSettling, phaseEnding, phaseFill:
		// The host or another filter answered a request that the gate still holds.
		s.leave()
		s.phase = phasePass
		return Continue
	case phasePass:
		s.setMark()
		return Continue
	case phaseForwarded:
		return s.classifyAnswer(end)
	case phaseFilling:
		return s.fillHeaders(end)
	}
	return Continue
}

// classify sets the outcome of upstream's answer, whose status is known. It returns the headers
// without the one that only the gate may see.
func (s *Stream) classify(headers [][2]string) [][2]string {
	a, name := &s.answer, s.route.OutcomeHeader
	_, retry := lookup(headers, headerRetryAfter)
	said := ""
	if name != "" {
		value, n := request.Headers(headers).Get(name)
		if n == 1 {
			said = trim(value)
		}
		headers = slices.DeleteFunc(headers, func(h [2]string) bool { return h[0] == name })
	}
	a.said = said
	a.outcome = s.route.Outcome(a.status, retry, said)
	return headers
}

// setMark changes the headers of an answer that passes.
func (s *Stream) setMark() {
	if s.route != nil && s.route.OutcomeHeader != "" {
		s.plugin.host.RemoveResponseHeader(s.route.OutcomeHeader)
	}
	if s.mark != "" {
		s.plugin.host.SetResponseHeader(api.HeaderStatus, s.mark)
	}
}

// classifyAnswer decides what an answer to a forwarded request means for its reservation.
func (s *Stream) classifyAnswer(end bool) Action {
	p := s.plugin
	switch p.fate() {
	case fateNotSent:
		s.giveBack()
		s.mark = statusNotSent
		s.setMark()
		return Continue
	case fateUnknown:
		s.unknown()
		s.setMark()
		return Continue
	}
	headers := p.host.ResponseHeaders()
	text, ok := lookup(headers, headerStatus)
	if !ok {
		text, _ = p.host.ResponseHeader(headerStatus)
	}
	status, _ := parseDecimal(text)
	a := &s.answer
	a.status = int(status)
	headers = s.classify(headers)
	if s.rpc && a.status == 200 {
		s.gradeHeaders(headers, end)
	}
	if s.route.Ledger == config.LedgerUpstream {
		s.upstreamLedger(headers)
	} else if a.outcome == config.OutcomeRelease {
		s.mark = statusReleased
	}
	s.setMark()
	if s.ledgerNone() {
		p.host.SetResponseHeader(headerLedger, "none")
	}
	switch a.outcome {
	case config.OutcomeNone:
		s.unknown()
		return Continue
	case config.OutcomeRelease:
		s.giveBack()
		return Continue
	case config.OutcomeHold:
		s.holdOpen()
		return Continue
	}
	if s.route.Ledger != config.LedgerManager && !s.owner {
		s.phase = phasePass
		return Continue
	}
	return s.capture(headers, end)
}

// upstreamLedger adapts the outcome to an upstream that keeps the ledger itself. The
// cache may repeat only answers that this ledger has certainly recorded.
func (s *Stream) upstreamLedger(headers [][2]string) {
	a := &s.answer
	if a.outcome != config.OutcomeCommit || a.status >= 400 {
		a.outcome = config.OutcomeRelease
	}
	if v, ok := lookup(headers, api.HeaderReplayed); ok && v == "true" {
		s.mark = statusReplayed
	}
}

// capture starts to record an answer.
func (s *Stream) capture(headers [][2]string, end bool) Action {
	a := &s.answer
	limit := int64(s.route.MaxResponseBody)
	a.expected = -1
	if text, ok := lookup(headers, headerContentLength); ok {
		if n, ok := parseDecimal(text); ok {
			a.expected = n
		}
	}
	contentType, _ := lookup(headers, headerContentType)
	a.streamed = s.route.Streamed(mediaType(contentType))
	fits := s.keepHeaders(headers)
	switch {
	case end:
		s.recordOutcome(nil, !fits)
		return s.endAnswer(s.commitsBeforeReply())
	case s.route.Response.NoBody && fits:
		s.phase = phaseStreaming
		s.recordHead()
		return Continue
	case !fits || a.expected > limit || !s.rpc && a.streamed:
		s.phase = phaseStreaming
		s.recordOutcome(nil, true)
		return Continue
	case s.commitsBeforeReply():
		s.phase = phaseHolding
		if s.route.Mode == config.ModeBody && s.plugin.bodies.seen {
			return Pause
		}
		// In headers mode a Pause would stop the body as well. So it might where no body has shown yet that body mode is set
		// up right, because all requests so far had none.
		return Continue
	}
	s.phase = phaseCopying
	return Continue
}

// keepHeaders keeps the headers of an answer that a replay repeats. False: there are too many to record, or
// the host did not hand over any, so no replay can be faithful.
func (s *Stream) keepHeaders(headers [][2]string) bool {
	a := &s.answer
	recorded, fits := recordedHeaders(headers, s.route)
	a.headers = recorded
	if fits {
		s.noteDate()
	}
	name := headerContentEncoding
	if s.rpc {
		name = headerGRPCEncoding
	}
	if encoding := joined(headers, name); encoding != "" && !accepts(s.accept, encoding) {
		a.addHeader(headerAccepted, s.accept)
	}
	return fits && len(headers) > 0
}
