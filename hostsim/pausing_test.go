package hostsim_test

import (
	"context"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// By default a pause on headers stops everything: no body callback, and a resume sends
// the headers on at once and then plays the held body through the filter, in one piece.
func TestPauseOnHeadersStopsEverything(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{})
		s := r.run("rh=pause,call:c:0;rb=get:0::path;rt=;cb=effective:self,resume:0", "abc", "def")
		want(r, "upstream while paused", s.Up.Log(), "")
		r.wantLog("worker-0", "rh 7", "rh: call:c:0 = Ok 4")
		reply(r, cluster)
		want(r, "upstream", s.Up.Log(), `headers POST /x | data "abcdef" end`)
		r.wantLog("worker-0", "answer 1 headers, 0 bytes, 0 trailers", "cb: effective:self = Ok", "cb: resume:0 = Ok", "rb 6 end", "rb: get:0::path = BadArgument")
		hostsimtest.Healthy(r, r.h)
	})
}

func reply(r *rig, c *hostsimtest.Cluster) {
	r.Helper()
	call, err := c.Next(within(r))
	if err != nil {
		r.Fatal(err)
	}
	call.Reply(hostsimtest.Answer("200", ""))
	r.settle()
}

// The same with trailers and an empty body.
func TestPauseOnHeadersWithTrailers(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{})
		s, h := r.open("rh=pause,call:c:0;rb=;rt=get:1:t;cb=effective:self,resume:0")
		s.RequestHeaders(h, false)
		s.RequestData([]byte("abc"), false)
		s.RequestTrailers(hostsim.H("t", "1"))
		s.Settle()
		reply(r, cluster)
		want(r, "upstream", s.Up.Log(), `headers POST /x | data "abc" | trailers 1 end`)
		r.wantLog("worker-0", "rh 7", "rh: call:c:0 = Ok 4", "answer 1 headers, 0 bytes, 0 trailers", "cb: effective:self = Ok", "cb: resume:0 = Ok", "rb 3", "rt 1 end", "rt: get:1:t = Ok 1")

		s, h = r.open("rh=pause,call:c:0;rb=;cb=effective:self,resume:0")
		s.RequestHeaders(h, false)
		s.RequestData(nil, true)
		s.Settle()
		reply(r, cluster)
		want(r, "upstream of an empty body", s.Up.Log(), `headers POST /x | data "" end`)
		r.wantLog("worker-0", "rh 7", "rh: call:c:0 = Ok 8", "answer 1 headers, 0 bytes, 0 trailers", "cb: effective:self = Ok", "cb: resume:0 = Ok", "rb 0 end")

		s = r.run("rh=pause,call:c:0;cb=effective:self,resume:0")
		reply(r, cluster)
		want(r, "upstream without a body", s.Up.Log(), `headers POST /x end`)
		hostsimtest.Healthy(r, r.h)
	})
}

// While everything is stopped, a body over the limit is held back, not refused: the
// feeder waits.
func TestPauseOnHeadersBackPressure(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{BufferLimit: 1024})
		s, h := r.open("rh=pause,call:c:0;cb=effective:self,resume:0")
		s.RequestHeaders(h, false)
		s.RequestData(make([]byte, 1024), false)
		s.Settle()
		want(r, "window at the limit", s.RequestWindowOpen(), true)
		s.RequestData(make([]byte, 1), false)
		s.Settle()
		want(r, "window over the limit", s.RequestWindowOpen(), false)
		want(r, "downstream", s.Down.Log(), "")
		waited := make(chan error, 1)
		go func() { waited <- s.AwaitRequest(context.Background()) }()
		reply(r, cluster)
		if err := <-waited; err != nil {
			r.Fatalf("after the resume: %v", err)
		}
		want(r, "upstream", s.Up.Log(), "headers POST /x | data 1025 bytes")
		s.ClientReset()
		await(r, s.Done(), "the stream's end")
		if err := s.AwaitRequest(context.Background()); err != hostsim.ErrStreamOver {
			r.Errorf("after the end: %v", err)
		}
	})
}

