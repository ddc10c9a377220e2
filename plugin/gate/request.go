package gate

import (
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/internal/fields"
	"github.com/oncegate/oncegate/plugin/request"
)

// readRequest finds the route of a request, and whether the gate can protect it.
func (s *Stream) readRequest(method, path string, headers request.Headers, end bool) verdict {
	s.route = s.plugin.config.Route(method, path)
	switch {
	case s.route == nil:
		return verdictForward
	case len(headers) == 0:
		s.headers = nil
		return s.unreadable()
	}
	s.requestEnd.ended = end || method == methodConnect
	accept := headerAcceptEncoding
	if s.rpc = s.protectsRPC(method, headers); s.rpc {
		accept = headerGRPCAcceptEncoding
	} else if unprotectable(method, headers) {
		return s.unsupported(headers)
	}
	s.accept = fields.Joined(headers, accept)
	return s.readHeaders(headers, end)
}

// readHeaders reads the headers. In headers mode it decides; in body mode it asks for the body.
func (s *Stream) readHeaders(headers request.Headers, end bool) verdict {
	p, route := s.plugin, s.route
	key, bad := s.headerKey(headers)
	if bad != nil {
		return s.badRequest(bad)
	}
	if route.Mode == config.ModeHeaders {
		if key.Value == "" {
			return s.keyless()
		}
		if lacks := s.lacks(headers); lacks != "" {
			return s.refuseAmbiguous(lacks)
		}
		s.identify(key, headers)
		s.fingerprint = p.digester.Fingerprint(&route.Fingerprint, headers, end)
		return s.decide()
	}
	if key.Value == "" && s.parts == nil && route.Key.JSONPath == "" && route.Key.Derive == config.DeriveNone {
		return s.keyless()
	}
	if s.upload.lacks = s.lacks(headers); s.upload.lacks != "" && key.Value != "" {
		return s.refuseAmbiguous(s.upload.lacks)
	}
	s.identify(key, headers)
	s.upload.forCall = !s.rpc && s.suitsUpstreamCall(headers)
	s.readPreference(headers)
	s.awaitUpload(headers, key.Value == "")
	if end {
		return s.bodyRead(nil, true)
	}
	if !p.bodies.watch(s) {
		return s.bodyUnavailable()
	}
	s.phase = phaseBody
	s.trace = traceHeaders(headers)
	return verdictPause
}

// headerKey reads the key without the body. If a part of the key is in the body, it keeps the other parts.
func (s *Stream) headerKey(headers request.Headers) (request.Key, *request.Error) {
	k := &s.route.Key
	if len(k.Sources) == 0 {
		return request.HeaderKey(k, headers)
	}
	parts, bad := request.HeaderParts(k, headers, s.plugin.host.Property)
	if bad != nil {
		return request.Key{}, bad
	}
	if !k.InBody() {
		return request.JoinParts(k, parts)
	}
	if request.Told(k, parts) || k.ToldInBody() {
		request.OwnParts(parts)
		s.parts = parts
	}
	return request.Key{}, nil
}

// keyless deals with a request that has no key.
func (s *Stream) keyless() verdict {
	if bad := request.Missing(&s.route.Key); bad != nil {
		return s.badRequest(bad)
	}
	s.phase = phasePass
	return verdictForward
}

// lacks returns the part of the scope that the current request needs and does not have; empty: none.
func (s *Stream) lacks(headers request.Headers) string {
	return request.CallerPart(s.route, headers, s.plugin.host.Property)
}

// identify sets scope, key and hash, which name the entry. Without a key it sets only the scope.
func (s *Stream) identify(key request.Key, headers request.Headers) {
	if s.scope == (request.Scope{}) {
		s.scope = s.plugin.digester.Scope(s.route.Scope, headers, s.plugin.host.Property)
	}
	if key.Value == "" {
		return
	}
	s.key = key.Value
	s.hash = s.plugin.digester.EntryHash(&s.scope, s.key)
	if key.Structured {
		host := s.plugin.host
		host.SetProperty(propertyClient, key.Client)
		host.SetProperty(propertySequence, strconv.FormatUint(key.Sequence, 10))
		host.SetProperty(propertyNonce, key.Nonce)
	}
}

