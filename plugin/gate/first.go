package gate

import (
	"bytes"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
)

// The answers to the gate's own upstream calls.

// headerAnswer is the header in which an inner listener describes an answer: response code details,
// response flags, attempts and upstream host, joined by spaces ("via_upstream - 1 10.0.0.1:80").
const headerAnswer = "oncegate-answer"

// headerServiceTime is in every answer that the router got from outside, and in none that it made.
const headerServiceTime = "x-envoy-upstream-service-time"

// maxFirstBytes bounds the body of an answer that the client gets although it is not recorded. It is a
// bound because the VM's memory never shrinks.
const maxFirstBytes = maxHeldBytes

// first is upstream's answer for the client whose request ran.
type first struct {
	status  int
	headers [][2]string
	body    []byte
	whole   bool // body is complete
	// trailers: the answer had some. A local reply cannot have them.
	trailers bool
	claimed  int // bytes that body counts in ledger.held
}

// drop gives up an answer and the bytes that it claimed.
func (f *first) drop(p *Plugin) {
	p.calls.held -= f.claimed
	*f = first{}
}

// answered deals with the answer to a call; false: the carrier did not make that call.
func (r *carrier) answered(id uint32, bodySize int) bool {
	for at := len(r.flying) - 1; at >= 0; at-- {
		if c := r.flying[at]; c.id == id {
			r.landed(at)
			p := r.p
			p.metrics.sample(p.metrics.upstream, (p.host.Now()-c.sent)/1e3)
			c.answer(bodySize)
			return true
		}
	}
	return false
}

// landed takes a call out of flying; order does not matter there.
func (r *carrier) landed(at int) {
	last := len(r.flying) - 1
	c := r.flying[at]
	r.flying[at] = r.flying[last]
	r.flying[last] = nil
	r.flying = r.flying[:last]
	r.over(c)
}

// giveUpLost settles the calls whose answers got lost. False: the callback is spent and some are left.
func (r *carrier) giveUpLost() (all bool) {
	now := r.p.host.Now()
	for at := len(r.flying) - 1; at >= 0; at-- {
		if c := r.flying[at]; now-c.sent > int64(c.timeout+lostGrace) {
			if r.p.spent() {
				return false
			}
			r.landed(at)
			c.unanswered(504, "Upstream did not answer in time")
		}
	}
	return true
}

// unanswered ends a call that got no answer, so that nobody knows its outcome.
func (c *carried) unanswered(status int, title string) {
	s := c.stream
	s.unknown()
	if c.here() {
		s.refuse(&api.Problem{
			Status: status, Code: api.CodeOutcomeUnknown, Title: title,
			Detail: "The request may have been executed. It is not executed again under its key.",
		})
	}
}

// here tells whether the client is still there, and makes its stream the current one.
func (c *carried) here() bool { return !c.gone && c.stream.plugin.choose(c.stream.id) }

// answer deals with the answer that OnCallResponse runs for.
func (c *carried) answer(bodySize int) {
	s := c.stream
	p := s.plugin
	headers := p.host.CallHeaders()
	text, ok := lookup(headers, headerStatus)
	if !ok {
		c.unanswered(502, "Upstream's answer broke off")
		return
	}
	status, _ := parseDecimal(text)
	a := &s.answer
	a.status = int(status)
	var body []byte
	if bodySize > 0 && bodySize <= maxFirstBytes {
		body = p.host.CallBody(bodySize)
	}
	whole := len(body) == bodySize
	_, retry := lookup(headers, headerRetryAfter)
	f := carriedFate(headers, body)
	if f == fateAnswered {
		a.outcome = s.route.Outcomes.Classify(a.status, retry)
	}
	switch {
	case f == fateNotSent:
		s.mark = statusNotSent
		s.giveBack()
	case f == fateUnknown || a.outcome == config.OutcomeNone:
		s.unknown()
	case a.outcome == config.OutcomeRelease:
		s.giveBack()
	default:
		c.record(headers, body, whole)
		return
	}
	if c.here() {
		s.answerFirst(&first{status: a.status, headers: headers, body: body, whole: whole, trailers: p.host.CallTrailers()})
	}
}

