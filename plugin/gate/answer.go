package gate

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/internal/fields"
)

// fix says what to correct in a reply of the gate's own; see fixType.
type fix uint8

const (
	fixNone fix = iota
	fixRemoveType
	fixRestoreType
)

// standIn is the status of a local reply that becomes 400 when it passes back through the filter. The host takes a local
// reply with 400 for an answer to a malformed message, and closes an HTTP/1 connection after it.
const standIn = 422

// reply sends a local reply, either now or when the request has come in. The caller may reuse headers and body.
func (s *Stream) reply(status int, details string, headers [][2]string, body []byte) {
	if s.isLookUp {
		headers = uncached(headers)
	}
	r := localReply{status: status, details: details, headers: headers, body: body}
	if s.awaitsEnd() && s.plugin.delayed.bytes+len(body) <= maxUnsentBytes {
		// The body may be part of the ledger's message, whose memory is that of the next message as well.
		r.headers, r.body = slices.Clone(headers), slices.Clone(body)
		s.delayReply(r)
		return
	}
	s.send(r)
}

// uncached replaces what headers say about caches. The answer to a look-up depends on the key and the caller's credential,
// so a cache would give it to the wrong request.
func uncached(headers [][2]string) [][2]string {
	headers = slices.DeleteFunc(headers, func(h [2]string) bool { return h[0] == headerCacheControl || h[0] == "expires" || h[0] == "pragma" })
	return append(headers, [2]string{headerCacheControl, "no-store"})
}

// send sends a local reply. The stream decides nothing more.
func (s *Stream) send(r localReply) {
	s.phase = phaseReplied
	s.plugin.handled++
	if r.status == 400 && s.http1() {
		r.status, s.restore400 = standIn, true
	}
	if !s.plugin.host.Reply(r.status, s.grpcStatus, r.details, r.headers, r.body) {
		s.plugin.host.Log(LevelError, "oncegate: the host refused a local reply")
	}
}

// replay answers the current stream with a recorded answer.
func (s *Stream) replay(result *api.Result) {
	p := s.plugin
	if result.BodyOmitted {
		s.replyNotRecorded(result.Status)
		return
	}
	if s.rpc {
		s.replayRPC(result)
		return
	}
	headers, body := p.headers[:0], result.Body
	bare := s.route.Response.NoBody && len(body) > 0
	contentType, typed, encoding, alike, trailers := "", false, "", false, false
	for i := range result.Headers {
		h := &result.Headers[i]
		switch h.Name {
		case s.route.OutcomeHeader:
			continue // an earlier configuration recorded it
		case headerAccepted:
			// Upstream sent an encoding that the first request did not accept. A retry that accepts the same as the first
			// gets the same answer.
			alike = h.Value == s.accept
			continue
		}
		if _, ok := recordedTrailer(h.Name); ok {
			trailers = !bare
			continue
		}
		if !s.replays(h.Name, bare) {
			continue
		}
		switch h.Name {
		case headerContentEncoding:
			if h.Value != "identity" {
				encoding += "," + h.Value
			}
		case headerContentType:
			contentType, typed = h.Value, true
		case "content-digest", "repr-digest":
			if s.rewritesID() {
				continue // of the body with the recorded id
			}
		}
		headers = append(headers, [2]string{h.Name, h.Value})
	}
	if bare {
		body = nil
		headers = append(headers, [2]string{headerBody, omitted})
	}
	if encoding != "" && len(body) > 0 && !alike && !fields.Accepts(s.accept, encoding) {
		clear(headers)
		s.replyNotAcceptable(encoding[1:])
		return
	}
	if encoding == "" && !bare {
		var answered bool
		if body, answered = withID(body, fields.MediaType(contentType), s.requestID); !answered {
			clear(headers)
			s.replyNotRecorded(result.Status)
			return
		}
	}
	headers = s.addReplayHeaders(headers)
	if trailers {
		body = s.attach(s.replayedTrailers(result.Headers), body)
	}
	s.fixType(contentType, typed, len(body))
	s.reply(result.Status, detailsReplayed, headers, body)
	p.recycle(headers)
}