// copyFromHeaders copies what the stream needs of the headers, so that it does not keep the host's whole header block
// alive. Most duplicates are answered in their first callback and need no copy.
func (s *Stream) copyFromHeaders() {
	if s.copied {
		return
	}
	s.copied = true
	if s.headers != nil {
		s.trace = traceHeaders(s.headers)
		s.requestEnd.readHeaders(s.headers)
	}
	size := len(s.key) + len(s.accept)
	for i := range s.trace {
		size += len(s.trace[i][1])
	}
	text := make(block, 0, size)
	s.key, s.accept = text.add(s.key), text.add(s.accept)
	for i := range s.trace {
		s.trace[i][1] = text.add(s.trace[i][1])
	}
}

// block holds copies of several strings. If its capacity is that of all of them, they cost one allocation together.
type block []byte

// add returns a copy of s.
func (b *block) add(s string) string {
	at := len(*b)
	*b = append(*b, s...)
	return unsafe.String(unsafe.SliceData((*b)[at:]), len(s))
}

// What the gate does not protect.

// unprotectable reports whether a request opens something that has no single answer: a tunnel, a WebSocket or a gRPC call.
func unprotectable(method string, headers request.Headers) bool {
	contentType, _ := headers.Get(headerContentType)
	return method == methodConnect || upgrades(headers) || isGRPC(fields.MediaType(contentType))
}

func upgrades(headers request.Headers) bool {
	_, n := headers.Get(headerUpgrade)
	return n > 0 && slices.Contains(fields.ConnectionNames(headers), headerUpgrade)
}

// protectsRPC reports whether a request is a gRPC call that the route protects.
func (s *Stream) protectsRPC(method string, headers request.Headers) bool {
	contentType, n := headers.Get(headerContentType)
	return s.route.GRPC == config.GRPCUnary && n == 1 && hostsGRPC(contentType) && method == "POST" && !upgrades(headers)
}

// isGRPC reports whether a media type belongs to gRPC (or gRPC-Web).
func isGRPC(media string) bool {
	rest, ok := strings.CutPrefix(media, "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == '-')
}

// hostsGRPC reports whether hosts take a request with this content type for gRPC.
func hostsGRPC(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, "application/grpc")
	return ok && (rest == "" || rest[0] == '+')
}

// unsupported deals with an unprotectable request. If it has a key, or the route gives every request one, it must not run
// as if it were protected. Where keys come from JSON bodies, the gate does not look for one, so it says that it let the
// request pass.
func (s *Stream) unsupported(headers request.Headers) verdict {
	p, k := s.plugin, &s.route.Key
	keys := 0
	if k.Header != "" {
		_, keys = headers.Get(k.Header)
	} else if len(k.Sources) > 0 {
		if parts, bad := request.HeaderParts(k, headers, p.host.Property); bad != nil || request.Told(k, parts) {
			keys = 1
		}
	}
	switch {
	case keys == 0 && !k.Required && k.Derive == config.DeriveNone:
		if k.InBody() {
			return s.bypass()
		}
		return verdictForward
	case s.route.Unsupported == config.UnsupportedPass:
		return s.bypass()
	}
	return s.refuseAs(p.metrics.unsupported, &unsupportedProblem)
}

// unreadable deals with a request whose headers the host cannot hand over. A client must not get past the gate with such a
// request.
func (s *Stream) unreadable() verdict {
	k := &s.route.Key
	if k.Header != "" {
		if _, ok := s.plugin.host.RequestHeader(k.Header); ok {
			return s.invalid(&unreadableProblem)
		}
	}
	if k.Required || k.InBody() || len(k.Sources) > 0 || k.Derive != config.DeriveNone {
		return s.invalid(&unreadableProblem)
	}
	return verdictForward
}

