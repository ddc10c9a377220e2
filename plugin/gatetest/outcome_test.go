package gatetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// calls returns the paths of the calls so far, without their common prefix.
func calls(r *Rig) string {
	var names []string
	for _, c := range r.Manager.Calls() {
		names = append(names, strings.TrimPrefix(c.Path, "/v1/ledger/"))
	}
	return strings.Join(names, " ")
}

func TestOutcomesByStatus(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		for _, c := range []struct {
			status  int
			headers []string
			state   api.State
		}{
			{200, nil, api.StateCommitted},
			{201, nil, api.StateCommitted},
			{302, []string{"location: /x"}, api.StateCommitted},
			{500, nil, api.StateCommitted},
			{503, nil, api.StateCommitted},
			{400, nil, api.StateRejected},
			{404, nil, api.StateRejected},
			{409, nil, api.StateRejected},
			{422, nil, api.StateRejected},
			{408, nil, api.StateNone},
			{412, nil, api.StateNone},
			{421, nil, api.StateNone},
			{425, nil, api.StateNone},
			{428, nil, api.StateNone},
			{429, nil, api.StateNone},
			{503, []string{"retry-after: 3"}, api.StateNone},
		} {
			key := fmt.Sprintf("%d-%d", c.status, len(c.headers))
			x := r.Send(Request{Key: key})
			x.Answer(c.status, "body", c.headers...)
			p := x.Response()
			want(t, key+": status", p.Status, fmt.Sprint(c.status))
			want(t, key+": body", p.Body, "body")
			want(t, key+": idempotency-status", p.Header("idempotency-status"), statusAfter(c.state))
			r.Settle()
			state, result := r.Manager.State(key)
			want(t, key+": state", state, c.state)
			y := r.Send(Request{Key: key})
			if c.state == api.StateNone {
				y.Answer(200, "again")
				want(t, key+": again", y.Response().Body, "again")
				continue
			}
			want(t, key+": recorded", result.Status, c.status)
			q := y.Response()
			want(t, key+": replay", q.Status+q.Body, p.Status+p.Body)
			want(t, key+": replayed", q.Header("idempotent-replayed"), "true")
		}
		want(t, "hits on rejections", r.Metric("oncegate_gate_requests_hit_rejected_total"), 4)
		want(t, "rejected", r.Metric("oncegate_gate_outcomes_rejected_total"), 4)
	})
}

func TestOutcomesAsConfigured(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"match":[
			{"path_prefix":"/strict","outcomes":{"commit":["2xx","3xx"],"reject":["4xx"],"release":["5xx"]}},
			{"path_prefix":"/"}]}`})
		for path, state := range map[string]api.State{"/strict/a": api.StateNone, "/other": api.StateCommitted} {
			x := r.Send(Request{Key: "k" + path, Path: path})
			x.Answer(500, "")
			x.Response()
			r.Settle()
			got, _ := r.Manager.State("k" + path)
			want(t, path, got, state)
		}
	})
}

// Without any setting an answer is kept for 5 minutes, a refusal for 1, an unknown outcome as long as an answer, and a
// duplicate waits for 30 s.
func TestDefaultTimes(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		run := func(key string, status int) {
			t.Helper()
			x := r.Send(Request{Key: key})
			x.Answer(status, "an answer")
			want(t, key, x.Response().Header("idempotency-status"), "executed")
		}
		retry := func(key string) string { return r.Send(Request{Key: key}).Response().Header("idempotency-status") }
		run("good", 200)
		run("bad", 400)
		x := r.Send(Request{Key: "unknown"})
		x.Upstream.AwaitHeaders(t)
		x.Leave()
		r.Settle()
		r.Clock.Advance(59 * time.Second)
		want(t, "bad", retry("bad"), "replayed")
		r.Clock.Advance(2 * time.Second)
		run("bad", 200)
		r.Clock.Advance(238 * time.Second)
		want(t, "good", retry("good"), "replayed")
		want(t, "unknown", retry("unknown"), "outcome-unknown")
		r.Clock.Advance(2 * time.Second)
		run("good", 200)
		run("unknown", 200)

		x = r.Send(Request{Key: "slow"})
		x.Upstream.AwaitHeaders(t)
		y := r.Send(Request{Key: "slow"})
		r.Settle()
		r.Clock.Advance(29 * time.Second)
		want(t, "answered early", y.Client.Begun(), false)
		r.Clock.Advance(2 * time.Second)
		want(t, "waited", y.Response().Problem(t), "request-pending")
		x.Answer(200, "x")
		x.Response()
	})
}

func TestRejectionsAreForgottenEarlier(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"committed_ttl_seconds":300,"rejected_ttl_seconds":60}`})
		for key, status := range map[string]int{"good": 200, "bad": 400} {
			x := r.Send(Request{Key: key})
			x.Answer(status, "first")
			x.Response()
		}
		r.Clock.Advance(61 * time.Second)
		x := r.Send(Request{Key: "bad"})
		x.Answer(200, "second")
		want(t, "rejected", x.Response().Body, "second")
		want(t, "committed", r.Send(Request{Key: "good"}).Response().Body, "first")
		r.Clock.Advance(240 * time.Second)
		y := r.Send(Request{Key: "good"})
		y.Answer(200, "second")
		want(t, "committed", y.Response().Body, "second")
	})
}

