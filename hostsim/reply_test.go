package hostsim_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// A local reply made on the request path passes the filter's own response callbacks,
// stops the request whatever the callback returns, and only the first one counts.
func TestLocalReplyOnRequest(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s := r.run("rh=reply:403:denied:some details:0:x-a:1:x-a:2,reply:500;sh=get:2::status,get:2:x-a,prop:response.code_details,prop:response.flags,add:2:x-b:3;sb=buffer:1:0:99;log=", "abc")
		want(r, "downstream", s.Down.Log(), `headers 403 | data "denied" end`)
		want(r, "upstream", s.Up.Log(), "")
		m := s.Down.Message()
		want(r, "x-a", strings.Join(m.Headers.Values("x-a"), " "), "1 2")
		want(r, "x-b", m.Headers.Get("x-b"), "3")
		want(r, "content-length", m.Headers.Get("content-length"), "6")
		want(r, "content-type", m.Headers.Get("content-type"), "text/plain")
		want(r, "over", s.Over(), true)
		r.wantLog("worker-0", "rh 7", "rh: reply:403:denied:some details:0:x-a:1:x-a:2 = Ok", "rh: reply:500 = Ok",
			"sh 5", "sh: get:2::status = Ok 403", "sh: get:2:x-a = Ok 1", "sh: prop:response.code_details = Ok some_details",
			"sh: prop:response.flags = Ok 0x0000000000000000", "sh: add:2:x-b:3 = Ok", "sb 6 end", "sb: buffer:1:0:99 = Ok denied", "log 0")
		hostsimtest.Healthy(r, r.h)
	})
}

// A local reply from a body callback, from a tick or from a callout's answer does the
// same, and cancels the upstream request where there is one.
func TestLocalReplyLater(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{})
		s := r.run("rb2=reply:409;sh=", "abc")
		want(r, "upstream, from body", s.Up.Log(), `headers POST /x | data "abc" | reset local_reply`)
		want(r, "downstream, from body", s.Down.Log(), "headers 409 end")
		s = r.run("rh=call:c:0;cb=effective:self,reply:504;sh=")
		reply(r, cluster)
		want(r, "upstream, from a callout", s.Up.Log(), "headers POST /x end | reset local_reply")
		want(r, "downstream, from a callout", s.Down.Log(), "headers 504 end")
		r.wantLog("worker-0", "rb 0 end", "rb: reply:409 = Ok", "sh 1 end", "rh 7 end", "rh: call:c:0 = Ok 4",
			"answer 1 headers, 0 bytes, 0 trailers", "cb: effective:self = Ok", "cb: reply:504 = Ok", "sh 1 end")
	})
}

// A local reply from a response callback replaces held headers without passing the
// filter; when the headers are out the client's stream is reset.
func TestLocalReplyOnResponse(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s := r.run("sh=reply:502:bad;sb=;log=get:2::status,prop:response.code,prop:response.code_details")
		s.Respond(200, "abc")
		s.Settle()
		want(r, "downstream", s.Down.Log(), `headers 502 | data "bad" end`)
		want(r, "upstream", s.Up.Log(), "headers POST /x end | reset local_reply")
		r.wantLog("worker-0", "sh 1", "sh: reply:502:bad = Ok", "log 0", "log: get:2::status = Ok 502",
			"log: prop:response.code = Ok 0xf601000000000000", "log: prop:response.code_details = Ok ")
		s = r.run("sb=reply:502:bad")
		s.Respond(200, "abc")
		s.Settle()
		want(r, "downstream with headers out", s.Down.Log(), "headers 200 | reset local_reply")
	})
}

// A filter may pause its own local reply, or answer for one of the host's.
func TestLocalReplyIsFilteredLikeAResponse(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{})
		s := r.run("rh=reply:403:no;sh=pause,call:c:0;cb=effective:self,resume:1")
		want(r, "downstream while paused", s.Down.Log(), "")
		reply(r, cluster)
		want(r, "downstream", s.Down.Log(), `headers 403 | data "no" end`)
		s = r.run("sh=reply:409:mine")
		s.UpstreamFailed(hostsim.UpstreamNoHealthy, "")
		s.Settle()
		want(r, "answer instead of the host's 503", s.Down.Log(), `headers 409 | data "mine" end`)
		hostsimtest.Healthy(r, r.h)
	})
}