// refuseAmbiguous refuses a request whose key may be that of another caller, because it lacks a part of its scope.
func (s *Stream) refuseAmbiguous(lacks string) verdict {
	p := s.plugin
	p.metrics.count(p.metrics.ambiguous)
	p.logLimited(&p.ambiguousLog, p.host.Now(), LevelWarn, "a request that matches ", s.route.Rule(), " was refused, because it lacks ", lacks,
		`; name in "scope" what tells callers apart, or set "anonymous": "shared"`)
	return s.refuse(&api.Problem{
		Status: 400, Code: api.CodeScopeAmbiguous,
		Title:  "The scope of the idempotency key does not identify this caller",
		Detail: "The request was not executed. It lacks " + lacks + `, by which "scope" tells callers apart. Allowed: a request that has it, another "scope", or "anonymous": "shared".`,
	})
}

// pathBlank is where the shipped Envoy configurations answer what the gate has sent to api.PathAnswer.
const pathBlank = "/oncegate/blank"

// asksForBlank reports whether a client itself asks for api.PathAnswer or pathBlank. A route may compare paths without
// regard to case or parameters. Another gate of this proxy may have sent the request there: it has set its status.
func (p *Plugin) asksForBlank(path string) bool {
	if !isPath(path, api.PathAnswer) && !isPath(path, pathBlank) {
		return false
	}
	_, sent := p.host.Property(propertyStatus)
	return !sent
}

// isPath reports whether path is name, in any case, with or without a query, fragment or parameters.
func isPath(path, name string) bool {
	n := len(name)
	return len(path) >= n && fields.Lower(path[:n]) == name && (len(path) == n || strings.Contains("?#;", path[n:n+1]))
}

// What the gate says to upstream about a request (the route's forward).

// forwardHeaders returns the headers of forward with their values; "": upstream must not get the header. The client's own
// headers of these names never reach upstream, because upstream trusts them.
func (s *Stream) forwardHeaders() [4][2]string {
	f := &s.route.Forward
	list := [4][2]string{{f.KeyHeader, s.key}, {f.AttemptHeader}, {f.TokenHeader}, {f.ScopeHeader}}
	if s.key == "" && f.KeyHeader == s.route.Key.Header {
		list[0][0] = "" // the gate has not read the key, so it leaves the client's
	}
	if s.status == statusExecuted && s.token != (cache.Token{}) {
		list[1][1] = strconv.FormatInt(s.reservedAt/1e3, 10)
		list[2][1] = hex.EncodeToString(s.token[:])
		list[3][1] = s.scope.String()
	}
	return list
}

// setForwardHeaders sets these headers on the current stream's request, which is about to be released.
func (s *Stream) setForwardHeaders() {
	if s.route == nil {
		return
	}
	if s.rewritesID() {
		s.plugin.host.RemoveRequestHeader(headerAcceptEncoding)
	}
	if s.route.Forward == (config.Forward{}) {
		return
	}
	for _, h := range s.forwardHeaders() {
		switch {
		case h[0] == "":
		case h[1] == "":
			s.plugin.host.RemoveRequestHeader(h[0])
		default:
			s.plugin.host.SetRequestHeader(h[0], h[1])
		}
	}
}

// rewritesID reports whether replays get another id. The gate cannot change an answer with a content encoding, so upstream
// must not make one.
func (s *Stream) rewritesID() bool { return s.requestID != "" && s.key != "" }

// Bounds of the request's headers that go along with its calls. Headers beyond them are left out.
const (
	maxTraceHeaders = 9
	maxTraceBytes   = 1024
)