// replays reports whether a replay has a header of the record. The settings may have changed since the record was made.
// bare: the replay leaves out the record's body.
func (s *Stream) replays(name string, bare bool) bool {
	switch {
	case name == headerTrailers, name == headerBody:
		return true
	case s.route.Adds(name), bare && config.DescribesBody(name):
		return false
	}
	return s.route.Response.Keeps(name)
}

// addReplayHeaders adds the headers that say that an answer is a replay.
func (s *Stream) addReplayHeaders(headers [][2]string) [][2]string {
	s.status = statusReplayed
	return s.addStatusHeaders(append(headers, [2]string{s.route.ReplayHeader, "true"}))
}

// addStatus adds the status of an answer that the gate makes, and the key where the route wants that.
func (s *Stream) addStatus(headers [][2]string) [][2]string {
	headers = append(headers, [2]string{api.HeaderStatus, s.status})
	if name := s.route.EchoHeader(); name != "" && s.key != "" {
		headers = append(headers, [2]string{name, s.key})
	}
	return headers
}

// addStatusHeaders adds the headers that say what became of the request.
func (s *Stream) addStatusHeaders(headers [][2]string) [][2]string {
	headers = s.addStatus(headers)
	if name := s.route.Response.TTLHeader; name != "" && s.remembered > 0 {
		headers = append(headers, [2]string{name, strconv.FormatInt(s.remembered/second, 10)})
	}
	if s.ledgerNone() {
		headers = append(headers, [2]string{headerLedger, "none"})
	}
	return headers
}

// recycle keeps the memory of headers, but not what they refer to.
func (p *Plugin) recycle(headers [][2]string) {
	clear(headers)
	p.headers = headers[:0]
}

// replayRaw answers the current stream with a recorded answer in its raw form. False: the record cannot be read, and
// nothing was sent.
func (s *Stream) replayRaw(raw []byte) bool {
	result := &s.plugin.replayed
	if result.ViewRaw(raw) != nil {
		return false
	}
	s.replay(result)
	clear(result.Headers)
	result.Body = nil // the reused memory must not keep the answer
	return true
}

// fixType records what fixOwnReply must correct in a reply with a body of size bytes. typed reports whether upstream's
// answer had a content type. A host adds a content type to local replies with a body and removes it from those without one.
func (s *Stream) fixType(contentType string, typed bool, size int) {
	s.fix = fixNone
	switch {
	case !typed && size > 0:
		s.fix = fixRemoveType
	case typed && size == 0:
		// contentType may be a view of memory that is reused before the reply passes back.
		s.fix, s.contentType = fixRestoreType, strings.Clone(contentType)
	}
}

// fixOwnReply corrects the gate's own local reply when it passes back through the filter.
func (s *Stream) fixOwnReply() {
	switch s.fix {
	case fixRemoveType:
		s.plugin.host.RemoveResponseHeader(headerContentType)
	case fixRestoreType:
		s.plugin.host.SetResponseHeader(headerContentType, s.contentType)
	}
	s.fix = fixNone
	if s.restore400 {
		// The host answers gRPC with 200, and its configuration may have changed the status.
		if status, _ := s.plugin.host.ResponseHeader(headerStatus); status == strconv.Itoa(standIn) {
			s.plugin.host.SetResponseHeader(headerStatus, "400")
		}
	}
	if len(s.trailers.list) > 0 {
		// With it, HTTP/1 could not send trailers.
		s.plugin.host.RemoveResponseHeader(headerContentLength)
	}
}

// Trailers of answers. A local reply has none. But its last piece of body passes the filter, and a host lets a filter add
// trailers to the last piece.

// trailerPrefix begins the names under which a recorded answer keeps its trailers. They are among its headers, so ledgers
// of all releases keep them.
const trailerPrefix = "idempotency-trailer-"

// outTrailers are the trailers that the gate adds to its own reply.
type outTrailers struct {
	list [][2]string
	// bare: the reply has no body. The host gets one byte of body, so that there is a last piece.
	bare bool
}

// copyTrailers copies those trailers of an answer that the route keeps. If there is no room for all of them, or the host
// did not hand over any, it copies none and marks the answer.
func (s *Stream) copyTrailers(trailers [][2]string) {
	a := &s.answer
	was, fits := len(a.headers), len(trailers) > 0
	for _, t := range trailers {
		if !skipHeader(t[0], nil) && s.route.Response.Keeps(t[0]) {
			fits = fits && a.addHeader(trailerPrefix+t[0], t[1])
		}
	}
	if !fits {
		a.headers = a.headers[:was]
		a.addHeader(headerTrailers, omitted)
	}
}