// Answers to HEAD and to gRPC requests, and ones without a body.
func TestLocalReplyForms(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s := hostsimtest.Open(r, r.h, 0)
		s.RequestHeaders(hostsim.H(":method", "HEAD", ":path", "/", ":authority", "a", "x-script", "rh=reply:404:gone"), true)
		s.Settle()
		want(r, "HEAD", s.Down.Log(), "headers 404 end")
		want(r, "HEAD content-length", s.Down.Message().Headers.Get("content-length"), "4")

		s = r.run("rh=reply:204::::content-type:text/html:content-length:5")
		want(r, "no body", s.Down.Log(), "headers 204 end")
		want(r, "no body content-type", s.Down.Message().Headers.Has("content-type"), false)
		want(r, "no body content-length", s.Down.Message().Headers.Has("content-length"), false)

		s = r.run("rh=reply:200:{}::" + ":content-type:application/json:content-length:99")
		want(r, "content-type", s.Down.Message().Headers.Get("content-type"), "application/json")
		want(r, "content-length", s.Down.Message().Headers.Get("content-length"), "2")

		for script, grpc := range map[string]string{"rh=reply:503:a%b": "14 a%25b", "rh=reply:404": "12 ", "rh=reply:409:x::10": "10 x", "rh=reply:429": "14 ", "rh=reply:401": "16 ", "rh=reply:403": "7 ", "rh=reply:400": "13 ", "rh=reply:500": "2 "} {
			s, h := r.open(script, "content-type", "application/grpc+proto")
			s.Request(h)
			s.Settle()
			m := s.Down.Message()
			want(r, script+" as gRPC", s.Down.Log(), "headers 200 end")
			want(r, script+" gRPC status", m.Headers.Get("grpc-status")+" "+m.Headers.Get("grpc-message"), grpc)
		}
	})
}

// What the host answers for a failed upstream, and that it passes the filter.
func TestAnswerOfAFailedUpstreamPassesTheFilter(t *testing.T) {
	for _, c := range []struct {
		failure                   hostsim.UpstreamFailure
		detail, down, flags, info string
	}{
		{hostsim.UpstreamConnectFailed, "connection refused", `503 144`, "0x2000000000000000", "upstream_reset_before_response_started{remote_connection_failure|connection_refused}"},
		{hostsim.UpstreamDisconnected, "", `503 95`, "0x4000000000000000", "upstream_reset_before_response_started{connection_termination}"},
		{hostsim.UpstreamProtocolError, "", `502 87`, "0x0000800000000000", "upstream_reset_before_response_started{protocol_error}"},
		{hostsim.UpstreamTimedOut, "", `504 24`, "0x0400000000000000", "response_timeout"},
		{hostsim.UpstreamNoHealthy, "", `503 19`, "0x0200000000000000", "no_healthy_upstream"},
		{hostsim.UpstreamOverflow, "", `503 81`, "0x8000000000000000", "upstream_reset_before_response_started{overflow}"},
		{hostsim.UpstreamNoRoute, "", `404 `, "0x0001000000000000", "route_not_found"},
	} {
		eachGuest(t, func(r *rig) {
			r.start(hostsim.Config{})
			s := r.run("sh=get:2::status,prop:response.flags,prop:response.code_details,prop:upstream.address")
			s.UpstreamFailed(c.failure, c.detail)
			s.Settle()
			m := s.Down.Message()
			want(r, "downstream", m.Status()+" "+m.Headers.Get("content-length"), c.down)
			want(r, "upstream", s.Up.Log(), "headers POST /x end")
			lines := r.logs.take("worker-0")
			want(r, "seen by the filter", strings.Join(lines[2:], "; "), "sh: prop:response.flags = Ok "+c.flags+"; sh: prop:response.code_details = Ok "+c.info+"; sh: prop:upstream.address = NotFound")
		})
	}
}

// Upstream breaks off after response headers: while the filter holds them the client
// gets a 503, later its stream is reset.
func TestUpstreamFailsMidResponse(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s := r.run("sh=pause")
		s.ResponseHeaders(hostsim.H(":status", "200"), false)
		s.UpstreamFailed(hostsim.UpstreamDisconnected, "")
		s.Settle()
		want(r, "downstream status", s.Down.Message().Status(), "503")
		s = r.run("sh=;log=prop:response.flags,prop:response.code_details")
		s.ResponseHeaders(hostsim.H(":status", "200"), false)
		s.ResponseData([]byte("abc"), false)
		s.UpstreamFailed(hostsim.UpstreamDisconnected, "")
		s.Settle()
		want(r, "downstream", s.Down.Log(), `headers 200 | data "abc" | reset upstream_reset`)
		want(r, "over", s.Over(), true)
		r.wantLog("worker-0", "sh 1", "sh 1", "log 0", "log: prop:response.flags = Ok 0x4000000000000000", "log: prop:response.code_details = Ok upstream_reset_after_response_started{connection_termination}")
	})
}