// Continue on headers opens the upstream request at once, before any body.
func TestContinueOnHeadersOpensUpstream(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s, h := r.open("rh=")
		s.RequestHeaders(h, false)
		s.Settle()
		want(r, "upstream", s.Up.Log(), "headers POST /x")
	})
}

// With AllowOnHeadersStopIteration a pause on headers holds them and still delivers the
// body; "continue" from a body callback releases them at once.
func TestStopIterationModeContinueReleasesHeaders(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{AllowOnHeadersStopIteration: true})
		s, h := r.open("rh=pause;rb1=;rb2=resume:0")
		s.RequestHeaders(h, false)
		s.Settle()
		want(r, "upstream after headers", s.Up.Log(), "")
		s.RequestData([]byte("abc"), false)
		s.Settle()
		want(r, "upstream after the first piece", s.Up.Log(), `headers POST /x | data "abc"`)
		s.RequestData([]byte("def"), true)
		s.Settle()
		want(r, "upstream", s.Up.Log(), `headers POST /x | data "abc" | data "def" end`)
		// The resume came too late.
		v := r.h.Violations()
		if len(v) != 1 || !strings.Contains(v[0].What, "request resumed although it is not paused") {
			r.Errorf("violations are %v", v)
		}
	})
}

// In that mode a pausing body callback collects: each callback reports all there is so
// far, and the last one's continue sends headers and body on.
func TestStopIterationModeCollects(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{AllowOnHeadersStopIteration: true})
		s, h := r.open("rh=pause;rb=pause,buffer:0:0:99;rb3=buffer:0:0:99,replace:0:x-digest:d,get:0:x-digest")
		s.Request(h, "abc", "def")
		s.Settle()
		want(r, "upstream", s.Up.Log(), `headers POST /x | data "abcdef" end`)
		want(r, "header set in the body callback", s.Up.Message().Headers.Get("x-digest"), "d")
		r.wantLog("worker-0", "rh 7", "rb 3", "rb: buffer:0:0:99 = Ok abc", "rb 6", "rb: buffer:0:0:99 = Ok abcdef",
			"rb 6 end", "rb: buffer:0:0:99 = Ok abcdef", "rb: replace:0:x-digest:d = Ok", "rb: get:0:x-digest = Ok d")
		hostsimtest.Healthy(r, r.h)
	})
}

// A collected request is released by a resume from elsewhere, too.
func TestStopIterationModeResume(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{AllowOnHeadersStopIteration: true})
		s, h := r.open("rh=pause;rb=pause;rb2=pause,call:c:0;cb=effective:self,get:0::path,buffer:0:0:99,setbuffer:0:0:99:new,resume:0,get:0::path")
		s.Request(h, "abc")
		s.Settle()
		want(r, "upstream while paused", s.Up.Log(), "")
		reply(r, cluster)
		want(r, "upstream", s.Up.Log(), `headers POST /x | data "new" end`)
		r.wantLog("worker-0", "rh 7", "rb 3", "rb 3 end", "rb: call:c:0 = Ok 4", "answer 1 headers, 0 bytes, 0 trailers",
			"cb: effective:self = Ok", "cb: get:0::path = Ok /x", "cb: buffer:0:0:99 = Ok abc", "cb: setbuffer:0:0:99:new = Ok",
			"cb: resume:0 = Ok", "cb: get:0::path = BadArgument")
		hostsimtest.Healthy(r, r.h)
	})
}

// A body paused while it goes through: the headers are out already.
func TestPauseOnBody(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s, h := r.open("rb=pause;rb2=")
		s.RequestHeaders(h, false)
		s.RequestData([]byte("abc"), false)
		s.Settle()
		want(r, "upstream while paused", s.Up.Log(), "headers POST /x")
		s.RequestData([]byte("def"), true)
		s.Settle()
		want(r, "upstream", s.Up.Log(), `headers POST /x | data "abcdef" end`)
		r.wantLog("worker-0", "rb 3", "rb 6 end")
	})
}

