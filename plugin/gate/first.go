package gate

import (
	"bytes"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
)

// The answers to the gate's own upstream calls.

// headerAnswer is what an inner listener says about an answer: response code details, response flags,
// attempts, upstream host, joined by spaces ("via_upstream - 1 10.0.0.1:80").
const headerAnswer = "oncegate-answer"

// headerServiceTime is in all answers that came to the router from outside, and in none that it made.
const headerServiceTime = "x-envoy-upstream-service-time"

// maxFirstBytes bounds an answer that is handed on, though not recorded. The VM's memory never shrinks.
const maxFirstBytes = maxHeldBytes

// first is an answer for the client whose request ran.
type first struct {
	status  int
	headers [][2]string
	body    []byte
	whole   bool // body is all of it
	// trailers: it had some, which a local reply cannot have.
	trailers bool
	claimed  int // of the bytes that the VM may hold, for body
}

// drop gives an answer up.
func (f *first) drop(p *Plugin) {
	p.calls.held -= f.claimed
	*f = first{}
}

// answered deals with the answer to a call; false: it is none of the carrier's.
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

// giveUpLost settles the calls whose answers got lost; false: some are left.
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

// unanswered ends a call whose outcome nobody knows, and of whose answer nothing is here.
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

// here tells whether the client is, and makes its stream the current one.
func (c *carried) here() bool { return !c.gone && c.stream.plugin.choose(c.stream.id) }

// answer deals with what the host handed over.
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

// record records the answer, and hands it to the client when that may be.
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
		// Where there is no room to keep it, the client gets it at once.
		s.detach()
		s.answerFirst(&first{status: a.status, headers: headers, body: body, whole: whole, trailers: p.host.CallTrailers()})
		return
	}
	s.phase = phaseSettling
	s.first = first{status: a.status, headers: ownHeaders(headers), body: body, whole: whole, trailers: p.host.CallTrailers(), claimed: len(body)}
	p.calls.held += len(body)
}

// settled hands the answer to the client whose request ran, when the ledger has been told or could not be.
func (s *Stream) settled() {
	f := s.first
	s.first.drop(s.plugin)
	s.answerFirst(&f)
}

// answerFirst answers the current stream, whose request ran, as upstream answered the call.
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

// ownHeaders are copies that do not keep what the host handed over alive.
func ownHeaders(headers [][2]string) [][2]string {
	out := make([][2]string, len(headers))
	for i, h := range headers {
		out[i] = [2]string{strings.Clone(h[0]), strings.Clone(h[1])}
	}
	return out
}

// carriedFate tells whose answer a call got, and if not upstream's, whether the request had been sent.
// What an upstream makes up here frees its own keys, as it may anyhow by its answers.
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

// saidFate reads headerAnswer.
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