// The client leaves: upstream is cancelled, and the filter gets log, done and delete,
// in this order, and no response callback.
func TestLeavingClientCancelsTheUpstream(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s := r.run("sh=;sb=;log=get:0::path,get:2::status,get:2:x,get:1:t,get:3:t,prop:response.flags,prop:response.code_details,prop:request.path,prop:request.id,replace:0:a:b;sdone=get:0::path;delete=")
		s.ClientReset()
		s.Settle()
		s.Respond(200, "too late")
		s.Settle()
		want(r, "upstream", s.Up.Log(), "headers POST /x end | reset client_disconnect")
		want(r, "downstream", s.Down.Log(), "")
		want(r, "over", s.Over(), true)
		id := s.Up.Message().Headers.Get("x-request-id")
		r.wantLog("worker-0", "log 0", "log: get:0::path = Ok /x", "log: get:2::status = NotFound", "log: get:2:x = NotFound", "log: get:1:t = NotFound", "log: get:3:t = NotFound",
			"log: prop:response.flags = Ok 0x0040000000000000", "log: prop:response.code_details = Ok downstream_remote_disconnect",
			"log: prop:request.path = Ok /x", "log: prop:request.id = Ok "+id, "log: replace:0:a:b = BadArgument",
			"sdone 0", "sdone: get:0::path = BadArgument", "delete 0")
		hostsimtest.Healthy(r, r.h)
	})
}

// The client can leave at every step of a stream's life; the filter is always told
// exactly once.
func TestClientLeavesAnywhere(t *testing.T) {
	steps := map[hostsimtest.Step]string{
		hostsimtest.AfterRequestHeaders: "rh", hostsimtest.AfterFirstPiece: "rh rb", hostsimtest.AfterRequest: "rh rb rb",
		hostsimtest.UpstreamHasHeaders: "", hostsimtest.UpstreamHasRequest: "", hostsimtest.AfterResponseHeaders: "", hostsimtest.AfterResponse: "", hostsimtest.ClientHasHeaders: "",
	}
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		for step := range steps {
			script := "rh=;rb=;sh=;sb=;log=;sdone=;delete="
			if step == hostsimtest.AfterResponse {
				script = "rh=;rb=;sh=pause;sb=;log=;sdone=;delete="
			}
			_, err := hostsimtest.Do(within(r), r.h, hostsimtest.Request{
				Headers: hostsimtest.Post("/x", "x-script", script), Pieces: [][]byte{[]byte("abc")}, Leave: step,
			}, func(hostsimtest.Message) hostsimtest.Response {
				return hostsimtest.Response{Status: 200, Body: []byte("hello")}
			})
			// A client that leaves while its answer comes may still get all of it.
			if err != nil && !errors.Is(err, hostsimtest.ErrLeft) {
				r.Errorf("step %d: %v", step, err)
			}
			r.settle()
			log := strings.Join(r.logs.take("worker-0"), " ")
			if !strings.HasSuffix(log, "log 0 sdone 0 delete 0") || strings.Count(log, "delete") != 1 {
				r.Errorf("step %d: the filter saw %s", step, log)
			}
		}
		want(r, "open streams", r.h.Streams(), 0)
		hostsimtest.Healthy(r, r.h)
	})
}

