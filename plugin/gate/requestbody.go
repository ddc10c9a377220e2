package gate

import (
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/internal/fields"
	"github.com/oncegate/oncegate/plugin/request"
)

const (
	// maxUploadBytes bounds the bytes of request bodies that a VM holds. Beyond it, the host holds them. If the VM holds no
	// other body, one body may be as large as max_request_body_bytes.
	maxUploadBytes = 8 << 20
	// leaveBytes is how much of a body the gate always leaves to the host. It is less than any useful buffer limit, and
	// most bodies are no larger.
	leaveBytes = 16 << 10
)

// upload is what the gate knows about a request's body while it reads it.
type upload struct {
	body  *request.Body
	keyed bool // the key comes from the body
	// encoded: the body has a content encoding, so it is no JSON.
	encoded bool
	// lacks is the part of the scope that the request needs and does not have; empty: none.
	lacks     string
	buffering buffering
	pieces    []byte // the pieces that the gate has taken over; all pieces if storesBody says so
	left      int    // bytes of pieces that the host holds as well
	claimed   int    // bytes that pieces counts in Plugin.uploadBytes
	// forCall: the gate wants the whole body for its own upstream call. whole: pieces has it.
	forCall, whole bool
	json           bool // a JSON body may ask for an answer that streams
}

// buffering reports whether the gate takes pieces over.
type buffering uint8

const (
	bufferingUndecided buffering = iota // not decided yet
	bufferingOn
	bufferingOff
)

// awaitUpload prepares for the body of a request with these headers.
func (s *Stream) awaitUpload(headers request.Headers, keyed bool) {
	u, route := &s.upload, s.route
	u.body, u.keyed = s.plugin.digester.NewBody(&route.Fingerprint, headers, route.MaxRequestBody, route.Key.Derive), keyed
	encoding := fields.Joined(headers, headerContentEncoding)
	u.encoded = encoding != "" && encoding != "identity"
	s.requestEnd.readHeaders(headers)
	if s.requestEnd.length >= 0 {
		u.buffering = bufferingOn
	} else if _, n := headers.Get(headerTrailer); n > 0 {
		u.buffering = bufferingOff
	}
}

// buffered returns the bytes that the gate has and the host has not.
func (u *upload) buffered() []byte { return u.pieces[u.left:] }

// with returns all pieces with another one at the end.
func (u *upload) with(piece []byte) []byte {
	if len(u.pieces) == 0 {
		return piece
	}
	return append(u.pieces, piece...)
}

// readBody digests a piece.
func (s *Stream) readBody(size int, end bool) Action {
	u := &s.upload
	var piece []byte
	if size > 0 {
		if piece = s.plugin.host.RequestBody(size); len(piece) != size {
			return s.actionFor(s.unreadableBody())
		}
		u.body.Write(piece)
		if s.rpc && !s.message.add(piece) {
			return s.actionFor(s.notUnary())
		}
	}
	length := s.requestEnd.length
	whole := end || length >= 0 && u.body.Len() >= length
	switch {
	case u.body.Truncated():
	case !whole:
		return s.holdPiece(piece)
	case !end && (!s.endMayBeStuck() || u.forCall && s.claimBodyRoom(len(piece))):
		return s.holdLast(piece)
	}
	if !s.putBack() {
		return s.actionFor(s.unreadableBody())
	}
	return s.actionFor(s.bodyRead(piece, whole))
}

// holdLast holds the piece that completes a body until its end comes, because for an earlier answer the host would close an
// HTTP/1 connection or reset an HTTP/2 stream. If the end may be stuck, only a reply waits for it, and a request that the
// gate would carry: trailers may come instead, which the gate's call does not have. That wait is short; see checkStalls.
func (s *Stream) holdLast(piece []byte) Action {
	u := &s.upload
	if !s.putBack() {
		return s.actionFor(s.unreadableBody())
	}
	if s.storesBody() {
		u.pieces = u.with(piece)
	}
	u.left = len(u.pieces)
	if s.endMayBeStuck() {
		s.plugin.awaitBody(s)
	}
	return Pause
}

// endMayBeStuck reports whether the host may have the whole declared body, and yet not show its end: in HTTP/2 the end of a
// larger body may be stuck behind a full buffer.
func (s *Stream) endMayBeStuck() bool {
	size, length := s.upload.body.Len(), s.requestEnd.length
	return length >= 0 && size >= length && size > leaveBytes && !s.http1()
}

