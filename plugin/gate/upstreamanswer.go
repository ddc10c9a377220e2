package gate

import (
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/internal/fields"
)

// The answers to the gate's own upstream calls.

// headerAnswer is the header in which an inner listener describes an answer: response code details, response flags,
// attempts and upstream host, joined by spaces ("via_upstream - 1 10.0.0.1:80"). More words describe the request; see
// learnRules.
const headerAnswer = "oncegate-answer"

// headerServiceTime is in every answer that the router got from outside, and in none that it made.
const headerServiceTime = "x-envoy-upstream-service-time"

// maxClientAnswerBytes bounds the body of an answer that the client gets although it is not recorded, because the VM's
// memory never shrinks.
const maxClientAnswerBytes = maxHeldBytes

// clientAnswer is upstream's answer for the client whose request ran.
type clientAnswer struct {
	status   int
	headers  [][2]string
	body     []byte
	whole    bool // body is complete
	trailers [][2]string
	claimed  int // bytes that body counts in ledger.heldBytes
}

// drop gives up an answer and the bytes that it claimed.
func (f *clientAnswer) drop(p *Plugin) {
	p.calls.heldBytes -= f.claimed
	*f = clientAnswer{}
}

// onUpstreamAnswer deals with the answer to a call.
func (r *carrier) onUpstreamAnswer(id uint32, bodySize int) {
	for at := len(r.inFlight) - 1; at >= 0; at-- {
		if c := r.inFlight[at]; c.id == id {
			r.removeInFlight(at)
			p := r.p
			p.metrics.record(p.metrics.upstream, (p.host.Now()-c.sent)/1e3)
			c.answer(bodySize)
			return
		}
	}
}

// removeInFlight takes a call out of inFlight, whose order does not matter.
func (r *carrier) removeInFlight(at int) {
	last := len(r.inFlight) - 1
	c := r.inFlight[at]
	r.inFlight[at] = r.inFlight[last]
	r.inFlight[last] = nil
	r.inFlight = r.inFlight[:last]
	r.removeCall(c)
}

// checkTimes settles the calls whose answers got lost, and answers clients that do not want to wait longer. False: the
// callback is at its limit and some are left.
func (r *carrier) checkTimes() (all bool) {
	now := r.p.host.Now()
	for at := len(r.inFlight) - 1; at >= 0; at-- {
		if r.p.atLimit() {
			return false
		}
		c := r.inFlight[at]
		c.answerEarly(now)
		if now-c.sent > int64(c.timeout+lostGrace) {
			r.removeInFlight(at)
			c.unanswered(504, "Upstream did not answer in time")
		}
	}
	return true
}

// unanswered ends a call that got no answer. Its outcome is unknown.
func (c *carried) unanswered(status int, title string) {
	s := c.stream
	s.endUnknown()
	if c.clientPresent() {
		detail := "The request may have been executed. It is not executed again under its key."
		if s.route.Resumable {
			detail = "The request may have been executed. Upstream continues it if it is sent again with the same key."
		}
		s.refuse(&api.Problem{Status: status, Code: api.CodeOutcomeUnknown, Title: title, Detail: detail})
	}
}

// clientPresent reports whether the client is still there, and makes its stream the current one.
func (c *carried) clientPresent() bool {
	return !c.clientGone && c.stream.plugin.makeCurrent(c.stream.id)
}

// answer deals with the answer that OnCallResponse runs for.
func (c *carried) answer(bodySize int) {
	s := c.stream
	p := s.plugin
	headers := p.host.CallHeaders()
	text, ok := fields.Value(headers, headerStatus)
	if !ok {
		c.rememberUnsuited("broke off or did not end in time")
		c.unanswered(502, "Upstream's answer broke off")
		return
	}
	status, _ := fields.Decimal(text)
	a := &s.answer
	a.status = int(status)
	var body []byte
	if bodySize > 0 && bodySize <= maxClientAnswerBytes {
		body = p.host.CallBody(bodySize)
	}
	whole := len(body) == bodySize
	f := c.fate(headers, body)
	if f == fateAnswered {
		headers = s.classify(headers)
		contentType, _ := fields.Value(headers, headerContentType)
		media := fields.MediaType(contentType)
		if a.streamed = s.route.Streamed(media); a.streamed {
			c.rememberUnsuited("streams (" + loggable(media) + ")")
		} else if !whole {
			c.rememberUnsuited("has " + strconv.Itoa(bodySize) + " bytes")
		}
	}
	switch {
	case f == fateNotSent:
		s.status = statusNotSent
		s.releaseKey()
	case f == fateUnknown:
		s.endUnknown()
	default:
		if a.outcome == config.OutcomeRelease {
			s.status = statusReleased
		}
		if !s.endUnrecorded() {
			c.record(headers, body, bodySize)
			return
		}
	}
	if c.clientPresent() {
		s.replyToClient(&clientAnswer{status: a.status, headers: headers, body: body, whole: whole, trailers: p.host.CallTrailers()})
	}
}

