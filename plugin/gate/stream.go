package gate

import (
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
	phaseDelayed                 // the gate's reply waits until the request has come in
	phaseReroute                 // request held: it goes to api.PathAnswer next; see protocol.go
	phaseRerouted                // the request went to api.PathAnswer, and the gate replaces the answer
	phaseLifetime                // the answer says how long keys are remembered; see protocol.go
	phaseReplied                 // the gate has replied
	phaseDone                    // over
)

// held reports whether the request's headers are held, so that a body callback proves that the host shows bodies meanwhile.
func (p phase) held() bool {
	switch p {
	case phaseBody, phaseWaiting, phaseReserving, phaseCarried, phaseSettling, phaseDelayed, phaseReroute:
		return true
	}
	return false
}

// laterAction is what becomes of what follows the request's headers. Continue would release headers that are held.
func (p phase) laterAction() Action {
	if p.held() || p == phaseReplied {
		return Pause
	}
	return Continue
}

// verdict is what a decision means for a request that is held.
type verdict uint8

const (
	verdictPause   verdict = iota // hold it
	verdictForward                // let it go upstream
	verdictReplied                // it was answered
	verdictAgain                  // the situation changed: decide again
)

// Stream is one request and its answer. Its methods are the host's callbacks.
type Stream struct {
	plugin *Plugin
	id     uint32
	phase  phase
	fix    fix
	// status says what became of the request; empty: the gate took no part.
	status string

	reservation
	reservedAt int64 // when the gate had the reservation, nanoseconds
	// headers are the request's; only set while OnRequestHeaders runs.
	headers [][2]string
	parts   []request.Part // of the key, if some are in the body
	accept  string         // accept-encoding
	copied  bool           // key, trace and accept are copies, not views of the host's headers
	// call is the call whose answer the stream waits for.
	call *call

	protocolRead, isHTTP1 bool // see http1

	requestEnd   requestEnd
	upload       upload
	carried      *carried     // the upstream call that the gate makes for this request
	path         uint64       // hashPath of a request for which the gate would make that call; 0: it would not
	clientAnswer clientAnswer // the answer to that call, while it waits to go to the client
	watched      watched
	lastProgress int64 // the tick at which the last body came or was released

	// For a stream that waits or has waited.
	hasWaited    bool
	ownerDead    bool         // the VM that worked on the key is dead: the stream must not wait
	firstDecided int64        // time of the first look; 0: there was none
	notBefore    int64        // time before which the stream does not look again
	failure      *api.Problem // the answer that replaces the next look; nil: none

	links // the list in which the stream waits: for an entry's end, for a body, or for its rest

	isLookUp bool  // the request is a look-up
	async    bool  // the client prefers 202 to a longer wait than patience
	patience int64 // how long a look-up or such a client waits for the outcome, nanoseconds
	// remembered is how long the ledger remembers the answer from now on, nanoseconds; 0: not known.
	remembered int64
	requestID  string        // the id of a JSON-RPC request, as JSON; empty: none
	lifetime   *config.Route // for phaseLifetime

	// For a unary gRPC call that is protected.
	rpc               bool
	outcomeInTrailers bool // the outcome follows from the trailers
	message           unaryMessage
	grpcStatus        int // of the gate's own reply

	answer      answer
	trailers    outTrailers
	contentType string // for fixRestoreType
	restore400  bool   // the gate's own reply was sent with standIn
	innerAnswer string // for propertyUpstream
}