// Trailers end a collected body; continue on them sends all on.
func TestPauseOnBodyWithTrailers(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{AllowOnHeadersStopIteration: true})
		s, h := r.open("rh=pause;rb=pause;rt=")
		s.RequestHeaders(h, false)
		s.RequestData([]byte("abc"), false)
		s.RequestTrailers(hostsim.H("t", "1"))
		s.Settle()
		want(r, "upstream", s.Up.Log(), `headers POST /x | data "abc" | trailers 1 end`)

		s, h = r.open("rh=pause;rb=pause;rt=pause,call:c:0;cb=effective:self,get:1:t,resume:0")
		s.RequestHeaders(h, false)
		s.RequestData([]byte("abc"), false)
		s.RequestTrailers(hostsim.H("t", "1"))
		s.Settle()
		want(r, "upstream while trailers are paused", s.Up.Log(), "")
		reply(r, cluster)
		want(r, "upstream", s.Up.Log(), `headers POST /x | data "abc" | trailers 1 end`)
		hostsimtest.Healthy(r, r.h)
	})
}

// A collected request over the limit is refused with 413, after one more callback that
// sees it; the reply passes the filter's own response callbacks.
func TestRequestTooLarge(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{BufferLimit: 1024, AllowOnHeadersStopIteration: true})
		s, h := r.open("rh=pause;rb=pause;sh=get:2::status,prop:response.code_details;sb=;log=")
		s.RequestHeaders(h, false)
		s.RequestData(make([]byte, 1024), false)
		s.Settle()
		want(r, "downstream at the limit", s.Down.Log(), "")
		s.RequestData(make([]byte, 1), false)
		s.RequestData(make([]byte, 1), false)
		s.Settle()
		want(r, "downstream", s.Down.Log(), `headers 413 | data "Payload Too Large" end`)
		want(r, "upstream", s.Up.Log(), "")
		want(r, "over", s.Over(), true)
		r.wantLog("worker-0", "rh 7", "rb 1024", "rb 1025", "sh 3", "sh: get:2::status = Ok 413",
			"sh: prop:response.code_details = Ok request_payload_too_large", "sb 17 end", "log 0")
	})
}

// One piece that is over the limit by itself: the callback sees it, then 413.
func TestRequestPieceTooLarge(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{BufferLimit: 1024})
		s, h := r.open("rb=pause")
		s.RequestHeaders(h, false)
		s.RequestData(make([]byte, 2000), false)
		s.Settle()
		want(r, "downstream", s.Down.Log(), `headers 413 | data "Payload Too Large" end`)
		want(r, "upstream", s.Up.Log(), "headers POST /x | reset local_reply")
		r.wantLog("worker-0", "rb 2000")
	})
}

// A filter that stops collecting below the limit lets the rest stream.
func TestRequestStopsCollectingInTime(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{BufferLimit: 1024, AllowOnHeadersStopIteration: true})
		s, h := r.open("rh=pause;rb1=pause;rb=")
		s.RequestHeaders(h, false)
		for range 5 {
			s.RequestData(make([]byte, 500), false)
		}
		s.RequestData(nil, true)
		s.Settle()
		want(r, "upstream", s.Up.Log(), `headers POST /x | data 1000 bytes | data 500 bytes | data 500 bytes | data 500 bytes | data "" end`)
		want(r, "downstream", s.Down.Log(), "")
	})
}

// A filter that makes the held buffer too large gets the same answer.
func TestFilterMakesRequestTooLarge(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{BufferLimit: 1024, AllowOnHeadersStopIteration: true})
		s, h := r.open("rh=pause;rb1=pause;rb2=pause,fillbuffer:0:1025")
		s.Request(h, "abc", "def")
		s.Settle()
		want(r, "downstream", s.Down.Log(), `headers 413 | data "Payload Too Large" end`)
	})
}

// A collected response over the limit: 500 while its headers are held, else the
// client's connection is reset. There is no further body callback.
func TestResponseTooLarge(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{BufferLimit: 1024, AllowOnHeadersStopIteration: true})
		big := func(s *hostsimtest.Stream) {
			s.ResponseHeaders(hostsim.H(":status", "200"), false)
			s.ResponseData(make([]byte, 1024), false)
			s.ResponseData(make([]byte, 1), false)
			s.ResponseData(nil, true)
			s.Settle()
		}
		s := r.run("sh=pause;sb=pause;log=get:2::status")
		big(s)
		want(r, "downstream with held headers", s.Down.Log(), `headers 500 | data "Internal Server Error" end`)
		want(r, "upstream", s.Up.Log(), "headers POST /x end | reset local_reply")
		r.wantLog("worker-0", "sh 1", "sb 1024", "log 0", "log: get:2::status = Ok 500")
		s = r.run("sb=pause;log=")
		big(s)
		want(r, "downstream with headers out", s.Down.Log(), "headers 200 | reset response_too_large")
		r.wantLog("worker-0", "sb 1024", "log 0")
	})
}

