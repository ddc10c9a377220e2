package gate

import (
	"slices"
	"strconv"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/request"
)

// phase is a stream's state; see "A request's way" in doc.go.
type phase uint8

const (
	phaseNew        phase = iota // nothing seen
	phasePass                    // the gate takes no part: everything passes
	phaseBody                    // request held: its body is read
	phaseWaiting                 // request held: another attempt is pending
	phaseReserving               // request held: the ledger is asked
	phaseCarried                 // request held: the gate has sent it upstream itself
	phaseSettling                // request held: upstream's answer waits until its outcome is recorded
	phaseForwarded               // upstream has the request
	phaseHolding                 // the host holds the response's body and the gate copies it
	phaseCollecting              // the host holds the response's body; the gate copies it at its end
	phaseCopying                 // response passes and is copied
	phaseStreaming               // response passes, its body is not recorded
	phaseRecording               // the response's end is held until the outcome is recorded
	phaseEnding                  // the gate's reply waits until the request has come in
	phaseFill                    // request held: it goes to api.PathAnswer next; see grpc.go
	phaseFilling                 // the request went to api.PathAnswer, and the gate replaces the answer
	phaseReplied                 // the gate has replied
	phaseDone                    // over
)

// held reports whether the request's headers are held, so that a body callback proves that the host shows bodies meanwhile.
func (p phase) held() bool {
	switch p {
	case phaseBody, phaseWaiting, phaseReserving, phaseCarried, phaseSettling, phaseEnding:
		return true
	}
	return false
}

// verdict is what a decision means for a request that is held.
type verdict uint8

const (
	verdictPause   verdict = iota // keep holding it
	verdictForward                // let it go upstream
	verdictReplied                // it was answered
	verdictAgain                  // the situation changed: decide again
)

// fix says what to correct in a reply of the gate's own; see fixType.
type fix uint8

const (
	fixNone fix = iota
	fixRemoveType
	fixRestoreType
)

// Stream is one request and its answer. Its methods are the host's callbacks.
type Stream struct {
	plugin *Plugin
	id     uint32
	phase  phase
	fix    fix
	// mark says what became of the request; empty: the gate took no part.
	mark string

	reservation
	reservedAt int64 // time of the reservation, nanoseconds
	// headers are the request's; only set while OnRequestHeaders runs.
	headers [][2]string
	parts   []request.Part // of the key, if some are in the body
	accept  string         // accept-encoding
	owned   bool           // key, trace and accept are copies, not views of the host's headers
	scoped  bool           // scope is known
	// call is the call whose answer the stream waits for.
	call *call

	ending       ending
	upload       upload
	carried      *carried     // the upstream call that the gate makes for this request
	path         uint64       // hashPath of a request for which the gate would make that call; 0: it would not
	clientAnswer clientAnswer // the answer to that call, while it waits to go to the client
	watched      watched
	lastProgress int64 // the tick at which the last body came or was released

	// For a stream that waits or has waited.
	hasWaited    bool
	decided      bool
	ownerDead    bool         // the VM that worked on the key is dead: the stream must not wait
	firstDecided int64        // time of the first look
	notBefore    int64        // time before which the stream does not look again
	failure      *api.Problem // the answer that replaces the next look; nil: none

	links // the list in which the stream waits: for an entry's end, for a body, or for its rest

	looksUp bool // the request is a look-up

	// For a unary gRPC call that is protected.
	rpc        bool
	grading    bool // the outcome follows from the trailers
	message    unaryMessage
	grpcStatus int // of the gate's own reply

	answer      answer
	trailers    outTrailers
	contentType string // for fixRestoreType
	restore400  bool   // the gate's own reply was sent with standIn
	innerAnswer string // for propertyUpstream
}