// If it is certain that nothing ran, the key is free for the retry. If the request may have run, it is not.
func TestUpstreamFailureDecidesWhetherTheKeyIsFree(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, c := range []struct {
			name    string
			failure hostsim.UpstreamFailure
			status  string
			tries   int // by the router
			free    bool
		}{
			{"connect failure", hostsim.UpstreamConnectFailed, "503", 1, true},
			{"no healthy host", hostsim.UpstreamNoHealthy, "503", 0, true},
			{"circuit breaker", hostsim.UpstreamOverflow, "503", 0, true},
			{"no route", hostsim.UpstreamNoRoute, "404", 0, true},
			{"timeout", hostsim.UpstreamTimedOut, "504", 1, false},
			{"reset", hostsim.UpstreamDisconnected, "503", 1, false},
			// Only the last try is known to have failed early.
			{"connect failure after another try", hostsim.UpstreamConnectFailed, "503", 2, false},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := NewRig(t, guest, Options{Config: `{"wait_for_pending":false}`})
				x := r.Send(Request{Key: "k"})
				x.Upstream.AwaitHeaders(t)
				for range c.tries {
					x.UpstreamSelected("192.0.2.9:80")
				}
				x.UpstreamFailed(c.failure, "")
				p := x.Response()
				want(t, "status", p.Status, c.status)
				r.Settle()
				y := r.Send(Request{Key: "k"})
				if c.free {
					y.Answer(200, "second")
					want(t, "retry", y.Response().Body, "second")
					want(t, "released", r.Metric("oncegate_gate_outcomes_released_total"), 1)
					return
				}
				want(t, "retry", y.Response().Problem(t), "outcome-unknown")
				want(t, "unknown outcomes", r.Metric("oncegate_gate_outcomes_unknown_total"), 1)
				want(t, "calls", calls(r), "reserve unknown reserve")
				r.Clock.Advance(299 * time.Second)
				want(t, "later", r.Send(Request{Key: "k"}).Response().Problem(t), "outcome-unknown")
				r.Clock.Advance(2 * time.Second)
				z := r.Send(Request{Key: "k"})
				z.Answer(200, "third")
				want(t, "when it is forgotten", z.Response().Body, "third")
			})
		}
	})
}

// Upstream's answer broke off. The request ran, and its answer cannot be repeated.
func TestUpstreamBreaksOffWithinItsAnswer(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, c := range []struct {
			name, config string
			body         bool
		}{
			{"headers mode", `{}`, false},
			{"body mode", `{"mode":"body"}`, true},
			{"async", `{"commit":"async"}`, false},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := NewRig(t, guest, Options{Config: c.config, BodyMode: c.body})
				x := r.Send(Request{Key: "k"})
				x.Upstream.AwaitHeaders(t)
				x.UpstreamSelected("192.0.2.9:80")
				x.ResponseHeaders(hostsim.H(":status", "201", "content-length", "10"), false)
				x.ResponseData([]byte("half"), false)
				x.UpstreamFailed(hostsim.UpstreamDisconnected, "")
				x.Over()
				r.Settle()
				state, result := r.Manager.State("k")
				want(t, "state", state, api.StateCommitted)
				want(t, "body omitted", result.BodyOmitted, true)
				p := r.Send(Request{Key: "k"}).Response()
				want(t, "retry", p.Status, "410")
				want(t, "code", p.Problem(t), "answer-not-recorded")
			})
		}
	})
}

func TestOversizeAnswersAreStreamed(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, c := range []struct {
			name, config string
			body, sized  bool
		}{
			{"headers mode, sized", `{"max_response_body_bytes":1000}`, false, true},
			{"headers mode, chunked", `{"max_response_body_bytes":1000}`, false, false},
			{"body mode, sized", `{"max_response_body_bytes":1000,"mode":"body"}`, true, true},
			{"body mode, chunked", `{"max_response_body_bytes":1000,"mode":"body"}`, true, false},
			{"async, sized", `{"max_response_body_bytes":1000,"commit":"async"}`, false, true},
			{"async, chunked", `{"max_response_body_bytes":1000,"commit":"async"}`, false, false},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := NewRig(t, guest, Options{Config: c.config, BodyMode: c.body})
				x := r.Send(Request{Key: "k"})
				x.Upstream.AwaitHeaders(t)
				x.UpstreamSelected("192.0.2.9:80")
				h := hostsim.H(":status", "200")
				if c.sized {
					h.Add("content-length", "2500")
				}
				piece := strings.Repeat("x", 500)
				x.ResponseHeaders(h, false)
				for range 5 {
					x.ResponseData([]byte(piece), false)
				}
				x.ResponseData(nil, true)
				p := x.Response()
				want(t, "body", len(p.Body), 2500)
				r.Settle()
				want(t, "calls", calls(r), "reserve commit")
				_, result := r.Manager.State("k")
				want(t, "recorded status", result.Status, 200)
				want(t, "body omitted", result.BodyOmitted, true)
				q := r.Send(Request{Key: "k"}).Response()
				want(t, "duplicate", q.Status, "410")
				want(t, "code", q.Problem(t), "answer-not-recorded")
				want(t, "oversize", r.Metric("oncegate_gate_outcomes_oversize_total"), 1)
				want(t, "not recorded", r.Metric("oncegate_gate_requests_not_recorded_total"), 1)
			})
		}
	})
}