// An internal redirect, and a filter that recreates the stream: the old stream ends
// without a response callback and without a word to the client, a new one takes over.
func TestRequestBeginsAgain(t *testing.T) {
	const log = "sh=;sb=;log=get:2::status,get:2:location,prop:response.code,prop:response.code_details,prop:response.flags;sdone=;delete="
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s := r.run(log, "abc")
		s.BeginsAgain(hostsim.H(":status", "302", "location", "/y"))
		want(r, "over", s.Over(), true)
		want(r, "upstream", s.Up.Log(), `headers POST /x | data "abc" | data "" end`)
		want(r, "downstream", s.Down.Log(), "")
		r.wantLog("worker-0", "log 0", "log: get:2::status = Ok 302", "log: get:2:location = Ok /y", "log: prop:response.code = Ok 0x2e01000000000000",
			"log: prop:response.code_details = Ok internal_redirect", "log: prop:response.flags = Ok 0x0000000000000000", "sdone 0", "delete 0")

		s = r.run("rh=pause;" + log)
		s.BeginsAgain(nil)
		want(r, "over before it was sent", s.Over(), true)
		want(r, "upstream", s.Up.Log(), "")
		want(r, "downstream", s.Down.Log(), "")
		r.wantLog("worker-0", "rh 7 end", "log 0", "log: get:2::status = NotFound", "log: get:2:location = NotFound", "log: prop:response.code = NotFound",
			"log: prop:response.code_details = Ok internal_redirect", "log: prop:response.flags = Ok 0x0000000000000000", "sdone 0", "delete 0")
		hostsimtest.Healthy(r, r.h)

		// A request that is not complete cannot begin again, nor one that is being answered.
		s, h := r.open("")
		s.RequestHeaders(h, false)
		s.BeginsAgain(nil)
		want(r, "incomplete request", s.Over(), true)
		s = r.run("")
		s.ResponseHeaders(hostsim.H(":status", "200"), false)
		s.BeginsAgain(nil)
		want(r, "answered request", s.Over(), true)
		want(r, "violations", len(r.h.Violations()), 2)
	})
}

// proxy_close_stream resets both sides.
func TestCloseStreamResetsBothSides(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s := r.run("sh=close:1,pause;log=prop:response.code_details")
		s.Respond(200, "abc")
		s.Settle()
		want(r, "downstream", s.Down.Log(), "reset closed_by_filter")
		want(r, "upstream", s.Up.Log(), "headers POST /x end | reset closed_by_filter")
		s = r.run("rh=close:0,close:2,close:9,pause;log=prop:response.code_details")
		want(r, "downstream", s.Down.Log(), "reset closed_by_filter")
		r.wantLog("worker-0", "sh 1", "sh: close:1 = Ok", "log 0", "log: prop:response.code_details = Ok via_upstream",
			"rh 7 end", "rh: close:0 = Ok", "rh: close:2 = Ok", "rh: close:9 = BadArgument", "log 0", "log: prop:response.code_details = Ok wasm_close_stream")
	})
}

// A response that ends before the request does cancels the rest of it.
func TestResponseBeforeRequestEnds(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s, h := r.open("rb=")
		s.RequestHeaders(h, false)
		s.RequestData([]byte("abc"), false)
		s.Respond(413)
		s.RequestData([]byte("def"), true)
		s.Settle()
		want(r, "downstream", s.Down.Log(), "headers 413 end")
		want(r, "upstream", s.Up.Log(), `headers POST /x | data "abc" | reset response_complete`)
		r.wantLog("worker-0", "rb 3")
	})
}

// An idle stream is answered with 408 while the request is not complete, 504 after, and
// reset when the response has begun.
func TestIdleStreamIsAnsweredOrReset(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{StreamIdleTimeout: time.Minute})
		half, h := r.open("sh=prop:response.flags,prop:response.code_details")
		half.RequestHeaders(h, false)
		whole := r.run("")
		begun := r.run("")
		begun.ResponseHeaders(hostsim.H(":status", "200"), false)
		half.Settle()
		r.clock.Advance(59 * time.Second)
		busy := r.run("")
		begun.ResponseData([]byte("abc"), false)
		r.settle()
		r.clock.Advance(time.Second)
		want(r, "request not complete", half.Down.Log(), `headers 408 | data "stream timeout" end`)
		want(r, "request complete", whole.Down.Log(), `headers 504 | data "stream timeout" end`)
		want(r, "upstream of it", whole.Up.Log(), "headers POST /x end | reset local_reply")
		want(r, "busy streams", busy.Down.Log()+begun.Down.Log(), `headers 200 | data "abc"`)
		r.wantLog("worker-0", "sh 3", "sh: prop:response.flags = Ok 0x0000010000000000", "sh: prop:response.code_details = Ok stream_idle_timeout")
		r.clock.Advance(59 * time.Second)
		want(r, "response begun", begun.Down.Log(), `headers 200 | data "abc" | reset stream_idle_timeout`)
		r.clock.Advance(time.Hour)
		want(r, "open streams", r.h.Streams(), 0)
	})
}