// record records the answer. The client gets it once the ledger knows the outcome, or immediately
// where it need not wait.
func (c *carried) record(headers [][2]string, body []byte, whole bool) {
	s := c.stream
	p, a := s.plugin, &s.answer
	contentType, _ := lookup(headers, headerContentType)
	fits := s.keepHeaders(headers)
	if p.host.CallTrailers() {
		a.note(headerTrailers, "omitted")
	}
	s.finish(body, !whole || !fits || len(body) > s.route.MaxResponseBody || s.route.Streamed(mediaType(contentType)))
	if !c.here() {
		s.detach()
		return
	}
	if !s.holds() || s.call == nil || !p.calls.room(len(body)) {
		// Without room to keep the answer, the client gets it before it is recorded.
		s.detach()
		s.answerFirst(&first{status: a.status, headers: headers, body: body, whole: whole, trailers: p.host.CallTrailers()})
		return
	}
	s.phase = phaseSettling
	s.first = first{status: a.status, headers: ownHeaders(headers), body: body, whole: whole, trailers: p.host.CallTrailers(), claimed: len(body)}
	p.calls.held += len(body)
}

// settled hands the answer to the client whose request ran. The ledger has the outcome now, or could not
// be told.
func (s *Stream) settled() {
	f := s.first
	s.first.drop(s.plugin)
	s.answerFirst(&f)
}

// answerFirst gives the current stream, whose request ran, upstream's answer. An answer that is not
// whole becomes a problem.
func (s *Stream) answerFirst(f *first) {
	p := s.plugin
	if !f.whole {
		p.metrics.count(p.metrics.notRecorded)
		s.replyProblem(notRecordedProblem(f.status))
		return
	}
	headers := p.headers[:0]
	contentType, typed := "", false
	named := connectionNames(f.headers)
	for _, h := range f.headers {
		switch h[0] {
		case headerDate, "age", headerServiceTime:
		case headerContentType:
			contentType, typed = h[1], true
		default:
			if skipHeader(h[0], named) {
				continue
			}
		}
		headers = append(headers, h)
	}
	headers = append(headers, [2]string{api.HeaderStatus, s.mark})
	if f.trailers {
		headers = append(headers, [2]string{headerTrailers, "omitted"})
	}
	if s.ledgerNone() {
		headers = append(headers, [2]string{headerLedger, "none"})
	}
	s.fixType(contentType, typed, len(f.body))
	s.reply(f.status, detailsPrefix+s.mark, headers, f.body)
	clear(headers)
	p.headers = headers[:0]
}

// ownHeaders copies headers, so that they do not keep the host's header block alive.
func ownHeaders(headers [][2]string) [][2]string {
	out := make([][2]string, len(headers))
	for i, h := range headers {
		out[i] = [2]string{strings.Clone(h[0]), strings.Clone(h[1])}
	}
	return out
}

// carriedFate tells whether upstream answered, and if not, whether the request had been sent.
// An upstream can forge these signs, but it only frees its own keys that way, which its answers can do anyway.
func carriedFate(headers [][2]string, body []byte) fate {
	if said, ok := lookup(headers, headerAnswer); ok {
		return saidFate(said)
	}
	if _, ok := lookup(headers, headerServiceTime); ok {
		return fateAnswered
	}
	for _, text := range [...]string{"no healthy upstream", "no route", "no cluster"} {
		if string(body) == text {
			return fateNotSent
		}
	}
	const broken = "reset reason: "
	at := bytes.Index(body, []byte(broken))
	if at < 0 {
		return fateUnknown
	}
	why := string(body[at+len(broken):])
	for _, reason := range [...]string{"remote connection failure", "local connection failure", "connection failure", "connection timeout", "overflow"} {
		if strings.HasPrefix(why, reason) {
			return fateNotSent
		}
	}
	return fateUnknown
}

// saidFate is carriedFate for the value of headerAnswer.
func saidFate(said string) fate {
	var words [4]string
	for i := range words {
		words[i], said, _ = strings.Cut(said, " ")
	}
	if words[0] == "via_upstream" {
		return fateAnswered
	}
	attempted := words[2] != "0" && words[2] != "-"
	f := fateNotSent
	if host := words[3]; host != "" && host != "-" {
		f = fateUnknown
	} else if !attempted {
		return f // a filter of the inner listener refused it: the router never saw it
	}
	eachToken(words[1], func(flag string) bool {
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
