package gate

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/internal/fields"
	"github.com/oncegate/oncegate/plugin/internal/jsonguard"
)

// Unary gRPC calls (grpc: unary). They are held, reserved and recorded like other requests in body mode. Three things
// differ.
//
// The outcome is in the trailer grpc-status, so it is known only at the answer's end.
//
// A host turns a local reply to a gRPC request into trailers without a message. So the gate answers with a recorded message
// in another way: it changes the request's path to api.PathAnswer and lets it go, without the headers that may be
// credentials. A route leads that path to something that answers with a blank, an answer marked with headerBlank: an inner
// listener, or the manager. The gate puts the recorded headers, message and trailers there instead. If the route is
// missing, upstream gets a path and a content type that no gRPC server serves. Clients that ask for this path themselves
// get 404, because a blank waits for the end of its request.
//
// Answers without a message, and the gate's own refusals, are local replies.

const (
	headerGRPCStatus  = "grpc-status"
	headerGRPCDetails = "grpc-status-details-bin"
	headerPushback    = "grpc-retry-pushback-ms"
	// A message whose first byte is 1 has this encoding. Accept-Encoding and Content-Encoding do not count in gRPC.
	headerGRPCEncoding       = "grpc-encoding"
	headerGRPCAcceptEncoding = "grpc-accept-encoding"
)

// unaryMessage checks that a request's body is one gRPC message.
type unaryMessage struct {
	prefix [5]byte
	have   int
	body   int64
}

// add reads a piece of body. False: more follows the first message.
func (m *unaryMessage) add(piece []byte) bool {
	m.body += int64(len(piece))
	if m.have < len(m.prefix) {
		m.have += copy(m.prefix[m.have:], piece)
	}
	return m.have < len(m.prefix) || m.body <= m.size()
}

func (m *unaryMessage) size() int64 {
	return int64(len(m.prefix)) + int64(binary.BigEndian.Uint32(m.prefix[1:]))
}

// whole reports whether the body so far is one message.
func (m *unaryMessage) whole() bool { return m.have == len(m.prefix) && m.body == m.size() }

// httpStatus are the HTTP statuses that gRPC statuses count as (google.rpc.Code).
var httpStatus = [...]int{200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401}

// outcomeFromTrailers sets the outcome of a gRPC answer from its trailers. False: they have no status.
func (s *Stream) outcomeFromTrailers(trailers [][2]string) bool {
	text, ok := fields.Value(trailers, headerGRPCStatus)
	code, valid := fields.Decimal(text)
	if !ok || !valid {
		return false
	}
	status := 500
	if code < int64(len(httpStatus)) {
		status = httpStatus[code]
	}
	pushback, retry := fields.Value(trailers, headerPushback)
	retry = retry && !strings.HasPrefix(pushback, "-")
	s.answer.outcome = s.route.Outcome(status, retry, s.answer.outcomeValue)
	s.outcomeInTrailers = false
	return true
}

// outcomeFromHeaders sets the outcome of a gRPC answer as far as its headers show it. end: they are all of it.
func (s *Stream) outcomeFromHeaders(headers [][2]string, end bool) {
	if !end {
		s.outcomeInTrailers, s.answer.outcome = true, config.OutcomeCommit
	} else if !s.outcomeFromTrailers(headers) {
		s.answer.outcome = config.OutcomeNone
	}
}

// notUnary refuses a call with another number of messages than one.
func (s *Stream) notUnary() verdict {
	return s.refuseAs(s.plugin.metrics.unsupported, &notUnaryProblem)
}

// endUnrecordedRPC ends the answer to a gRPC call whose outcome is not one to record. known: the trailers have shown the
// outcome. True: it did.
func (s *Stream) endUnrecordedRPC(known bool) bool {
	if !known {
		s.answer.outcome = config.OutcomeNone
	}
	if !s.endUnrecorded() {
		return false
	}
	s.plugin.awaitingBody.remove(s)
	s.unclaimAnswer()
	return true
}

