package hostsim_test

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// What a filter collects for itself (stop without buffering) and then gives back in its
// last body callback has no limit, whether it continues at once or is held with a watermark.
func TestCollectedByTheFilter(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{BufferLimit: 1024, AllowOnHeadersStopIteration: true})
		s, h := r.open("rh=pause;rb=action:3;rb3=fillbuffer:0:3000,replace:0:x-made:new")
		s.Request(h, strings.Repeat("x", 1000), strings.Repeat("x", 1000))
		s.Settle()
		want(r, "upstream", s.Up.Log(), "headers POST /x | data 3000 bytes end")
		want(r, "header set in the last callback", s.Up.Message().Headers.Get("x-made"), "new")

		s, h = r.open("rh=pause;rb=action:3;rb3=fillbuffer:0:3000,action:2,call:c:0;cb=effective:self,resume:0")
		s.Request(h, strings.Repeat("x", 1000), strings.Repeat("x", 1000))
		s.Settle()
		want(r, "upstream while it is held", s.Up.Log(), "")
		reply(r, cluster)
		want(r, "upstream", s.Up.Log(), "headers POST /x | data 3000 bytes end")

		s, h = r.open("rh=pause;rb=action:3;rb3=fillbuffer:0:3000,pause")
		s.Request(h, strings.Repeat("x", 1000), strings.Repeat("x", 1000))
		s.Settle()
		want(r, "held with buffering", s.Down.Log(), `headers 413 | data "Payload Too Large" end`)
		hostsimtest.Healthy(r, r.h)
	})
}

// The limit counts at the moment at which the buffer gets over it: what was let in with
// back pressure is not refused when the filter collects it later, and nothing more comes.
func TestLimitCountsWhenItIsPassed(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{BufferLimit: 1024})
		s, h := r.open("rh=pause,call:c:0;rb=pause;rb2=;cb=effective:self,resume:0")
		s.RequestHeaders(h, false)
		s.RequestData(make([]byte, 1000), false)
		s.Settle()
		want(r, "window below the limit", s.RequestWindowOpen(), true)
		s.RequestData(make([]byte, 1000), false)
		s.Settle()
		want(r, "window above the limit", s.RequestWindowOpen(), false)
		reply(r, cluster)
		want(r, "downstream", s.Down.Log(), "")
		want(r, "window while it is collected", s.RequestWindowOpen(), false)
		r.wantLog("worker-0", "rh 7", "rh: call:c:0 = Ok 4", "answer 1 headers, 0 bytes, 0 trailers", "cb: effective:self = Ok", "cb: resume:0 = Ok", "rb 2000")
		s.RequestData(nil, true) // an owner that does not heed the window
		s.Settle()
		want(r, "upstream", s.Up.Log(), "headers POST /x | data 2000 bytes end")
		hostsimtest.Healthy(r, r.h)
	})
}

// A filter that answers a request that is too large comes second.
func TestReplyToTooLargeComesSecond(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{BufferLimit: 1024, AllowOnHeadersStopIteration: true})
		s, h := r.open("rh=pause;rb=pause;rb2=reply:409:mine,pause")
		s.RequestHeaders(h, false)
		s.RequestData(make([]byte, 1000), false)
		s.RequestData(make([]byte, 1000), false)
		s.Settle()
		want(r, "downstream", s.Down.Log(), `headers 413 | data "Payload Too Large" end`)
	})
}

// A filter that makes a held buffer too large outside of the stream's callbacks is called
// for the 413 and for the stream's end before its host call returns.
func TestTooLargeReentersTheVM(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{BufferLimit: 1024, AllowOnHeadersStopIteration: true})
		s, h := r.open("name=a;rh=pause;rb=pause;rb2=pause,call:c:0;cb=effective:self,fillbuffer:0:1025,resume:0;sh=;sb=;log=;delete=")
		s.Request(h, "abc")
		s.Settle()
		reply(r, cluster)
		want(r, "downstream", s.Down.Log(), `headers 413 | data "Payload Too Large" end`)
		r.wantLog("worker-0", "a rh 7", "a rb 3", "a rb 3 end", "a rb: call:c:0 = Ok 4", "answer 1 headers, 0 bytes, 0 trailers", "a cb: effective:self = Ok",
			"a sh 3", "a sb 17 end", "a log 0", "a delete 0", "cb: fillbuffer:0:1025 = Ok", "cb: resume:0 = Ok")
		hostsimtest.Healthy(r, r.h)
	})
}

// A trap in such a callback ends the VM once the outer one is over.
func TestTrapInsideACallback(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{BufferLimit: 1024, AllowOnHeadersStopIteration: true})
		s, h := r.open("name=a;rh=pause;rb=pause;rb2=pause,call:c:0;cb=effective:self,fillbuffer:0:1025;sh=trap")
		s.Request(h, "abc")
		s.Settle()
		reply(r, cluster)
		want(r, "over", s.Over(), true)
		want(r, "traps", len(r.h.Traps()), 1)
		want(r, "callback", r.h.Traps()[0].Callback, "proxy_on_response_headers")
		want(r, "next stream", r.run("").Down.Message().Status(), "503")
	})
}

// After a callback that did not pause to buffer, Envoy's idea of the body is a buffer
// that is gone.
func TestBodyOutsideOfItsCallback(t *testing.T) {
	eachGuest(t, func(r *rig) {
		for _, script := range []string{
			"rb=action:2,call:c:0;cb=effective:self,buffer:0:0:9", "rb=action:3,call:c:0;cb=effective:self,setbuffer:0:0:0:x", "sb=action:3,call:c:0;cb=effective:self,buffersize:1",
		} {
			cluster := &hostsimtest.Cluster{}
			callRig(r, cluster, hostsim.Config{})
			s, h := r.open(script)
			s.RequestHeaders(h, false)
			s.RequestData([]byte("abc"), false)
			s.Settle()
			if strings.HasPrefix(script, "sb") {
				s.Respond(200, "abc")
				s.Settle()
			}
			reply(r, cluster)
			v := r.h.Violations()
			if len(v) != 1 || !strings.Contains(v[0].What, "body accessed outside of its callback") {
				r.Errorf("%s: violations are %v", script, v)
			}
		}
	})
}