// An answer that is too large passes as it comes, but its end still waits for the commit.
func TestEndOfAnOversizeAnswerIsHeld(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"max_response_body_bytes":4}`})
		r.Manager.FailNext(api.PathCommit, Fault{HoldCall: true})
		x := r.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		x.ResponseHeaders(hostsim.H(":status", "200", "content-length", "10"), false)
		x.ResponseData([]byte("12345"), false)
		x.Client.AwaitBody(t, 5)
		x.ResponseData([]byte("67890"), false)
		r.Settle()
		want(t, "body so far", x.Client.Body(), "12345")
		x.ResponseData(nil, true)
		r.Settle()
		want(t, "ended", x.Client.Ended(), false)
		r.Manager.Release()
		want(t, "body", x.Response().Body, "1234567890")
	})
}

func TestAnswerWithTrailers(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, c := range []struct {
			name, config string
			body         bool
		}{
			{"headers mode", `{}`, false},
			{"body mode", `{"mode":"body"}`, true},
			{"async", `{"commit":"async"}`, false},
			{"oversize", `{"max_response_body_bytes":1}`, false},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := NewRig(t, guest, Options{Config: c.config, BodyMode: c.body})
				x := r.Send(Request{Key: "k"})
				x.Upstream.AwaitHeaders(t)
				x.ResponseHeaders(hostsim.H(":status", "200"), false)
				x.ResponseData([]byte("one"), false)
				x.ResponseData([]byte("two"), false)
				x.ResponseTrailers(hostsim.H("x-checksum", "1", "x-two", "a", "x-two", "b"))
				want(t, "body", x.Response().Body, "onetwo")
				want(t, "trailer", x.Client.trailers.Get("x-checksum"), "1")
				r.Settle()
				q := r.Send(Request{Key: "k"}).Response()
				if c.name == "oversize" {
					want(t, "replay", q.Status, "410")
				} else {
					want(t, "replay", q.Body, "onetwo")
					want(t, "mark of a replay with its trailers", q.Header("idempotency-trailers"), "")
					want(t, "announced length", q.Header("content-length"), "")
					want(t, "trailer of a replay", q.Trailers, "x-checksum: 1, x-two: a, x-two: b")
				}
			})
		}
	})
}

// Answers of some media types reach the client as they come; others are held and recorded.
func TestStreamedTypesPassAsTheyCome(t *testing.T) {
	const ndjson = `{"streamed_types":["application/X-NDJSON"]}`
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, c := range []struct {
			config, contentType string
			live                bool
		}{
			{"", "text/event-stream; charset=utf-8", true},
			{"", "application/grpc+proto", true},
			{"", "application/x-ndjson", false},
			{ndjson, "application/x-ndjson", true},
			{ndjson, "text/event-stream", false},
			{`{"match":[{"streamed_types":["text/*"]}]}`, "Text/Plain", true},
			{`{"streamed_types":[]}`, "text/event-stream", false},
		} {
			what := c.contentType + " with " + c.config
			r := NewRig(t, guest, Options{Config: c.config})
			x := r.Send(Request{Key: "k"})
			x.Upstream.AwaitHeaders(t)
			x.ResponseHeaders(hostsim.H(":status", "200", "content-type", c.contentType), false)
			x.ResponseData([]byte("data: 1\n\n"), false)
			if c.live {
				x.Client.AwaitBody(t, 9)
				r.Settle()
				want(t, what+": calls", calls(r), "reserve commit")
			} else {
				r.Settle()
				want(t, what+": begun", x.Client.Body(), "")
			}
			x.ResponseData([]byte("data: 2\n\n"), true)
			want(t, what+": body", x.Response().Body, "data: 1\n\ndata: 2\n\n")
			status := "200"
			if c.live {
				status = "410"
			}
			want(t, what+": duplicate", r.Send(Request{Key: "k"}).Response().Status, status)
		}
	})
}

// An answer with too many headers for a result is not replayed without them.
func TestAnswerWithTooManyHeaders(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		var many []string
		for i := range 300 {
			many = append(many, fmt.Sprint("x-", i, ": v"))
		}
		x := r.Send(Request{Key: "k"})
		x.Answer(200, "body", many...)
		want(t, "answer", x.Response().Body, "body")
		r.Settle()
		want(t, "duplicate", r.Send(Request{Key: "k"}).Response().Status, "410")
	})
}

// statusAfter is the Idempotency-Status of a first answer after which the ledger has a key in that state.
func statusAfter(state api.State) string {
	if state == api.StateNone {
		return "released"
	}
	return "executed"
}