// recordedTrailer returns the name of the trailer that a recorded header stands for.
func recordedTrailer(name string) (string, bool) { return strings.CutPrefix(name, trailerPrefix) }

// attach adds trailers to the reply that follows. It returns the body for the host.
func (s *Stream) attach(trailers [][2]string, body []byte) []byte {
	s.trailers = outTrailers{list: trailers}
	if len(trailers) > 0 && len(body) == 0 {
		s.trailers.bare = true
		return []byte{' '}
	}
	return body
}

// addTrailers adds the trailers to the last piece of the gate's own reply.
func (s *Stream) addTrailers(end bool) Action {
	t, host := &s.trailers, s.plugin.host
	if t.bare {
		host.ReplaceResponseBody(nil)
	}
	if end && len(t.list) > 0 {
		host.SetResponseTrailers(t.list)
		s.trailers = outTrailers{}
	}
	return Continue
}

// endToEnd returns the trailers that a client gets.
func endToEnd(trailers [][2]string) (out [][2]string) {
	for _, t := range trailers {
		if !skipHeader(t[0], nil) {
			out = append(out, [2]string{strings.Clone(t[0]), strings.Clone(t[1])})
		}
	}
	return out
}

// replayedTrailers returns those trailers among the headers of a recorded answer that the route keeps. They are copies,
// because the answer may be a view of memory that is reused before its last piece passes the filter.
func (s *Stream) replayedTrailers(headers []api.Header) (out [][2]string) {
	for i := range headers {
		if name, ok := recordedTrailer(headers[i].Name); ok && s.route.Response.Keeps(name) {
			out = append(out, [2]string{strings.Clone(name), strings.Clone(headers[i].Value)})
		}
	}
	return out
}

// Replies wait for the end of their requests. After a reply that goes out before the request's end, the host closes an
// HTTP/1 connection and resets an HTTP/2 stream. Many clients then lose the reply: over HTTP/1 those that send a large body
// before they read, over HTTP/2 some in any case.

const (
	// endPatience is how long such a reply waits, give or take a tick.
	endPatience = 100 * time.Millisecond
	// shownPatience is how long a reply waits after each piece of a body that the host shows. The host bounds the time of
	// the whole request.
	shownPatience = time.Second
	// endPeriod is the time between two ticks while a reply waits.
	endPeriod = 2 * time.Millisecond
	// maxUnsentBytes bounds the bodies of all replies that wait in one VM. Beyond it a reply does not wait.
	maxUnsentBytes = 1 << 20
)

// endLooks is how many ticks, at least, must find that an HTTP/2 request has not grown before a reply takes it as
// complete, if the host does not show its body. Many clients send the end by itself, after the last byte. Ticks count,
// not time: before a tick that comes late, the host reads what came meanwhile.
const endLooks = 5

// localReply is a reply of the gate's own.
type localReply struct {
	status  int
	details string
	headers [][2]string
	body    []byte
}

// delayedReplies are the replies of a VM that wait.
type delayedReplies struct {
	unchecked   list // streams that the next queue callback looks at
	polled      list // streams whose requests had no end by then: each tick looks at them
	withBody    list // those of them whose end the host will show
	bytes       int  // of the replies' bodies
	checkPolled bool // the streams in polled must be looked at
	fastTick    bool // the tick comes every endPeriod
}

// delayReply holds a reply until the request ends or endPatience is over.
func (s *Stream) delayReply(r localReply) {
	p, e := s.plugin, &s.requestEnd
	n := &p.delayed
	s.dropBody()
	s.phase = phaseDelayed
	e.reply = &r
	n.bytes += len(r.body)
	if e.bodyShown || p.bodies.seen && !s.isShort() {
		e.since = p.host.Now()
		n.withBody.add(s)
		return
	}
	if p.inPluginContext {
		e.since = p.host.Now()
		s.requestComplete() // the first look
		n.polled.add(s)
		return
	}
	n.unchecked.add(s)
	p.requestCallback()
}

