package hostsim_test

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// waiters are streams that wait for another one's callback.
func waiters(r *rig, scripts ...string) []*hostsimtest.Stream {
	r.Helper()
	var all []*hostsimtest.Stream
	for _, script := range scripts {
		all = append(all, r.run(script))
	}
	return all
}

// Replies that one callback asks for are carried out each inside the one before: the
// latest stream ends first.
func TestRepliesNest(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		w := waiters(r, "name=a;rh=pause;sh=;log=", "name=b;rh=pause;sh=;log=")
		s := r.run("name=t;rh=others:reply:409:x,reply:200:mine;sh=;log=")
		for _, s := range append(w, s) {
			want(r, "over", s.Over(), true)
		}
		r.wantLog("worker-0", "a rh 7 end", "b rh 7 end", "t rh 7 end", "t rh: others:reply:409:x = Ok", "t rh: reply:200:mine = Ok",
			"a sh 3", "b sh 3", "b log 0", "a log 0", "t sh 3", "t log 0")
		hostsimtest.Healthy(r, r.h)
	})
}

// Too many of them overflow the VM's stack. Those that are under way are cut, and all
// others of the worker get the 503.
func TestTooManyRepliesTrap(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{MaxNestedReplies: 2})
		working := r.run("sh=")
		w := waiters(r, "rh=pause", "rh=pause", "rh=pause", "rh=pause")
		r.run("rh=others:reply:409:x,reply:200:mine")
		var got []string
		for _, s := range w {
			got = append(got, s.Down.Log())
		}
		// The working stream got a reply, too: it was the first.
		want(r, "answers", strings.Join(append(got, working.Down.Log()), "; "),
			`headers 409 | reset local_reply; headers 503 end; headers 503 end; headers 503 end; headers 409 | reset local_reply`)
		want(r, "traps", len(r.h.Traps()), 1)
		trap := r.h.Traps()[0]
		want(r, "callback", trap.Callback, "proxy_on_response_headers")
		want(r, "reason", strings.Contains(trap.Err.Error(), "Maximum call stack size exceeded"), true)
	})
}

// As many as fit leave the VM alive, and so do more in several callbacks; a resume takes
// a quarter.
func TestRepliesThatFit(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{MaxNestedReplies: 2})
		for range 2 {
			waiters(r, "rh=pause", "rh=pause")
			r.run("rh=others:reply:409:x,pause").ClientReset()
			r.settle()
		}
		want(r, "traps after the replies", len(r.h.Traps()), 0)
		for _, c := range []struct {
			streams int
			traps   int
		}{{8, 0}, {9, 1}} {
			for range c.streams {
				s, h := r.open("rh=pause;rb=")
				s.RequestHeaders(h, false)
				s.RequestData([]byte("abc"), false)
				defer s.ClientReset()
			}
			s := r.run("rh=others:resume:0,pause")
			want(r, "traps", len(r.h.Traps()), c.traps)
			s.ClientReset()
			r.h.Settle(within(r))
		}
	})
}

// A reply to the stream's own reply takes its place while its headers are held; later it
// cuts the stream.
func TestReplyToAReply(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		want(r, "two in one callback", r.run("rh=reply:200:x,reply:201:y").Down.Log(), `headers 200 | data "x" end`)
		want(r, "to its headers", r.run("rh=reply:200:x;sh=reply:201:y").Down.Log(), `headers 201 | data "y" end`)
		want(r, "to its body", r.run("rh=reply:200:x;sb=reply:201:y").Down.Log(), "headers 200 | reset local_reply")
		hostsimtest.Healthy(r, r.h)
	})
}

// A response that begins before the request's end is told from one that does not.
func TestEarlyResponseIsToldApart(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{AllowOnHeadersStopIteration: true})
		want(r, "early, to headers only", r.run("rh=reply:200:x").Down.Message().Early, false)
		want(r, "early, to headers before a body", r.run("rh=reply:200:x", "abc").Down.Message().Early, true)
		s := r.run("rh=reply:200:x;sh=action:4,call:c:0;cb=effective:self,resume:1", "abc")
		reply(r, cluster)
		want(r, "early, held until the request was complete", s.Down.Message().Early, false)
		s, h := r.open("")
		s.RequestHeaders(h, false)
		s.Respond(200)
		s.Settle()
		want(r, "early, upstream's", s.Down.Message().Early, true)
	})
}
