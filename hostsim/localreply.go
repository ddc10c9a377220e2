package hostsim

import (
	"fmt"
	"strconv"
	"strings"
)

// localReply is a response made by the host: for the filter, for a failed upstream, or because of a limit.
type localReply struct {
	code       int
	body       []byte
	headers    Headers // added by the filter
	details    string  // property response.code_details
	grpcStatus int     // -1: derived from code
	failed     bool    // the host's reply for a dead VM; it does not pass the filter
}

// filterReply executes proxy_send_local_response at the end of the callback that called it.
func (s *Stream) filterReply(r *localReply) {
	s.sendLocalReply(r, ResetLocalReply)
}

// sendLocalReply answers instead of upstream. Before response headers the reply travels through the filter's own
// response callbacks, immediately or after the running request callback. While response headers are held, it goes
// directly to the client. Once they were sent, the client's stream is reset with reason.
func (s *Stream) sendLocalReply(r *localReply, reason ResetReason) {
	if s.over || s.prepared != nil { // the first reply counts
		return
	}
	s.setDetails(r.details)
	switch {
	case !s.resp.started:
		if s.inDecoding {
			s.prepared = r
			return
		}
		s.playReply(r)
	case !s.resp.headersContinued:
		s.info.code = r.code
		s.req.aborted, s.resp.aborted = true, true
		hd, body := s.renderReply(r)
		s.resp.headers = hd
		s.resp.headersContinued, s.resp.outEnded = true, len(body) == 0
		s.opts.Downstream.Headers(hd, len(body) == 0)
		if len(body) > 0 {
			s.resp.outEnded = true
			s.info.respBytes += uint64(len(body))
			s.opts.Downstream.Data(body, true)
		}
		s.finish(ResetLocalReply)
	default:
		s.opts.Downstream.Reset(reason)
		s.finish(reason)
	}
}

// playReply sends a local reply through the response half.
func (s *Stream) playReply(r *localReply) {
	if s.over || s.resp.started {
		return
	}
	s.info.code = r.code
	s.req.aborted = true
	s.req.takeBuffer()
	s.cancelUpstream(ResetLocalReply)
	s.bypassResponse = r.failed
	hd, body := s.renderReply(r)
	s.resp.headersIn(hd, len(body) == 0)
	if len(body) > 0 && !s.over && !s.resp.aborted {
		s.resp.dataIn(body, true)
	}
}

// renderReply makes headers and body like Envoy: content-type and content-length describe the body, an answer to HEAD
// has no body, and a gRPC request gets its status in the headers of a 200.
func (s *Stream) renderReply(r *localReply) (Headers, []byte) {
	h := make(Headers, 0, 3+len(r.headers))
	h.Add(":status", strconv.Itoa(r.code))
	for _, p := range r.headers {
		if p[0] != ":status" {
			addHeader(&h, p[0], p[1])
		}
	}
	if s.grpc {
		status := r.grpcStatus
		if status < 0 {
			status = grpcCodeOfHTTP(r.code)
		}
		h.Set(":status", "200")
		h.Set("content-type", "application/grpc")
		h.Del("content-length")
		h.Set("grpc-status", strconv.Itoa(status))
		if len(r.body) > 0 {
			h.Set("grpc-message", percentEncode(string(r.body)))
		}
		return h, nil
	}
	if len(r.body) == 0 {
		h.Del("content-length")
		h.Del("content-type")
		return h, nil
	}
	h.Set("content-length", strconv.Itoa(len(r.body)))
	if !h.Has("content-type") {
		h.Add("content-type", "text/plain")
	}
	if s.req.headers.Get(":method") == "HEAD" {
		return h, nil
	}
	return h, r.body
}

func isGrpc(h Headers) bool {
	ct := h.Get("content-type")
	return ct == "application/grpc" || strings.HasPrefix(ct, "application/grpc+")
}

// percentEncode escapes a grpc-message.
func percentEncode(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// reply is the answer of Envoy's router to a failure. started says that response headers have arrived, which affects
// only the details.
func (f UpstreamFailure) reply(detail string, started bool) *localReply {
	when := "before_response_started"
	if started {
		when = "after_response_started"
	}
	reset := func(reason string) *localReply {
		body := "upstream connect error or disconnect/reset before headers. reset reason: " + reason
		details := "upstream_reset_" + when + "{" + strings.ReplaceAll(reason, " ", "_")
		if detail != "" {
			body += ", transport failure reason: " + detail
			details += "|" + strings.ReplaceAll(detail, " ", "_")
		}
		return &localReply{code: 503, body: []byte(body), details: details + "}", grpcStatus: -1}
	}
	switch f {
	case UpstreamConnectFailed:
		return reset("remote connection failure")
	case UpstreamProtocolError:
		r := reset("protocol error")
		r.code = 502
		return r
	case UpstreamOverflow:
		r := reset("overflow")
		r.headers = Headers{{"x-envoy-overloaded", "true"}}
		return r
	case UpstreamTimedOut:
		return &localReply{code: 504, body: []byte("upstream request timeout"), details: "response_timeout", grpcStatus: -1}
	case UpstreamNoHealthy:
		return &localReply{code: 503, body: []byte("no healthy upstream"), details: "no_healthy_upstream", grpcStatus: -1}
	case UpstreamNoRoute:
		return &localReply{code: 404, details: "route_not_found", grpcStatus: -1}
	}
	return reset("connection termination")
}

// flag is the response flag of a failure.
func (f UpstreamFailure) flag() ResponseFlags {
	switch f {
	case UpstreamConnectFailed:
		return FlagConnectFailure
	case UpstreamTimedOut:
		return FlagUpstreamTimeout
	case UpstreamNoHealthy:
		return FlagNoHealthyUpstream
	case UpstreamOverflow:
		return FlagUpstreamOverflow
	case UpstreamNoRoute:
		return FlagNoRoute
	case UpstreamProtocolError:
		return FlagUpstreamProtocolError
	}
	return FlagUpstreamTermination
}
