package gatetest

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
)

// Upstream answers with a redirect that the proxy follows by itself, so the gate sees two
// requests. The first one ran, and no client got its answer. The second one is recorded under
// its own path.
func TestProxyFollowsARedirect(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		redirect := hostsim.H(":status", "302", "location", "/elsewhere")
		for _, c := range []struct {
			name, config string
			answer       hostsim.Headers
			calls, retry string
		}{
			{"manager", `{}`, redirect, "reserve commit reserve commit", "410"},
			{"async", `{"commit":"async"}`, redirect, "reserve commit reserve commit", "410"},
			{"cache only", `{"ledger":"none"}`, redirect, "", "410"},
			{"released", `{"outcomes":{"commit":["2xx","5xx"],"release":["3xx"]}}`, redirect, "reserve release reserve commit", ""},
			{"retry later", `{}`, hostsim.H(":status", "503", "retry-after", "1"), "reserve release reserve commit", ""},
			{"submission", `{"ledger":"upstream"}`, redirect, "", ""},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := NewRig(t, guest, Options{Config: c.config})
				x := r.Send(Request{Key: "k", Body: "b"})
				x.Upstream.AwaitHeaders(t)
				x.UpstreamSelected("192.0.2.9:80")
				x.BeginsAgain(c.answer.Clone())
				x.Over()
				target := Request{Key: "k", Path: "/elsewhere", Body: "b"}
				y := r.Send(target)
				y.Answer(200, "there")
				p := y.Response()
				want(t, "answer", p.Body+" "+p.Header("idempotency-status"), "there executed")
				r.Settle()
				want(t, "calls", calls(r), c.calls)
				want(t, "retry of the target", r.Send(target).Response().Header("idempotent-replayed"), "true")

				z := r.Send(Request{Key: "k", Body: "b"})
				if c.retry == "" {
					z.Answer(200, "again")
					want(t, "retry", z.Response().Body, "again")
					return
				}
				r.Settle()
				want(t, "upstream called", z.Upstream.Begun(), false)
				q := z.Response()
				want(t, "retry", q.Status, c.retry)
				want(t, "code", q.Problem(t), "answer-not-recorded")
				want(t, "it has the status", strings.Contains(q.Body, "302"), true)
			})
		}
	})
}

// A filter after the gate makes the request begin again before anything was sent. The
// second run does not wait for the first.
func TestRequestBeginsAgainBeforeItWasSent(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, config := range []string{`{}`, `{"ledger":"none"}`, `{"ledger":"upstream"}`} {
			r := NewRig(t, guest, Options{Config: config})
			x := r.Send(Request{Key: "k"})
			x.Upstream.AwaitHeaders(t)
			x.BeginsAgain(nil)
			x.Over()
			// The clock stands still.
			y := r.Send(Request{Key: "k"})
			y.Answer(200, "done")
			want(t, config, y.Response().Body, "done")
			want(t, "released", r.Metric("oncegate_gate_outcomes_released_total"), 1)
		}
	})
}

// If the request may have been sent before it begins again, it must not run a second time.
func TestRequestBeginsAgainAfterItWasSent(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"wait_for_pending":false}`})
		x := r.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		x.UpstreamSelected("192.0.2.9:80")
		x.BeginsAgain(nil)
		x.Over()
		y := r.Send(Request{Key: "k"})
		want(t, "status", y.Response().Status, "409")
		want(t, "upstream called", y.Upstream.Begun(), false)
		want(t, "unknown outcomes", r.Metric("oncegate_gate_outcomes_unknown_total"), 1)
	})
}