// replayRPC answers a gRPC call with a recorded answer.
func (s *Stream) replayRPC(result *api.Result) {
	p := s.plugin
	headers, whole, alike, encoding := p.headers[:0], len(result.Body) == 0, false, ""
	for i := range result.Headers {
		h := &result.Headers[i]
		name, trailer := recordedTrailer(h.Name)
		switch {
		case name == s.route.OutcomeHeader:
			continue
		case name == headerAccepted:
			alike = h.Value == s.accept
			continue
		case name == headerGRPCEncoding:
			encoding = h.Value
		}
		whole = whole || trailer && name == headerGRPCStatus
		if s.replays(name, false) && (!trailer || len(result.Body) == 0) {
			headers = append(headers, [2]string{name, h.Value})
		}
	}
	switch {
	case !whole:
		// There was no room for the trailers, and a message without its status is no answer.
		clear(headers)
		s.replyNotRecorded(0)
		return
	case len(result.Body) > 0 && result.Body[0] != 0 && !alike && !fields.Accepts(s.accept, encoding):
		clear(headers)
		s.replyNotAcceptable(encoding)
		return
	}
	headers = s.addReplayHeaders(headers)
	if len(result.Body) == 0 {
		s.grpcStatus = grpcOfHTTP(result.Status)
		if text, ok := fields.Value(headers, headerGRPCStatus); ok {
			code, _ := fields.Decimal(text)
			s.grpcStatus = int(code)
		}
		s.reply(200, detailsReplayed, headers, nil)
		p.recycle(headers)
		return
	}
	if !p.calls.makeRoom(len(result.Body)) {
		clear(headers)
		s.refuse(&overloadedProblem)
		return
	}
	s.clientAnswer = clientAnswer{
		status: result.Status, headers: cloneHeaders(headers), body: append([]byte(nil), result.Body...),
		trailers: s.replayedTrailers(result.Headers), claimed: len(result.Body),
	}
	p.calls.heldBytes += len(result.Body)
	p.recycle(headers)
	s.phase = phaseReroute
	p.reroutes.add(s)
	p.requestCallback()
}

// sendReroutes lets the requests go whose answers the gate fills in. It runs in the plugin context.
func (p *Plugin) sendReroutes() {
	for s := p.reroutes.first; s != nil && !p.atLimit(); s = p.reroutes.first {
		p.reroutes.remove(s)
		if s.phase != phaseReroute || !p.makeCurrent(s.id) {
			continue
		}
		s.dropBody()
		s.stripRequest()
		if !p.host.SetRequestHeader(headerPath, api.PathAnswer) || !p.host.SetRequestHeader(headerContentType, "application/octet-stream") {
			// With its own path the call would run again.
			s.clientAnswer.drop(p)
			s.refuse(&noAnswerProblem)
			continue
		}
		p.host.SetProperty(propertyStatus, s.status) // for another gate of this proxy; see asksForBlank
		s.phase = phaseRerouted
		s.apply(verdictForward)
	}
}

// noSuchPath refuses such a request.
func (s *Stream) noSuchPath(end bool) verdict {
	s.route, s.requestEnd.ended = s.plugin.config.First(), end
	s.headers = s.plugin.host.RequestHeaders()
	v := s.refuse(&api.Problem{Status: 404, Code: api.CodeNotFound, Title: "There is nothing at this path"})
	s.headers = nil
	return v
}

