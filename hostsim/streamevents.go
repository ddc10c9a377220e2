package hostsim

import (
	"fmt"
	"strconv"
	"time"
)

// streamInfo is what the property interface shows of a stream.
type streamInfo struct {
	start           time.Time
	flags           ResponseFlags
	details         string
	haveDetails     bool
	code            int // 0: none yet
	upstreamAddress string
	attempts        uint64 // of the router
	route           *Route
	reqBytes        uint64
	respBytes       uint64
	values          map[string][]byte // set with proxy_set_property
}

// handle handles one of the stream's events.
func (s *Stream) handle(e *event) {
	switch e.kind {
	case evRequestData:
		s.req.window.handled(len(e.data))
	case evResponseData:
		s.resp.window.handled(len(e.data))
	}
	if s.over {
		return
	}
	s.t.touch(s)
	switch e.kind {
	case evRequestHeaders:
		s.onRequestHeaders(e.headers, e.eos)
	case evRequestData:
		switch {
		case !s.expect(s.req.started && !s.req.ended, "request body"):
		case s.req.aborted:
			s.req.ended = e.eos
		default:
			s.info.reqBytes += uint64(len(e.data))
			s.req.dataIn(e.data, e.eos)
		}
	case evRequestTrailers:
		switch {
		case !s.expect(s.req.started && !s.req.ended, "request trailers"):
		case s.req.aborted:
			s.req.ended = true
		default:
			s.req.trailersIn(orEmpty(e.headers))
		}
	case evUpstreamSelected:
		s.info.upstreamAddress = e.text
		s.info.attempts++
	case evResponseHeaders:
		s.onResponseHeaders(e.headers, e.eos)
	case evResponseData:
		if s.fromUpstream() && s.expect(s.resp.started && !s.resp.ended, "response body") {
			s.resp.dataIn(e.data, e.eos)
		}
	case evResponseTrailers:
		if s.fromUpstream() && s.expect(s.resp.started && !s.resp.ended, "response trailers") {
			s.resp.trailersIn(orEmpty(e.headers))
		}
	case evUpstreamFailed:
		s.onUpstreamFailed(e.failure, e.text)
	case evBeganAnew:
		s.onBeginAnew(e.headers)
	case evClientReset:
		s.onClientReset()
	case evOverrun:
		s.reset(ResetOverrun)
	case evIdle:
		s.onIdle()
	}
}

func orEmpty(h Headers) Headers {
	if h == nil {
		return Headers{}
	}
	return h
}

// expect ends a stream whose owner feeds events in an order that no codec produces.
func (s *Stream) expect(ok bool, what string) bool {
	if !ok {
		s.violation("unexpected " + what)
		s.reset(ResetProtocolMisuse)
	}
	return ok
}

// fromUpstream reports whether upstream's input is still needed.
func (s *Stream) fromUpstream() bool { return !s.upstreamCut && !s.resp.aborted }

func (s *Stream) onRequestHeaders(hd Headers, endStream bool) {
	if !s.expect(!s.req.started, "request headers") {
		return
	}
	for _, name := range [...]string{":method", ":path", ":authority"} {
		if hd.Get(name) != "" {
			continue
		}
		s.req.started, s.req.headers, s.req.ended = true, hd, endStream
		s.sendLocalReply(&localReply{code: 400, details: "missing_" + name[1:] + "_header", grpcStatus: -1}, ResetLocalReply)
		return
	}
	if !hd.Has(":scheme") {
		hd.Add(":scheme", pick(s.opts.Connection.TLS, "https", "http"))
	}
	if !hd.Has("x-forwarded-proto") {
		hd.Add("x-forwarded-proto", hd.Get(":scheme"))
	}
	if !hd.Has("x-request-id") {
		hd.Add("x-request-id", s.host.newRequestID())
	}
	if s.vm = s.t.vmForStream(); s.vm != nil && !s.vm.failed {
		s.ctx = s.vm.newContext(s)
		s.vm.notify(s.ctx, onContextCreate, s.vm.root.id)
		if s.over {
			return
		}
	}
	s.req.headersIn(hd, endStream)
}