// OnRequestHeaders begins the stream. end: the request has no body.
func (s *Stream) OnRequestHeaders(end bool) Action {
	s.plugin.chosen = s.id
	if s.phase != phaseNew || s.plugin.table == nil {
		return Continue
	}
	s.phase = phasePass
	p := s.plugin
	method, ok := p.host.RequestHeader(headerMethod)
	looks := ok && p.asksLookUp(method)
	if !ok || !looks && !p.config.Method(method) {
		if path, _ := p.host.RequestHeader(headerPath); p.strays(path) {
			return s.headersAction(s.noSuchPath(end))
		}
		return Continue
	}
	headers := request.Headers(p.host.RequestHeaders())
	path, _ := headers.Get(headerPath)
	if len(headers) == 0 {
		path, _ = p.host.RequestHeader(headerPath)
	}
	switch {
	case path == "" && method == methodConnect:
		path = "/" // a tunnel has no path: it is for the whole host
	case p.strays(path):
		return s.headersAction(s.noSuchPath(end))
	}
	if s.looksUp = looks; looks {
		s.headers, s.ending.ended, s.accept = headers, end, joined(headers, headerAcceptEncoding)
		v := s.lookUp(headers, path)
		s.headers = nil
		return s.headersAction(v)
	}
	s.route = p.config.Route(method, path)
	switch {
	case s.route == nil:
		return Continue
	case len(headers) == 0:
		return s.headersAction(s.unreadable())
	}
	s.headers, s.ending.ended = headers, end || method == methodConnect
	var v verdict
	if s.rpc = s.protectsRPC(method, headers); !s.rpc && unprotectable(method, headers) {
		v = s.unsupported(headers)
	} else {
		name := headerAcceptEncoding
		if s.rpc {
			name = headerGRPCAcceptEncoding
		}
		s.accept = joined(headers, name)
		v = s.begin(headers, end)
	}
	s.headers = nil
	return s.headersAction(v)
}

// unprotectable reports whether a request opens something that has no single answer: a
// tunnel, a WebSocket or a gRPC call.
func unprotectable(method string, headers request.Headers) bool {
	contentType, _ := headers.Get(headerContentType)
	return method == methodConnect || upgrades(headers) || isGRPC(mediaType(contentType))
}

func upgrades(headers request.Headers) bool {
	_, n := headers.Get(headerUpgrade)
	return n > 0 && slices.Contains(connectionNames(headers), headerUpgrade)
}

// unsupported deals with an unprotectable request. If it has a key, or the route gives every
// request one, it must not run as if it were protected. Where keys come from JSON bodies, the
// gate does not look for one, so it says that it let the request pass.
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
	p.metrics.count(p.metrics.unsupported)
	return s.refuse(&unsupportedProblem)
}

// unreadable deals with a request whose headers the host cannot hand over. A client
// must not get past the gate with such a request.
func (s *Stream) unreadable() verdict {
	k := &s.route.Key
	if k.Header != "" {
		if _, ok := s.plugin.host.RequestHeader(k.Header); ok {
			return s.invalid(unreadableProblem())
		}
	}
	if k.Required || k.InBody() || len(k.Sources) > 0 || k.Derive != config.DeriveNone {
		return s.invalid(unreadableProblem())
	}
	return verdictForward
}