// OnRequestHeaders begins the stream. end: the request has no body.
func (s *Stream) OnRequestHeaders(end bool) Action {
	p := s.plugin
	p.current = s.id
	if s.phase != phaseNew || p.table == nil {
		return Continue
	}
	s.phase = phasePass
	method, ok := p.host.RequestHeader(headerMethod)
	isLookUp := (method == methodGet || method == methodHead) && p.asksForLookUp()
	if !ok || !isLookUp && !p.config.Method(method) {
		path, _ := p.host.RequestHeader(headerPath)
		if p.asksForBlank(path) {
			return s.headersAction(s.noSuchPath(end))
		}
		if method == methodGet {
			s.beginLifetime(path)
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
	case p.asksForBlank(path):
		return s.headersAction(s.noSuchPath(end))
	}
	s.headers, s.requestEnd.ended, s.isLookUp = headers, end, isLookUp
	var v verdict
	if isLookUp {
		v = s.readLookUp(headers, path)
	} else {
		v = s.readRequest(method, path, headers, end)
	}
	s.headers = nil
	action := s.headersAction(v)
	if s.phase == phasePass && s.status == "" && method == methodGet {
		s.beginLifetime(path)
	}
	return action
}

// headersAction is actionFor for the request's headers. Body callbacks for a request that is held cost more than the rest of the
// gate's work for it. So the host makes them only if the gate reads the body, or if nothing else shows where the request ends.
func (s *Stream) headersAction(v verdict) Action {
	held := v == verdictPause && s.phase != phaseBody || s.phase == phaseDelayed
	if held && (s.requestEnd.ended || s.isShort()) {
		return PauseAll
	}
	return s.actionFor(v)
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

// OnRequestBody is called for a piece of the request's body, of size bytes.
func (s *Stream) OnRequestBody(size int, end bool) Action {
	s.plugin.current = s.id
	s.requestEnd.countBody(size, end)
	if s.phase.held() {
		s.plugin.bodies.delivered(s.plugin.host)
	}
	switch s.phase {
	case phaseBody:
		action := s.readBody(size, end)
		if s.phase == phaseDelayed {
			return Drop // the end of the body comes only if the host has room for it
		}
		return action
	case phaseDelayed:
		return s.dropLateBody()
	}
	return s.phase.laterAction()
}

// OnRequestTrailers is called for trailers, which end the request.
func (s *Stream) OnRequestTrailers() Action {
	s.plugin.current = s.id
	s.requestEnd.ended = true
	if s.phase.held() {
		s.plugin.bodies.delivered(s.plugin.host)
	}
	switch s.phase {
	case phaseBody:
		if len(s.upload.buffered()) > 0 {
			return s.actionFor(s.invalid(&api.Problem{
				Status: 400, Code: api.CodeInvalidRequest, Title: "The request has trailers that it did not announce",
				Detail: "Send a Trailer header, or a Content-Length and no trailers.",
			}))
		}
		s.upload.forCall = false // the trailers would be lost
		return s.actionFor(s.bodyRead(nil, true))
	case phaseDelayed:
		s.sendReply()
		return Pause
	}
	return s.phase.laterAction()
}

// apply carries out a verdict in the plugin context. The caller has selected s.
func (s *Stream) apply(v verdict) {
	if v != verdictForward {
		return
	}
	s.setForwardHeaders()
	s.plugin.handled++
	if !s.plugin.host.ResumeRequest() {
		s.plugin.host.Log(LevelError, "oncegate: the host refused to resume a request")
	}
}

// OnResponseHeaders is called when response headers pass: upstream's, or those of a local reply by the host, another filter
// or the gate. end: there is no body.
func (s *Stream) OnResponseHeaders(end bool) Action {
	s.plugin.current = s.id
	if s.phase.held() {
		// The host or another filter answered a request that the gate still holds.
		s.cancel()
		s.phase = phasePass
		return Continue
	}
	switch s.phase {
	case phaseReplied:
		s.fixOwnReply()
	case phasePass:
		s.setStatusHeader()
	case phaseForwarded:
		return s.classifyAnswer(end)
	case phaseRerouted:
		return s.replaceBlankHeaders(end)
	case phaseLifetime:
		s.readLifetimeHeaders(end)
	}
	return Continue
}

// OnResponseBody is called for a piece of the answer's body, of size bytes. In phaseCollecting the piece is everything that
// has come.
func (s *Stream) OnResponseBody(size int, end bool) Action {
	s.plugin.current = s.id
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
	case phaseRerouted:
		return s.replaceBlankBody(end)
	case phaseLifetime:
		return s.addLifetime(size, end)
	}
	return Continue
}

// OnResponseTrailers is called for trailers, which end the answer.
func (s *Stream) OnResponseTrailers() Action {
	s.plugin.current = s.id
	switch s.phase {
	case phaseHolding, phaseCopying, phaseCollecting:
		trailers := s.plugin.host.ResponseTrailers()
		if s.outcomeInTrailers && s.endUnrecordedRPC(s.outcomeFromTrailers(trailers)) {
			return Continue
		}
		s.copyTrailers(trailers)
		return s.recordWhole()
	case phaseStreaming:
		return s.endAnswer()
	case phaseRecording:
		return Pause
	}
	return Continue
}

// OnDone ends the stream: the answer has been sent, or the client or the host gave up.
func (s *Stream) OnDone() {
	s.plugin.current = s.id
	s.cancel()
	s.phase = phaseDone
	s.dropBody()
	if s.status != "" {
		s.plugin.host.SetProperty(propertyStatus, s.status)
	}
}

// cancel settles what the stream has begun. It is for streams that end in any phase.
func (s *Stream) cancel() {
	p := s.plugin
	switch s.phase {
	case phaseBody:
		s.status = statusNotSent
		p.bodies.unwatch(s)
	case phaseWaiting:
		s.status = statusNotSent
		p.stopWaiting(s)
		s.recordWait()
	case phaseReserving:
		s.status = statusNotSent
		if c := s.detachCall(); c != nil && p.calls.cancel(c) {
			// The ledger never heard of it.
			p.releaseEntry(c, p.host.Now())
		}
	case phaseDelayed:
		s.dropReply()
		s.phase = phaseDone
	case phaseCarried:
		s.status = statusContinued
		s.carried.clientGone = true
	case phaseReroute, phaseRerouted:
		s.clientAnswer.drop(p)
	case phaseSettling:
		s.clientAnswer.drop(p)
		s.detachCall()
	case phaseForwarded:
		switch {
		case s.beganAgain():
		case s.route.FreeIncomplete && s.requestEnd.incomplete():
			s.releaseKey()
			s.status = statusReleased
		default:
			s.endUnknown()
		}
	case phaseHolding, phaseCollecting, phaseCopying:
		// Upstream answered, so the request ran and no retry may run it. If the gate never had the whole answer, it records
		// the outcome without the body.
		a := &s.answer
		if s.outcomeInTrailers && s.endUnrecordedRPC(false) {
			return
		}
		whole := a.complete() && int64(len(a.body)) == a.passed
		if s.route.Resumable && !whole {
			s.unclaimAnswer()
			s.endUnknown()
			return
		}
		s.recordOutcome(a.body, !whole)
		s.detachCall()
	case phaseStreaming, phaseRecording:
		s.detachCall()
	}
}

// detachCall lets the call continue without the stream. It returns the call; nil: there is none.
func (s *Stream) detachCall() *call {
	c := s.call
	if s.call = nil; c != nil {
		c.stream = nil
	}
	return c
}

// dropBody gives up what the stream holds of the body.
func (s *Stream) dropBody() {
	p, u := s.plugin, &s.upload
	p.awaitingBody.remove(s)
	p.digester.Recycle(u.body)
	u.body, u.whole = nil, false
	s.dropPieces()
}

func (s *Stream) dropPieces() {
	s.plugin.uploadBytes -= s.upload.claimed
	s.upload.claimed, s.upload.pieces, s.upload.left = 0, nil, 0
}

// list is a list of streams in the order in which they joined. A stream is in one list at most.
type list struct {
	first, last *Stream
	size        int
}

// links is a stream's position in a list.
type links struct {
	list           *list // nil: in none
	previous, next *Stream
}

// add puts a stream that is in no list at the end.
func (l *list) add(s *Stream) {
	s.links = links{list: l, previous: l.last}
	if l.last == nil {
		l.first = s
	} else {
		l.last.next = s
	}
	l.last = s
	l.size++
}

// remove takes a stream out if it is in the list.
func (l *list) remove(s *Stream) {
	if s.list != l {
		return
	}
	if s.previous == nil {
		l.first = s.next
	} else {
		s.previous.next = s.next
	}
	if s.next == nil {
		l.last = s.previous
	} else {
		s.next.previous = s.previous
	}
	s.links = links{}
	l.size--
}