// record records the answer. The client gets it once the ledger knows the outcome, or immediately where it need not wait.
func (c *carried) record(headers [][2]string, body []byte, bodySize int) {
	s, whole := c.stream, len(body) == bodySize
	p, a := s.plugin, &s.answer
	fits := s.copyHeaders(headers)
	trailers := p.host.CallTrailers()
	if len(trailers) > 0 {
		s.copyTrailers(trailers)
	}
	if s.route.Response.NoBody && fits && bodySize > 0 {
		s.recordHead()
	} else {
		s.recordOutcome(body, !whole || !fits || len(body) > s.route.MaxResponseBody || a.streamed && !s.route.JSONRPC)
	}
	if !c.clientPresent() {
		s.detachCall()
		return
	}
	if !s.commitsBeforeReply() || s.call == nil || !p.calls.makeRoom(len(body)) {
		// Without room to keep the answer, the client gets it before it is recorded.
		s.detachCall()
		s.replyToClient(&clientAnswer{status: a.status, headers: headers, body: body, whole: whole, trailers: trailers})
		return
	}
	s.phase = phaseSettling
	s.clientAnswer = clientAnswer{status: a.status, headers: cloneHeaders(headers), body: body, whole: whole, trailers: cloneHeaders(trailers), claimed: len(body)}
	p.calls.heldBytes += len(body)
}

// cloneHeaders copies headers, so that they do not keep the host's header block alive.
func cloneHeaders(headers [][2]string) [][2]string {
	size := 0
	for i := range headers {
		size += len(headers[i][0]) + len(headers[i][1])
	}
	text, out := make(block, 0, size), make([][2]string, len(headers))
	for i := range headers {
		out[i] = [2]string{text.add(headers[i][0]), text.add(headers[i][1])}
	}
	return out
}

// replySettled gives upstream's answer to the client whose request ran. The ledger has the outcome now, or could not be
// reached.
func (s *Stream) replySettled() {
	f := s.clientAnswer
	s.clientAnswer.drop(s.plugin)
	s.replyToClient(&f)
}

// replyToClient answers the current stream, whose request ran, with upstream's answer. An answer that is not whole becomes
// a problem.
func (s *Stream) replyToClient(f *clientAnswer) {
	p := s.plugin
	if s.innerAnswer != "" {
		p.host.SetProperty(propertyUpstream, s.innerAnswer)
	}
	if !f.whole {
		s.replyNotRecorded(f.status)
		return
	}
	headers := p.headers[:0]
	contentType, typed := "", false
	named := fields.ConnectionNames(f.headers)
	for _, h := range f.headers {
		switch h[0] {
		case headerDate, "age", headerServiceTime, api.HeaderReplayed:
		case headerContentType:
			contentType, typed = h[1], true
		default:
			if skipHeader(h[0], named) || s.route.Adds(h[0]) {
				continue
			}
		}
		headers = append(headers, h)
	}
	s.remembered = s.outcomeTTL()
	headers = s.addStatusHeaders(headers)
	body := s.attach(endToEnd(f.trailers), f.body)
	s.fixType(contentType, typed, len(body))
	s.reply(f.status, detailsPrefix+s.status, headers, body)
	p.recycle(headers)
}

// described is the value of headerAnswer.
type described struct {
	words [10]string
	path  string // what follows the words
}

func parseDescribed(text string) (d described) {
	for i := range d.words {
		d.words[i], text, _ = strings.Cut(text, " ")
	}
	d.path = text
	return d
}

// fate reports whether upstream answered, and if not, whether the request had been sent. The inner listener overwrites
// headerAnswer, so what it says is not upstream's word.
func (c *carried) fate(headers [][2]string, body []byte) fate {
	if c.inner {
		if said, ok := fields.Value(headers, headerAnswer); ok {
			d := parseDescribed(said)
			if r := &c.stream.plugin.carrier; c.question != nil {
				r.learnRules(c.question, &d, r.p.host.Now())
			}
			c.stream.innerAnswer = strings.TrimRight(strings.Join(d.words[:4], " "), " ")
			return d.fate()
		}
	}
	if _, ok := fields.Value(headers, headerServiceTime); ok {
		return fateAnswered
	}
	return ownFate(string(body))
}

// ownFate is fate for the body of an answer that the proxy made.
func ownFate(body string) fate {
	switch body {
	case "no healthy upstream", "no route", "no cluster":
		return fateNotSent
	}
	// After a retry the text has other words in between.
	why, ok := strings.CutPrefix(body, "upstream connect error or disconnect/reset before headers. reset reason: ")
	if !ok {
		return fateUnknown
	}
	for _, reason := range [...]string{"remote connection failure", "local connection failure", "connection failure", "connection timeout", "overflow"} {
		if strings.HasPrefix(why, reason) {
			return fateNotSent
		}
	}
	return fateUnknown
}

// fate is carried.fate for what an inner listener said.
func (d *described) fate() fate {
	words := &d.words
	if words[0] == "via_upstream" {
		return fateAnswered
	}
	if words[2] == "1" && refusedStream(words[0]) {
		return fateNotSent
	}
	attempted := words[2] != "0" && words[2] != "-"
	f := fateNotSent
	if host := words[3]; host != "" && host != "-" {
		f = fateUnknown
	} else if !attempted {
		return f // a filter of the inner listener refused it: the router never saw it
	}
	fields.EachToken(words[1], func(flag string) bool {
		switch flag {
		case "UH", "UF", "UO", "NR", "NFCF", "NC", "OM", "DF", "DO":
			f = fateNotSent
		case "-":
		default:
			f = fateUnknown
			return false
		}
		return true
	})
	if attempted && words[2] != "1" {
		f = fateUnknown
	}
	return f
}

// answerEarly answers the client of a call under way if it does not want to wait longer. The call then continues as if the
// client had left.
func (c *carried) answerEarly(now int64) {
	s := c.stream
	if !s.async || c.clientGone || now < s.deadline(now) {
		return
	}
	if c.clientPresent() {
		s.answerPending()
	}
	c.clientGone = true
}