// traceHeaders returns the headers that link a call to the request that causes it. Their values are views of the host's
// header block.
func traceHeaders(headers [][2]string) (trace [][2]string) {
	count, size := 0, 0
	for i := range headers {
		if traceName(headers[i][0]) != "" {
			count++
		}
	}
	if count == 0 {
		return nil
	}
	trace = make([][2]string, 0, min(count, maxTraceHeaders))
	for i := range headers {
		name, value := traceName(headers[i][0]), headers[i][1]
		if name == "" || len(trace) == maxTraceHeaders || size+len(value) > maxTraceBytes || !printable(value) {
			continue
		}
		size += len(value)
		trace = append(trace, [2]string{name, value})
	}
	return trace
}

var traceNames = [...]string{"x-request-id", "traceparent", "tracestate", "b3",
	"x-b3-traceid", "x-b3-spanid", "x-b3-parentspanid", "x-b3-sampled", "x-b3-flags"}

// traceName returns the name of a header that carries a request's identity, as Envoy, W3C or Zipkin define it, and "" for
// other headers. The returned names are constants, so no copy of them is needed.
func traceName(name string) string {
	// Most headers differ in the first byte, which costs less to compare than all names.
	if name == "" || name[0] != 'x' && name[0] != 't' && name[0] != 'b' {
		return ""
	}
	if at := slices.Index(traceNames[:], name); at >= 0 {
		return traceNames[at]
	}
	return ""
}

// printable reports whether a value may be sent in a header. A host need not have checked that.
func printable(value string) bool {
	for i := 0; i < len(value); i++ {
		if c := value[i]; c < 0x20 && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// What is known of the end of a request.

// endBytes is the largest declared HTTP/1 body whose end is taken from request.total_size. Larger ones need body callbacks.
const endBytes = 64 << 10

// requestEnd is what is known of a request's end.
type requestEnd struct {
	// ended: the end has come, or the client sends none before it has the reply.
	ended bool
	// headersRead: the fields below are set.
	headersRead bool
	length      int64  // of the body, as declared; -1: not declared
	headers     uint64 // bytes of the headers, as request.total_size counts them
	received    int64  // bytes of body that the host has shown
	bodyShown   bool   // the host shows the body, so it will also show the end
	since       int64  // when the reply began to wait, or when the last piece of a shown body came after that, nanoseconds
	size        uint64 // request.total_size at the last look
	looks       int32  // so many looks were there
	grownAt     int32  // the look that first found this size
	reply       *localReply
}

// readHeaders records what the request's headers say about its end.
func (e *requestEnd) readHeaders(headers request.Headers) {
	if e.headersRead {
		return
	}
	e.headersRead, e.length, e.headers = true, -1, 0
	for i := range headers {
		name, value := headers[i][0], headers[i][1]
		e.headers += uint64(len(name) + len(value))
		switch name {
		case headerContentLength:
			if n, ok := fields.Decimal(value); ok {
				e.length = n
			}
		case headerExpect, headerUpgrade:
			// With Expect the client sends no body before it has an answer. After an upgrade no body follows.
			e.ended = true
		}
	}
}

// countBody counts the bytes of a body callback.
func (e *requestEnd) countBody(size int, end bool) {
	e.bodyShown = true
	e.received += int64(size)
	e.ended = e.ended || end
}

// isShort reports whether the end of the current stream's request needs no body callback: an HTTP/1 body whose declared
// length is small is complete in the queue callback, which is cheaper.
func (s *Stream) isShort() bool {
	e := &s.requestEnd
	return e.headersRead && e.length >= 0 && e.length <= endBytes && s.http1()
}

// http1 reports whether the client of the current stream speaks HTTP/1.
func (s *Stream) http1() bool {
	if !s.protocolRead {
		protocol, _ := s.plugin.host.Property("request", "protocol")
		s.protocolRead, s.isHTTP1 = true, len(protocol) > 6 && string(protocol[:6]) == "HTTP/1"
	}
	return s.isHTTP1
}