// dropReply ends the wait and returns the reply.
func (s *Stream) dropReply() *localReply {
	n, r := &s.plugin.delayed, s.requestEnd.reply
	s.list.remove(s)
	n.bytes -= len(r.body)
	s.requestEnd.reply = nil
	return r
}

// sendReply ends the wait and sends the reply. The current stream is s.
func (s *Stream) sendReply() {
	s.send(*s.dropReply())
}

// dropLateBody drops the body that comes while the reply waits, and replies at its end.
func (s *Stream) dropLateBody() Action {
	e, n := &s.requestEnd, &s.plugin.delayed
	if e.ended {
		s.sendReply()
		return Pause
	}
	e.since = s.plugin.host.Now()
	if s.list != &n.withBody {
		s.list.remove(s)
		n.withBody.add(s)
	}
	return Drop
}

// sendReplies sends the replies that need not wait any more. It runs in the plugin context. Once the callback is at its limit, the
// next one continues.
func (p *Plugin) sendReplies() {
	n, now := &p.delayed, p.host.Now()
	for s := n.unchecked.first; s != nil && !p.atLimit(); s = n.unchecked.first {
		s.requestEnd.since = now
		switch {
		case !p.makeCurrent(s.id):
			s.cancel()
		case s.requestComplete():
			s.sendReply()
		default:
			n.unchecked.remove(s)
			n.polled.add(s) // each tick looks whether the reply can go out
		}
	}
	if n.checkPolled {
		n.checkPolled = !p.sendOverdue(&n.polled, now) || !p.sendOverdue(&n.withBody, now)
	}
}

// sendOverdue sends the replies of a list whose requests have come in or whose patience is over. False: the callback is at its limit.
func (p *Plugin) sendOverdue(l *list, now int64) bool {
	for s, next := l.first, (*Stream)(nil); s != nil; s = next {
		if p.atLimit() {
			return false
		}
		next = s.next
		if !p.makeCurrent(s.id) {
			s.cancel()
		} else if s.hasWaitedEnough(now) {
			s.sendReply()
		}
	}
	return true
}

// hasWaitedEnough reports whether to send the current stream's reply now.
func (s *Stream) hasWaitedEnough(now int64) bool {
	e := &s.requestEnd
	waited := now - e.since
	switch {
	case waited < 0:
		return true
	case s.list == &s.plugin.delayed.withBody:
		return waited >= int64(shownPatience)
	}
	return waited >= int64(endPatience) || s.requestComplete()
}

// awaitsEnd reports whether a reply to the current stream must wait. In the plugin context the host has all bytes that came
// together with the headers, so a reply to a short request waits only if some are missing.
func (s *Stream) awaitsEnd() bool {
	p, e := s.plugin, &s.requestEnd
	if s.headers != nil {
		e.readHeaders(s.headers)
	}
	switch {
	case e.ended || !e.headersRead:
		return false
	case s.isShort():
		return !p.inPluginContext || !s.allReceived()
	case e.bodyShown || p.bodies.seen:
		return true
	}
	// Outside the plugin context, the first body callback may follow. Inside, nothing more will be known of the end of a
	// chunked HTTP/1 body, nor whether that of a large body is near.
	return !p.inPluginContext || !s.http1() && e.length <= endBytes
}

// allReceived reports whether the host has the whole declared body.
func (s *Stream) allReceived() bool {
	return s.plugin.totalSize() >= s.requestEnd.headers+uint64(s.requestEnd.length)
}

// requestComplete looks whether the request of the current stream has come in, as far as the gate can know without body
// callbacks. In HTTP/1 the host reads the end together with the last byte of a declared body. In HTTP/2 the end may follow
// later, and nothing but some ticks without new bytes suggests that it has come.
func (s *Stream) requestComplete() bool {
	e := &s.requestEnd
	if s.http1() {
		return e.length < 0 || s.allReceived()
	}
	enough := e.headers + uint64(e.length)
	if e.length < 0 {
		enough = e.headers + 1
	}
	e.looks++
	if e.length < 0 || e.size < enough {
		if size := s.plugin.totalSize(); size != e.size {
			e.size, e.grownAt = size, e.looks
		}
	}
	// A client that was slow to send its body is slow to send the end as well.
	return e.size >= enough && e.looks-e.grownAt >= max(endLooks, 2*(e.grownAt-1))
}