// decideWithoutEnd decides about a request whose end does not come. The router will carry it.
func (s *Stream) decideWithoutEnd() {
	s.upload.forCall = false
	s.apply(s.bodyRead(nil, true))
}

// holdPiece holds a piece until the rest of the body is there. The host stops reading from the client when its buffer is
// full. The gate does not know the buffer's size: if it is smaller than the body, host and gate would wait for each other
// forever. So the gate takes over the pieces of larger bodies and puts them back in front of the last one.
func (s *Stream) holdPiece(piece []byte) Action {
	p, u := s.plugin, &s.upload
	buffer := u.body.Len() > leaveBytes && s.buffersPieces()
	whole := s.storesBody()
	switch {
	case !buffer && !whole:
	case s.claimBodyRoom(len(piece)):
		if u.pieces == nil {
			u.pieces = make([]byte, 0, u.claimed)
		}
		u.pieces = append(u.pieces, piece...)
		if buffer {
			p.awaitingBody.remove(s)
			return Drop
		}
		u.left = len(u.pieces)
	case !s.putBack():
		return s.actionFor(s.unreadableBody())
	case s.needsWhole():
		s.dropBody()
		return s.actionFor(s.unprotected(&overloadedProblem))
	default:
		u.buffering, u.forCall = bufferingOff, false
		s.dropPieces()
	}
	p.awaitBody(s)
	return Pause
}

// buffersPieces reports whether the gate may take over pieces of the body. It can put them back only in front of a piece,
// and trailers come after the last one. So it must know which piece is the last: from the declared length, or because no
// trailers follow. In HTTP/1 none follow that the client has not announced, unless the host is configured to pass them.
func (s *Stream) buffersPieces() bool {
	u := &s.upload
	if u.buffering == bufferingUndecided {
		u.buffering = bufferingOff
		if s.http1() {
			u.buffering = bufferingOn
		}
	}
	return u.buffering == bufferingOn
}

// needsWhole reports whether the gate cannot decide without the whole body. A body beyond max_request_body_bytes is the
// exception.
func (s *Stream) needsWhole() bool {
	return s.upload.keyed && s.route.Key.InBody() || s.upload.body.NeedsWhole() || s.route.JSONRPC
}

// storesBody reports whether the gate stores all pieces of the body.
func (s *Stream) storesBody() bool { return s.upload.forCall || s.needsWhole() }

// claimBodyRoom claims room for more bytes in pieces. If the length is declared, it claims all of it the first time. False:
// the VM holds too much already.
func (s *Stream) claimBodyRoom(more int) bool {
	p, u := s.plugin, &s.upload
	need := len(u.pieces) + more
	if length := s.requestEnd.length; length >= 0 {
		need = int(min(length, int64(s.route.MaxRequestBody)))
	}
	if n := need - u.claimed; n > 0 {
		if p.uploadBytes > u.claimed && p.uploadBytes+n > maxUploadBytes {
			return false
		}
		p.uploadBytes += n
		u.claimed = need
	}
	return true
}

// putBack returns the taken bytes to the host, in front of the current piece. False: the host refused them.
func (s *Stream) putBack() bool {
	taken := s.upload.buffered()
	return len(taken) == 0 || s.plugin.host.PrependRequestBody(taken)
}