// needed are the request headers that routes and access logs need. Others whose names begin with x-forwarded- may be
// credentials, such as x-forwarded-access-token.
var needed = [...]string{"user-agent", "x-request-id", "x-forwarded-for", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto"}

// stripRequest removes all request headers but those that are needed, because what follows may be outside of the proxy.
func (s *Stream) stripRequest() {
	host := s.plugin.host
	for _, h := range host.RequestHeaders() {
		if h[0][0] != ':' && !slices.Contains(needed[:], h[0]) {
			host.RemoveRequestHeader(h[0])
		}
	}
}

// replaceBlankHeaders replaces the headers of a blank.
func (s *Stream) replaceBlankHeaders(end bool) Action {
	p, f := s.plugin, &s.clientAnswer
	if _, ok := p.host.ResponseHeader(api.HeaderBlank); !ok || end {
		f.drop(p)
		status, _ := p.host.ResponseHeader(headerStatus)
		// A proxy on the way answers with these three for a manager that it does not reach.
		if p.fate() != fateAnswered || status == "502" || status == "503" || status == "504" {
			s.replyProblem(&answerAwayProblem)
			return Pause
		}
		p.logLimited(&p.noAnswerRoute, p.host.Now(), LevelError, "no recorded answer to a gRPC call: add the route "+api.PathAnswer+" that grpc needs")
		s.replyProblem(&noAnswerProblem)
		return Pause
	}
	headers := append(p.headers[:0], [2]string{headerStatus, strconv.Itoa(f.status)})
	headers = append(headers, f.headers...)
	p.host.SetResponseHeaders(headers)
	p.recycle(headers)
	return Continue
}

// replaceBlankBody replaces the body of a blank, and adds the trailers to its last piece.
func (s *Stream) replaceBlankBody(end bool) Action {
	p, f := s.plugin, &s.clientAnswer
	p.host.ReplaceResponseBody(f.body)
	f.body = nil
	if end {
		p.host.SetResponseTrailers(f.trailers)
		f.drop(p)
		s.phase = phaseDone
	}
	return Continue
}

// JSON-RPC 2.0 over HTTP: each try of a request has another id, and an answer repeats the id of its request. So a replay has
// the id of the retry.

// maxIDBytes bounds the ids that replays repeat. Other ids are no reason to refuse a request: its replay has the recorded id.
const maxIDBytes = 256

// requestID returns the id of a JSON-RPC request, as JSON; empty: the body has none that a replay could repeat.
func requestID(body []byte) string {
	id := gjson.GetBytes(body, "id")
	if id.Type != gjson.String && id.Type != gjson.Number || len(id.Raw) > maxIDBytes || !gjson.Valid(id.Raw) {
		return ""
	}
	return strings.Clone(id.Raw)
}

// isBatch reports whether a body is a list.
func isBatch(body []byte) bool {
	body = bytes.TrimLeft(body, " \t\r\n")
	return len(body) > 0 && body[0] == '['
}

// unreadMessageProblem is for a request with a key, of whose body the gate cannot read the id: the id is no part of the
// fingerprint, and a replay needs it.
func unreadMessageProblem(limit int) *api.Problem {
	return &api.Problem{Status: 400, Code: api.CodeInvalidRequest,
		Title:  "This JSON-RPC request cannot be protected",
		Detail: "The request was not executed. With a key, a body must have at most " + strconv.Itoa(limit) + " bytes and no content encoding."}
}

// withID returns the body of a recorded answer with another id in its response; in an event stream, in each response. The
// stream's requests and notifications were for the first try: a client would answer them again, so they are left out. id is
// JSON; empty: the answer stays as it is. answered is false for a stream without a response, after which a client would wait.
func withID(body []byte, media, id string) (out []byte, answered bool) {
	if id == "" {
		return body, true
	}
	out = make([]byte, 0, len(body)+len(id))
	if media != "text/event-stream" {
		return appendWithID(out, body, unsafe.String(unsafe.SliceData(body), len(body)), id), true
	}
	// A message may be spread over several lines of data. So the gate looks at the data of an event with blanks in the place
	// of everything else.
	data := bytes.Clone(body)
	begin := 0 // of the event
	for at := 0; at < len(body); {
		line := firstLine(data[at:])
		at += len(line)
		last := at == len(body) || line[0] == '\r' || line[0] == '\n'
		blankField(line)
		if !last {
			continue
		}
		if message := unsafe.String(&data[begin], at-begin); !gjson.Get(message, "method").Exists() {
			answered = answered || isResponse(message)
			out = appendWithID(out, body[begin:at], message, id)
		}
		begin = at
	}
	return out, answered
}

// firstLine returns the first line of a text that is not empty, with its end: CR, LF or both.
func firstLine(text []byte) []byte {
	end := bytes.IndexAny(text, "\r\n")
	switch {
	case end < 0:
		return text
	case bytes.HasPrefix(text[end:], []byte("\r\n")):
		return text[:end+2]
	}
	return text[:end+1]
}

// blankField blanks a line of an event stream, except its data.
func blankField(line []byte) {
	const name = "data:"
	if bytes.HasPrefix(line, []byte(name)) {
		line = line[:len(name)]
	}
	for i := range line {
		line[i] = ' '
	}
}

// appendWithID appends text to dst, with another id if its message is a response that has one. message is as long as text.
func appendWithID(dst, text []byte, message, id string) []byte {
	old := gjson.Get(message, "id")
	if !isResponse(message) || old.Index == 0 || old.Type != gjson.String && old.Type != gjson.Number || !gjson.Valid(old.Raw) {
		return append(dst, text...)
	}
	dst = append(dst, text[:old.Index]...)
	dst = append(dst, id...)
	return append(dst, text[old.Index+len(old.Raw):]...)
}

func isResponse(message string) bool {
	return gjson.Get(message, "result").Exists() || gjson.Get(message, "error").Exists()
}

// Clients of an Iceberg catalog send keys only if the catalog's configuration says how long it remembers them. The gate adds
// that to the answer of a catalog that does not say it itself.

// maxLifetimeBytes bounds the answers that the gate reads for it, so that the host can collect them. Others pass as they are.
const maxLifetimeBytes = 64 << 10

// beginLifetime looks whether the current request's answer must say how long keys are remembered.
func (s *Stream) beginLifetime(path string) {
	route := s.plugin.config.Lifetime(path)
	if route == nil {
		return
	}
	s.lifetime, s.phase = route, phaseLifetime
	s.plugin.host.RemoveRequestHeader(headerAcceptEncoding)
}

// readLifetimeHeaders leaves alone all answers but those that are JSON.
func (s *Stream) readLifetimeHeaders(end bool) {
	s.setStatusHeader()
	host := s.plugin.host
	status, _ := host.ResponseHeader(headerStatus)
	contentType, _ := host.ResponseHeader(headerContentType)
	_, coded := host.ResponseHeader(headerContentEncoding)
	text, _ := host.ResponseHeader(headerContentLength)
	length, _ := fields.Decimal(text)
	if end || status != "200" || coded || fields.MediaType(contentType) != "application/json" || length > maxLifetimeBytes {
		s.phase = phasePass
		return
	}
	host.RemoveResponseHeader(headerContentLength)
}

// addLifetime lets the host collect the body, and completes it at its end. size is what the host has of it.
func (s *Stream) addLifetime(size int, end bool) Action {
	host := s.plugin.host
	switch {
	case size > maxLifetimeBytes:
	case !end:
		return Collect
	default:
		if body := host.ResponseBody(size); len(body) == size {
			host.ReplaceResponseBody(withLifetime(body, s.lifetime))
		}
	}
	s.phase = phasePass
	return Continue
}

// withLifetime returns a JSON object with the lifetime of the route's keys, unless it has one.
func withLifetime(body []byte, route *config.Route) []byte {
	if !jsonguard.Valid(body) {
		return body
	}
	object := gjson.ParseBytes(body)
	if !object.IsObject() || object.Get(config.LifetimeMember).Exists() {
		return body
	}
	at := 0
	for body[at] != '{' {
		at++
	}
	member := `"` + config.LifetimeMember + `":"PT` + strconv.FormatInt(int64(route.CommittedTTL)/second, 10) + `S"`
	empty := true
	object.ForEach(func(gjson.Result, gjson.Result) bool {
		empty = false
		return false
	})
	if !empty {
		member += ","
	}
	out := append(make([]byte, 0, len(body)+len(member)), body[:at+1]...)
	return append(append(out, member...), body[at+1:]...)
}
