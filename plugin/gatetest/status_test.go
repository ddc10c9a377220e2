package gatetest

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

var statusCall = regexp.MustCompile(`set_property\(oncegate\.status, "([^"]*)"\) = Ok`)

// The client and access logs learn what became of each request. For the gate's own replies the
// response code details say it as well.
func TestStatusTellsTheDecision(t *testing.T) {
	pay := func(r *Rig) *Exchange { return r.Send(Request{Key: "k", Body: "b"}) }
	done := func(r *Rig) {
		x := pay(r)
		x.Answer(201, "first")
		x.Response()
		x.Over()
	}
	reply := func(x *Exchange) string { return x.Response().Header("idempotency-status") }
	for name, c := range map[string]struct {
		config string
		// run plays a request and returns the answer's header.
		run    func(t *testing.T, r *Rig) string
		header string
		status string // "": none
		local  bool   // the gate replies
	}{
		"executed": {"", func(t *testing.T, r *Rig) string {
			x := pay(r)
			x.Answer(201, "")
			return reply(x)
		}, "executed", "executed", false},
		"not the gate's": {"", func(t *testing.T, r *Rig) string {
			x := r.Send(Request{})
			x.Answer(201, "")
			return reply(x)
		}, "", "", false},
		"replayed": {"", func(t *testing.T, r *Rig) string {
			done(r)
			return reply(pay(r))
		}, "replayed", "replayed", true},
		"replayed after waiting": {"", func(t *testing.T, r *Rig) string {
			x := pay(r)
			x.Upstream.AwaitHeaders(t)
			y := pay(r)
			r.Settle()
			x.Answer(201, "first")
			x.Response()
			return reply(y)
		}, "replayed", "replayed", true},
		"pending": {`"wait_for_pending":false`, func(t *testing.T, r *Rig) string {
			pay(r).Upstream.AwaitHeaders(t)
			return reply(pay(r))
		}, "request-pending", "request-pending", true},
		"mismatch": {"", func(t *testing.T, r *Rig) string {
			done(r)
			return reply(r.Send(Request{Key: "k", Body: "another"}))
		}, "fingerprint-mismatch", "fingerprint-mismatch", true},
		"not recorded": {`"max_response_body_bytes":2`, func(t *testing.T, r *Rig) string {
			done(r)
			return reply(pay(r))
		}, "answer-not-recorded", "answer-not-recorded", true},
		"invalid": {"", func(t *testing.T, r *Rig) string {
			return reply(r.Send(Request{Key: "a,b"}))
		}, "invalid-key", "invalid-key", true},
		"required": {`"key":{"required":true}`, func(t *testing.T, r *Rig) string {
			return reply(r.Send(Request{}))
		}, "key-required", "key-required", true},
		"unavailable": {"", func(t *testing.T, r *Rig) string {
			r.Manager.FailNext(api.PathReserve, Fault{Status: 500})
			return reply(pay(r))
		}, "manager-unavailable", "manager-unavailable", true},
		"full": {"", func(t *testing.T, r *Rig) string {
			r.Manager.FailNext(api.PathReserve, Fault{Status: 503, Code: api.CodeLedgerFull, RetryAfter: 7})
			x := pay(r)
			want(t, "Retry-After", x.Response().Header("retry-after"), "7")
			return reply(x)
		}, "ledger-full", "ledger-full", true},
		"restored": {`"failure_mode":"open"`, func(t *testing.T, r *Rig) string {
			r.Manager.FailNext(api.PathReserve, Fault{Status: 503, Code: api.CodeQuarantine, RetryAfter: 7})
			x := pay(r)
			want(t, "Retry-After", x.Response().Header("retry-after"), "7")
			return reply(x)
		}, "quarantine", "quarantine", true},
		"unreadable": {`"failure_mode":"open"`, func(t *testing.T, r *Rig) string {
			r.Manager.FailNext(api.PathReserve, Fault{Status: 500, Code: api.CodeRecordUnreadable})
			return reply(pay(r))
		}, "record-unreadable", "record-unreadable", true},
		"bypassed": {`"failure_mode":"open"`, func(t *testing.T, r *Rig) string {
			r.Manager.FailNext(api.PathReserve, Fault{Status: 500})
			x := pay(r)
			x.Answer(201, "")
			return reply(x)
		}, "bypassed", "bypassed", false},
		"unsupported": {"", func(t *testing.T, r *Rig) string {
			return reply(r.Send(Request{Key: "k", Headers: []string{"content-type: application/grpc-web"}}))
		}, "unsupported-protocol", "unsupported-protocol", true},
		"not sent": {"", func(t *testing.T, r *Rig) string {
			x := pay(r)
			x.Upstream.AwaitHeaders(t)
			x.UpstreamFailed(hostsim.UpstreamNoHealthy, "")
			return reply(x)
		}, "not-sent", "not-sent", false},
		"no answer": {"", func(t *testing.T, r *Rig) string {
			x := pay(r)
			x.Upstream.AwaitHeaders(t)
			x.UpstreamFailed(hostsim.UpstreamDisconnected, "")
			return reply(x)
		}, "unknown", "unknown", false},
		"left while upstream works": {"", func(t *testing.T, r *Rig) string {
			x := pay(r)
			x.Upstream.AwaitHeaders(t)
			x.Leave()
			return ""
		}, "", "unknown", false},
		"left while the ledger is asked": {"", func(t *testing.T, r *Rig) string {
			r.Manager.FailNext(api.PathReserve, Fault{Hold: true})
			x := pay(r)
			r.Settle()
			x.Leave()
			r.Manager.Release()
			return ""
		}, "", "not-sent", false},
		"left while it waits": {"", func(t *testing.T, r *Rig) string {
			pay(r).Upstream.AwaitHeaders(t)
			x := pay(r)
			r.Settle()
			x.Leave()
			return ""
		}, "", "not-sent", false},
		"left before its body": {`"mode":"body"`, func(t *testing.T, r *Rig) string {
			x := r.Open(Request{Key: "k"}, false)
			x.Leave()
			return ""
		}, "", "not-sent", false},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, guest hostsim.Source) {
				o := Options{Config: "{" + c.config + "}", BodyMode: strings.Contains(c.config, "body\""), Recorder: new(hostsim.Recorder)}
				r := NewRig(t, guest, o)
				want(t, "idempotency-status", c.run(t, r), c.header)
				r.Clock.Advance(time.Second)
				text, status := o.Recorder.Text("worker-0"), ""
				if all := statusCall.FindAllStringSubmatch(text, -1); len(all) > 0 {
					status = all[len(all)-1][1]
				}
				want(t, "the property", status, c.status)
				want(t, "details", strings.Contains(text, ", oncegate_"+c.status+", ") || strings.Contains(text, `, "oncegate_`+c.status+`", `), c.local)
			})
		})
	}
}