// bodyRead decides once the body is digested, either all of it or max_request_body_bytes. piece is its last piece.
func (s *Stream) bodyRead(piece []byte, whole bool) verdict {
	p, route, u := s.plugin, s.route, &s.upload
	if s.rpc && whole && !s.message.whole() {
		return s.notUnary()
	}
	whole = whole && !u.body.Truncated()
	var body []byte
	if whole && s.needsWhole() {
		body = u.with(piece)
	}
	if s.route.JSONRPC && isBatch(body) {
		s.dropBody()
		return s.invalid(&batchProblem)
	}
	if s.route.JSONRPC {
		s.requestID = requestID(body)
	}
	if u.keyed {
		key, bad := s.bodyKey(body, whole)
		if bad != nil {
			return s.badRequest(bad)
		}
		if key.Value == "" {
			key = request.DerivedKey(&route.Key, u.body)
		}
		if key.Value == "" {
			s.dropBody()
			unread := route.Key.Derive != config.DeriveNone || route.Key.ToldInBody() && (!whole || u.encoded)
			if unread && !route.Key.Required {
				// The body may have a key that the gate cannot read: it is too large or encoded, or there is none of which to
				// derive a key. The request passes, with a mark, because the operator has not said that each request has one.
				return s.bypass()
			}
			return s.keyless()
		}
		if u.lacks != "" {
			s.dropBody()
			return s.refuseAmbiguous(u.lacks)
		}
		s.identify(key, nil) // the headers gave the scope
	}
	if route.JSONRPC && (!whole || u.encoded) {
		s.dropBody()
		return s.invalid(unreadMessageProblem(route.MaxRequestBody))
	}
	if whole {
		p.digester.Canonical(u.body, body, &route.Fingerprint)
	}
	s.fingerprint = p.digester.BodyFingerprint(u.body)
	if u.forCall && whole {
		s.storeForCall(piece)
	} else {
		s.dropBody()
	}
	return s.decide()
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

func (s *Stream) unreadableBody() verdict {
	return s.invalid(&api.Problem{
		Status: 400, Code: api.CodeInvalidRequest, Title: "The request body cannot be read",
	})
}

// storeForCall stores the whole body for an upstream call, if there is room and it does not ask for a stream. piece is its
// last piece.
func (s *Stream) storeForCall(piece []byte) {
	p, u := s.plugin, &s.upload
	whole := u.with(piece)
	s.dropBody()
	if p.uploadBytes+len(whole) > maxUploadBytes || u.json && !u.encoded && asksForStream(whole) {
		return
	}
	p.uploadBytes += len(whole)
	u.pieces, u.left, u.claimed, u.whole = whole, len(whole), len(whole), true
}

// bodyPatience is how long the host may have bytes of a held request's body without a callback. After that the gate takes
// the configuration to be wrong. It is not shorter because a filter before the gate may hold a body while it asks another
// service about it.
const bodyPatience = time.Second

// bodyProbe is the time after which another request is held to find out whether bodies come now.
const bodyProbe = 10 * time.Second

// bodyWatch notices a host that holds the body back together with the headers. On such a host every request of a route in
// body mode would hang. The proof is a body of which bytes have come (request.total_size) without a callback; a slow client
// proves nothing. The first body that the host delivers ends the watch forever.
type bodyWatch struct {
	seen bool // the host delivered a body while headers were held
	// unavailable: the host delivers no bodies. Requests are refused, except one per bodyProbe, which is held to find out
	// whether that is still so.
	unavailable bool
	refusing    bool  // the requests that are held now must be refused
	probed      int64 // when a request was last held, or last proved that no body comes

	streams list // the watched streams: their requests are held and have had no body callback
}

// watched is what the watch knows of a held request.
type watched struct {
	size      uint64 // request.total_size at the headers
	heldSince int64  // since when the host is known to hold bytes back; 0: not known
}

// watch begins to watch the current stream. False: the stream must be refused.
func (b *bodyWatch) watch(s *Stream) bool {
	if b.seen {
		return true
	}
	p := s.plugin
	now := p.host.Now()
	if b.unavailable && (b.streams.first != nil || now >= b.probed && now-b.probed < int64(bodyProbe)) {
		return false
	}
	b.probed = now
	s.watched = watched{size: p.totalSize()}
	b.streams.add(s)
	return true
}

// unwatch ends the watch of one stream.
func (b *bodyWatch) unwatch(s *Stream) {
	b.streams.remove(s)
	b.refusing = b.refusing && b.streams.first != nil
}

// delivered must be called in every callback after the headers of a held request.
func (b *bodyWatch) delivered(h Host) {
	if b.seen {
		return
	}
	b.seen = true
	if b.unavailable {
		b.unavailable = false
		h.Log(LevelInfo, "oncegate: request bodies arrive now; mode body works")
	}
	for b.streams.first != nil {
		b.unwatch(b.streams.first)
	}
}

// checkBodies looks for the proof. It runs in the plugin context.
func (p *Plugin) checkBodies(now int64) {
	b := &p.bodies
	for s := b.streams.first; s != nil && !b.refusing; {
		next := s.next
		switch w := &s.watched; {
		case !p.makeCurrent(s.id):
			b.unwatch(s)
		case w.heldSince == 0 || now < w.heldSince:
			if p.totalSize() > w.size {
				w.heldSince = now
			}
		case now-w.heldSince >= int64(bodyPatience):
			b.refusing, b.probed = true, now
			if !b.unavailable {
				b.unavailable = true
				p.host.Log(LevelError, bodyHint)
			}
		}
		s = next
	}
}

const bodyHint = "oncegate: mode body is configured, but no body arrives while the request headers are held; " +
	"set allow_on_headers_stop_iteration in the plugin's configuration (Envoy 1.35 or newer), or use mode headers"

// refuseBodies refuses the held requests, whose bodies will not come.
func (p *Plugin) refuseBodies() {
	b := &p.bodies
	for b.refusing && !p.atLimit() {
		s := b.streams.first
		b.unwatch(s)
		if p.makeCurrent(s.id) {
			s.bodyUnavailable()
		}
	}
}

func (s *Stream) bodyUnavailable() verdict {
	return s.refuseAs(s.plugin.metrics.noBody, &api.Problem{
		Status: 500, Code: api.CodeBodyModeUnavailable,
		Title:  "The proxy does not show request bodies to the gate",
		Detail: "The request was not executed. The proxy's configuration must be corrected; its log says how.",
	})
}

// Bodies that stand still.

const (
	// stallTicks is how many ticks an answer may stand still before the gate takes the host's buffer to be full.
	stallTicks = 5
	// endTicks is the same for the end of a request's body.
	endTicks = 2
	// stallBytes is less than any useful buffer limit. The gate always holds smaller bodies.
	stallBytes = 4 << 10
)

// checkStalls looks for bodies that stand still. An answer stands still because upstream is slow, or because the host's
// buffer is full; in the second case nothing comes until the gate releases the buffer. Releasing it is right in both cases:
// the gate copies the rest of the answer, and its end waits for the ledger. About a request's body the gate can only write
// to the log.
func (p *Plugin) checkStalls() {
	p.ticks++
	for s, next := p.awaitingBody.first, (*Stream)(nil); s != nil && !p.atLimit(); s = next {
		next = s.next
		still := p.ticks - s.lastProgress
		switch {
		case s.phase == phaseHolding && still >= stallTicks && s.answer.passed >= stallBytes:
			p.awaitingBody.remove(s)
			if p.makeCurrent(s.id) {
				s.releaseBody()
			}
		case s.phase == phaseBody && still >= endTicks && s.endMayBeStuck():
			p.awaitingBody.remove(s)
			if p.makeCurrent(s.id) {
				s.decideWithoutEnd()
			}
		case s.phase == phaseBody && still >= int64(bodyPatience/tickPeriod) && s.upload.body.Len() >= stallBytes && !p.stallLogged:
			p.stallLogged = true
			p.host.Log(LevelWarn, "oncegate: a request body stands still after "+strconv.FormatInt(s.upload.body.Len(), 10)+
				" bytes; unless the client is slow, "+limitHint+"max_request_body_bytes")
		}
	}
}

// releaseBody releases the body that the host holds. If that is the whole body, it records the answer instead, and the body
// waits for the ledger.
func (s *Stream) releaseBody() {
	p, a := s.plugin, &s.answer
	s.phase, s.lastProgress, a.stalled = phaseCopying, p.ticks, true
	if a.complete() && s.recordWhole() == Pause {
		return // the answer waits for the ledger
	}
	s.resumeResponse()
}

// learnBufferSize records the size of the host's buffer: an answer that moves as soon as it is released had filled it.
func (p *Plugin) learnBufferSize(s *Stream) {
	a := &s.answer
	if !a.stalled {
		return
	}
	a.stalled = false
	if p.ticks-s.lastProgress > 1 {
		return // upstream was slow
	}
	// Half of it is a safe estimate: a piece or two may have come after the buffer was full.
	fits := max(a.fitted/2, stallBytes)
	if p.hostBufferBytes == 0 {
		p.host.Log(LevelWarn, "oncegate: the host stopped reading an answer before max_response_body_bytes; answers of more than "+strconv.FormatInt(fits, 10)+
			" bytes begin to pass before they are recorded; "+limitHint+"max_response_body_bytes")
	}
	if p.hostBufferBytes == 0 || fits < p.hostBufferBytes {
		p.hostBufferBytes = fits
	}
}

const limitHint = "per_connection_buffer_limit_bytes of the listener (for HTTP/2, initial_stream_window_size) should not be below "