func (s *Stream) onResponseHeaders(hd Headers, endStream bool) {
	if !s.fromUpstream() || !s.expect(s.upstreamOpen && !s.resp.started, "response headers") {
		return
	}
	code, err := strconv.Atoi(hd.Get(":status"))
	if err != nil || code < 200 || code > 999 {
		s.violation(fmt.Sprintf("response :status is %q", hd.Get(":status")))
		s.reset(ResetProtocolMisuse)
		return
	}
	s.info.code = code
	s.setDetails("via_upstream")
	s.resp.headersIn(hd, endStream)
}

func (s *Stream) onUpstreamFailed(f UpstreamFailure, detail string) {
	if !s.fromUpstream() || s.resp.ended {
		return
	}
	s.info.flags |= f.flag()
	s.upstreamCut = true // there is nothing to cancel any more
	s.sendLocalReply(f.reply(detail, s.resp.started), ResetUpstream)
}

// onBeginAnew ends the stream without sending anything to the client.
func (s *Stream) onBeginAnew(response Headers) {
	if !s.expect(s.req.ended && !s.resp.started && !s.upstreamCut, "new beginning") {
		return
	}
	if response != nil {
		code, err := strconv.Atoi(response.Get(":status"))
		if !s.expect(err == nil && s.upstreamOpen, "redirect") {
			return
		}
		s.info.code = code
		s.resp.headers = response
		s.upstreamCut = true // the exchange with upstream is complete
	}
	s.setDetails("internal_redirect")
	s.finish(ResetLocalReply)
}

func (s *Stream) onClientReset() {
	s.info.flags |= FlagDownstreamReset
	s.setDetails("downstream_remote_disconnect")
	s.finish(ResetClientGone)
}

// onIdle ends a stream that was inactive for too long.
func (s *Stream) onIdle() {
	s.info.flags |= FlagStreamIdleTimeout
	code := 408
	if s.req.ended {
		code = 504
	}
	s.sendLocalReply(&localReply{code: code, body: []byte("stream timeout"), details: "stream_idle_timeout", grpcStatus: -1}, ResetIdle)
}

func (s *Stream) closeByFilter() {
	if s.over {
		return
	}
	if !s.info.haveDetails {
		s.setDetails("wasm_close_stream")
	}
	s.reset(ResetByFilter)
}

// reset resets both sides.
func (s *Stream) reset(reason ResetReason) {
	if s.over {
		return
	}
	if !s.resp.outEnded {
		s.opts.Downstream.Reset(reason)
	}
	s.finish(reason)
}

// cancelUpstream resets the upstream request unless the exchange with upstream is
// complete.
func (s *Stream) cancelUpstream(reason ResetReason) {
	if !s.upstreamOpen || s.upstreamCut || s.req.outEnded && s.resp.ended {
		return
	}
	s.upstreamCut = true
	s.opts.Upstream.Reset(reason)
}

// finish ends the stream: it cancels an unfinished upstream request, and the filter gets its log, done and delete
// callbacks.
func (s *Stream) finish(reason ResetReason) {
	if s.over {
		return
	}
	s.over = true
	s.cancelUpstream(reason)
	s.prepared = nil
	if s.ctx != nil {
		s.logging = true
		s.lastCalls()
		s.logging = false
		delete(s.vm.contexts, s.ctx.id)
	}
	s.req.takeBuffer()
	s.resp.takeBuffer()
	s.t.remove(s)
	close(s.done)
}

func (s *Stream) lastCalls() {
	s.vm.notify(s.ctx, onLog)
	s.logging = false
	s.vm.notify(s.ctx, onDone)
	s.vm.notify(s.ctx, onDelete)
}

func (s *Stream) setDetails(d string) { s.info.details, s.info.haveDetails = d, true }

func (s *Stream) clearRoute() { s.info.route = nil }

func (s *Stream) route() Route {
	if s.opts.Route == nil {
		return Route{}
	}
	if s.info.route == nil {
		r := s.opts.Route(s.req.headers)
		s.info.route = &r
	}
	return *s.info.route
}

func (s *Stream) violation(what string) {
	id := uint32(0)
	if s.ctx != nil {
		id = s.ctx.id
	}
	s.host.reportViolation(Violation{Thread: s.t.name, Context: id, What: what})
}