// The response half pauses as the request half does.
func TestPauseOnResponse(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{})
		s := r.run("sh=pause,call:c:0;sb=buffer:1:0:99;cb=effective:self,get:2::status,resume:1")
		s.Respond(200, "abc", "def")
		s.Settle()
		want(r, "downstream while paused", s.Down.Log(), "")
		reply(r, cluster)
		want(r, "downstream", s.Down.Log(), `headers 200 | data "abcdef" end`)
		r.wantLog("worker-0", "sh 1", "sh: call:c:0 = Ok 4", "answer 1 headers, 0 bytes, 0 trailers", "cb: effective:self = Ok",
			"cb: get:2::status = Ok 200", "cb: resume:1 = Ok", "sb 6 end", "sb: buffer:1:0:99 = Ok abcdef")

		// The end of the body is what waits.
		s = r.run("sb2=pause,call:c:0;cb=effective:self,resume:1")
		s.Respond(200, "abc")
		s.Settle()
		want(r, "downstream while the end is paused", s.Down.Log(), `headers 200 | data "abc"`)
		reply(r, cluster)
		want(r, "downstream", s.Down.Log(), `headers 200 | data "abc" | data "" end`)
		hostsimtest.Healthy(r, r.h)
	})
}

// The larger actions that Envoy understands: stop all and buffer, stop and watermark,
// stop without buffering.
func TestLargerActionsFollowEnvoy(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{BufferLimit: 1024, AllowOnHeadersStopIteration: true})
		s, h := r.open("rh=action:3")
		s.Request(h, strings.Repeat("x", 1025))
		s.Settle()
		want(r, "stop all and buffer, over the limit", s.Down.Log(), `headers 413 | data "Payload Too Large" end`)

		s, h = r.open("rh=action:4,call:c:0;cb=effective:self,resume:0")
		s.Request(h, strings.Repeat("x", 1025))
		s.Settle()
		want(r, "stop all and watermark, over the limit", s.Down.Log(), "")
		reply(r, cluster)
		want(r, "upstream", s.Up.Log(), "headers POST /x | data 1025 bytes end")

		s, h = r.open("rb=action:2;rb2=action:2,call:c:0;cb=effective:self,resume:0")
		s.Request(h, strings.Repeat("x", 1025))
		s.Settle()
		want(r, "stop and watermark, over the limit", s.Down.Log(), "")
		reply(r, cluster)
		want(r, "upstream", s.Up.Log(), "headers POST /x | data 1025 bytes end")

		s, h = r.open("rb=action:3;rb2=action:3,call:c:0;cb=effective:self,resume:0")
		s.Request(h, "abc")
		s.Settle()
		reply(r, cluster)
		want(r, "stop without buffering drops", s.Up.Log(), `headers POST /x | data "" end`)
		hostsimtest.Healthy(r, r.h)
	})
}

// Resuming what is not paused is undefined in Envoy: it is reported.
func TestResumeOfRunningStream(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		r.run("rh=resume:1,resume:0,pause")
		var what []string
		for _, v := range r.h.Violations() {
			what = append(what, v.What)
		}
		want(r, "violations", strings.Join(what, "; "), "response resumed before it has begun; Envoy crashes here; request resumed although it is not paused")
		r.run("rh=resume:2,resume:3,resume:4,reply:200")
		r.wantLog("worker-0", "rh 7 end", "rh: resume:1 = Ok", "rh: resume:0 = Ok",
			"rh 7 end", "rh: resume:2 = Ok", "rh: resume:3 = Unimplemented", "rh: resume:4 = BadArgument", "rh: reply:200 = Ok")
	})
}