// begin reads the headers. In headers mode it decides; in body mode it asks for the body.
func (s *Stream) begin(headers request.Headers, end bool) verdict {
	p, route := s.plugin, s.route
	key, bad := s.headerKey(headers)
	if bad != nil {
		problem := bad.Problem()
		return s.invalid(&problem)
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
	s.upload.carry = !s.rpc && s.keepsBody(headers)
	s.upload.begin(p.digester.NewBody(&route.Fingerprint, headers, route.MaxRequestBody, route.Key.Derive), headers, key.Value == "")
	if end {
		return s.bodyRead(nil, true)
	}
	if !p.bodies.watch(s) {
		return s.bodyUnavailable()
	}
	s.phase = phaseBody
	s.trace = traceHeaders(headers)
	s.ending.begin(headers)
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

// bodyKey reads the key from the body, or its parts that are there.
func (s *Stream) bodyKey(body []byte, whole bool) (request.Key, *request.Error) {
	k := &s.route.Key
	if s.parts == nil {
		return request.JSONKey(k, body, whole)
	}
	if bad := request.BodyParts(k, s.parts, body, whole); bad != nil {
		return request.Key{}, bad
	}
	return request.JoinParts(k, s.parts)
}

// Properties that show access logs what became of a request, and the parts of a
// structured key: FILTER_STATE(wasm.oncegate.status:PLAIN) in Envoy. Other filters see
// only those of the key, because the gate sets the status when the stream ends.
const (
	propertyStatus   = "oncegate.status"
	propertyUpstream = "oncegate.upstream" // of the gate's own upstream call: response code details, flags, attempts and host
	propertyClient   = "oncegate.key.client"
	propertySequence = "oncegate.key.sequence"
	propertyNonce    = "oncegate.key.nonce"
)

// identify sets scope, key and hash, which name the entry. Without a key it sets only the scope.
func (s *Stream) identify(key request.Key, headers request.Headers) {
	if !s.scoped {
		s.scope, s.scoped = s.plugin.digester.Scope(s.route.Scope, headers, s.plugin.host.Property), true
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

// own copies what the stream needs of the headers, so that it does not keep the host's
// whole header block alive. Most duplicates are answered in their first callback and need no
// copy.
func (s *Stream) own() {
	if s.owned {
		return
	}
	s.owned = true
	if s.headers != nil {
		s.trace = traceHeaders(s.headers)
		s.ending.begin(s.headers)
	}
	size := len(s.key) + len(s.accept)
	for i := range s.trace {
		size += len(s.trace[i][1])
	}
	text := newBlock(size)
	s.key, s.accept = text.add(s.key), text.add(s.accept)
	for i := range s.trace {
		s.trace[i][1] = text.add(s.trace[i][1])
	}
}

// keyless deals with a request that has no key.
func (s *Stream) keyless() verdict {
	if bad := request.Missing(&s.route.Key); bad != nil {
		problem := bad.Problem()
		return s.invalid(&problem)
	}
	s.phase = phasePass
	return verdictForward
}

func (s *Stream) invalid(problem *api.Problem) verdict {
	s.plugin.metrics.count(s.plugin.metrics.invalid)
	return s.refuse(problem)
}

func (s *Stream) refuse(problem *api.Problem) verdict {
	s.replyProblem(problem)
	return verdictReplied
}

// actionFor turns a verdict into the Action that the current stream's callback returns.
func (s *Stream) actionFor(v verdict) Action {
	switch v {
	case verdictForward:
		s.setForwardHeaders()
		return Continue
	default:
		return Pause
	}
}

// headersAction is actionFor for the request's headers. Body callbacks for a request that is held cost more than the rest of the
// gate's work for it. So the host makes them only if the gate reads the body, or if nothing else shows where the request ends.
func (s *Stream) headersAction(v verdict) Action {
	held := v == verdictPause && s.phase != phaseBody || s.phase == phaseEnding
	if held && (s.ending.ended || s.short()) {
		return PauseAll
	}
	return s.actionFor(v)
}

// act carries out a verdict in the plugin context. The caller has selected s.
func (s *Stream) act(v verdict) {
	if v != verdictForward {
		return
	}
	s.setForwardHeaders()
	s.plugin.acts++
	if !s.plugin.host.ResumeRequest() {
		s.plugin.host.Log(LevelError, "oncegate: the host refused to resume a request")
	}
}

// OnDone ends the stream: the answer has been sent, or the client or the host gave up.
func (s *Stream) OnDone() {
	s.plugin.chosen = s.id
	s.leave()
	s.phase = phaseDone
	s.dropBody()
	if s.mark != "" {
		s.plugin.host.SetProperty(propertyStatus, s.mark)
	}
}
