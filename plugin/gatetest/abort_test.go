package gatetest

import (
	"context"

	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// Routes whose requests continue when their clients leave (client_abort: continue).

const continuing = `{"mode":"body","client_abort":"continue","pending_wait_timeout":30}`

// backend is the upstream cluster that the gate calls. It holds calls until they are answered.
type backend struct {
	mu      sync.Mutex
	calls   []backendCall
	refuse  error
	changed chan struct{}
}

type backendCall struct {
	hostsim.CallRequest
	answer func(hostsim.CallResponse)
}

// Call implements hostsim.Cluster.
func (b *backend) Call(_ context.Context, q hostsim.CallRequest, done func(hostsim.CallResponse)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refuse != nil {
		return b.refuse
	}
	b.calls = append(b.calls, backendCall{q, done})
	close(b.changed)
	b.changed = make(chan struct{})
	return nil
}

// await returns the n-th call, from 0.
func (b *backend) await(t *testing.T, n int) backendCall {
	t.Helper()
	deadline := time.After(patience)
	for {
		b.mu.Lock()
		if len(b.calls) > n {
			defer b.mu.Unlock()
			return b.calls[n]
		}
		changed := b.changed
		b.mu.Unlock()
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("upstream call %d does not come", n)
		}
	}
}

func (b *backend) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.calls)
}

// upstream returns an answer with the header that a router adds.
func upstream(status int, body string, headers ...string) hostsim.CallResponse {
	h := hostsim.H(":status", fmt.Sprint(status), "x-envoy-upstream-service-time", "3")
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		h.Add(name, value)
	}
	return hostsim.CallResponse{Headers: h, Body: []byte(body)}
}

func abortRig(t *testing.T, guest hostsim.Source, o Options) (*Rig, *backend) {
	t.Helper()
	b := &backend{changed: make(chan struct{})}
	if o.Config == "" {
		o.Config = continuing
	}
	o.BodyMode = true
	o.Clusters = map[string]hostsim.Cluster{"route-cluster": b, "routes": b}
	return NewRig(t, guest, o), b
}

func TestWorkGoesOnWhenItsClientLeaves(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r, b := abortRig(t, guest, Options{Workers: 2})
		x := r.Send(Request{Key: "k", Body: "pay", Headers: []string{"x-request-id: id-1", "cookie: a", "authorization: Bearer a"}})
		c := b.await(t, 0)
		want(t, "cluster", c.Cluster, "route-cluster")
		want(t, "body", string(c.Body), "pay")
		for name, value := range map[string]string{
			":method": "POST", ":path": "/payments", ":authority": "api.test", ":scheme": "http", "idempotency-key": "k",
			"content-length": "3", "x-request-id": "id-1", "cookie": "a", "content-type": "application/json",
		} {
			want(t, name, c.Headers.Get(name), value)
		}
		x.Leave()
		want(t, "the router's request", x.Upstream.Begun(), false)
		// The retry comes while the work still runs, in another worker.
		y := r.Send(Request{Key: "k", Body: "pay", Worker: 1, Headers: []string{"authorization: Bearer a"}})
		r.Settle()
		want(t, "the retry has an answer", y.Client.Begun(), false)
		c.answer(upstream(201, "paid", "set-cookie: a=1", "set-cookie: b=2", "etag: x"))
		got := y.Response()
		want(t, "status", got.Status, "201")
		want(t, "body", got.Body, "paid")
		want(t, "replayed", got.Header("idempotent-replayed"), "true")
		want(t, "etag", got.Header("etag"), "x")
		want(t, "calls", calls(r), "reserve commit")
		state, result := r.Manager.State("k")
		want(t, "state", state, api.StateCommitted)
		want(t, "recorded", string(result.Body), "paid")
		want(t, "later", r.Send(Request{Key: "k", Body: "pay", Headers: []string{"authorization: Bearer a"}}).Response().Body, "paid")
		want(t, "executions", b.count(), 1)
		want(t, "counted", r.Metric("oncegate_gate_upstream_calls_total"), 1)
	})
}

func TestClientThatStaysGetsUpstreamsAnswer(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, commit := range []string{"before_reply", "async"} {
			t.Run(commit, func(t *testing.T) {
				r, b := abortRig(t, guest, Options{Config: `{"mode":"body","client_abort":"continue","commit":"` + commit + `"}`})
				r.Manager.FailNext(api.PathCommit, Fault{Hold: true})
				x := r.Send(Request{Key: "k", Body: "pay"})
				b.await(t, 0).answer(upstream(200, "answer", "content-type: text/x", "set-cookie: a=1", "set-cookie: b=2", "oncegate-answer: via_upstream - 1 h:1"))
				r.Settle()
				want(t, "answered before the commit", x.Client.Begun(), commit == "async")
				r.Manager.Release()
				got := x.Response()
				want(t, "status", got.Status, "200")
				want(t, "body", got.Body, "answer")
				want(t, "type", got.Header("content-type"), "text/x")
				want(t, "cookies", strings.Join(got.Headers.Values("set-cookie"), " "), "a=1 b=2")
				want(t, "idempotency", got.Header("idempotency-status"), "executed")
				want(t, "replayed", got.Headers.Has("idempotent-replayed"), false)
				want(t, "inner word", got.Headers.Has("oncegate-answer"), false)
				r.Settle()
				want(t, "retry", r.Send(Request{Key: "k", Body: "pay"}).Response().Header("idempotent-replayed"), "true")
			})
		}
	})
}

// What upstream's answer means is the same whether a router or the gate got it.
func TestOutcomesOfCarriedCalls(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, tt := range []struct {
			name   string
			answer hostsim.CallResponse
			calls  string
			status string
			mark   string
		}{
			{"4xx", upstream(422, "no"), "reserve reject", "422", "executed"},
			{"released", upstream(429, "later"), "reserve release", "429", "released"},
			{"empty", upstream(204, ""), "reserve commit", "204", "executed"},
			{"upstream's own 503", upstream(503, "upstream connect error or disconnect/reset before headers. reset reason: connection failure"), "reserve commit", "503", "executed"},
			{"upstream says that nothing was sent", upstream(503, "x", "oncegate-answer: no_healthy_upstream UH 0 -"), "reserve commit", "503", "executed"},
			{"timeout", hostsim.CallResponse{Failure: hostsim.CallTimedOut}, "reserve unknown", "504", "unknown"},
			{"reset", hostsim.CallResponse{Failure: hostsim.CallReset}, "reserve unknown", "503", "unknown"},
			{"never connected", hostsim.CallResponse{Failure: hostsim.CallConnectFailed}, "reserve release", "503", "not-sent"},
			{"broke off", hostsim.CallResponse{Failure: hostsim.CallResetMidAnswer}, "reserve unknown", "502", "outcome-unknown"},
			{"inner: answered", upstream(500, "x", "oncegate-answer: via_upstream - 1 192.0.2.1:80"), "reserve commit", "500", "executed"},
			{"inner: never connected", upstream(503, "x", "oncegate-answer: upstream_reset_before_response_started{connection_failure} UF 1 192.0.2.1:80"), "reserve release", "503", "not-sent"},
			{"inner: no host", upstream(503, "x", "oncegate-answer: no_healthy_upstream UH 0 -"), "reserve release", "503", "not-sent"},
			{"inner: no route", upstream(404, "", "oncegate-answer: route_not_found NR 0 -"), "reserve release", "404", "not-sent"},
			{"inner: a filter's", upstream(403, "x", "oncegate-answer: ext_authz_denied - 0 -"), "reserve release", "403", "not-sent"},
			{"inner: timeout", upstream(504, "x", "oncegate-answer: response_timeout UT 1 192.0.2.1:80"), "reserve unknown", "504", "unknown"},
			{"inner: cut", upstream(503, "x", "oncegate-answer: upstream_reset UC 1 192.0.2.1:80"), "reserve unknown", "503", "unknown"},
			{"inner: second try", upstream(503, "x", "oncegate-answer: upstream_reset UF,URX 2 192.0.2.1:80"), "reserve unknown", "503", "unknown"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				cluster := ""
				if strings.HasPrefix(tt.name, "inner: ") {
					cluster = "routes"
				}
				r, b := abortRig(t, guest, Options{Config: `{"mode":"body","client_abort":"continue","wait_for_pending":false,"upstream":{"cluster":"` + cluster + `"}}`})
				x := r.Send(Request{Key: "k", Body: "b"})
				b.await(t, 0).answer(tt.answer)
				got := x.Response()
				r.Settle()
				want(t, "status", got.Status, tt.status)
				want(t, "mark", got.Header("idempotency-status"), tt.mark)
				want(t, "calls", calls(r), tt.calls)
			})
		}
	})
}

// A client that has left changes nothing of what is recorded.
func TestOutcomesAreRecordedWithoutAClient(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for name, answer := range map[string]hostsim.CallResponse{
			"reserve commit":  upstream(500, "failed"),
			"reserve reject":  upstream(404, "none"),
			"reserve release": {Failure: hostsim.CallConnectFailed},
			"reserve unknown": {Failure: hostsim.CallTimedOut},
		} {
			t.Run(name, func(t *testing.T) {
				r, b := abortRig(t, guest, Options{})
				x := r.Send(Request{Key: "k", Body: "b"})
				c := b.await(t, 0)
				x.Leave()
				c.answer(answer)
				r.Settle()
				want(t, "calls", calls(r), name)
			})
		}
	})
}

// Nothing was sent before the client left: the key is free again.
func TestClientLeavesBeforeTheCallIsMade(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r, b := abortRig(t, guest, Options{})
		r.Manager.FailNext(api.PathReserve, Fault{Hold: true})
		x := r.Send(Request{Key: "k", Body: "b"})
		r.Settle()
		x.Leave()
		r.Manager.Release()
		r.Settle()
		want(t, "calls", calls(r), "reserve release")
		want(t, "upstream calls", b.count(), 0)
	})
}

// The router carries requests that the gate cannot carry, and cancels them when their clients leave.
func TestRouterCarriesTheRest(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		large := strings.Repeat("x", 2000)
		for name, tt := range map[string]struct {
			config string
			q      Request
			refuse error
		}{
			"cancel":         {config: `{"mode":"body"}`, q: Request{Body: "b"}},
			"streamed":       {q: Request{Body: "b", Headers: []string{"accept: text/html, text/event-stream;q=0.5"}}},
			"trailers":       {q: Request{Body: "b", Headers: []string{"trailer: x"}}},
			"expect":         {q: Request{Body: "b", Headers: []string{"expect: 100-continue"}}},
			"head":           {config: `{"mode":"body","client_abort":"continue","match":[{"methods":["*"]}]}`, q: Request{Method: "HEAD"}},
			"large":          {config: `{"mode":"body","client_abort":"continue","max_request_body_bytes":1000}`, q: Request{Body: large}},
			"no room":        {config: `{"mode":"body","client_abort":"continue","max_upstream_calls":0}`, q: Request{Body: "b"}},
			"no cluster":     {config: `{"mode":"body","client_abort":"continue","upstream":{"cluster":"none"}}`, q: Request{Body: "b"}},
			"refused":        {q: Request{Body: "b"}, refuse: hostsim.ErrNoHealthyHost},
			"many in flight": {q: Request{Body: "b"}, refuse: hostsim.ErrCircuitBreaker},
		} {
			t.Run(name, func(t *testing.T) {
				r, b := abortRig(t, guest, Options{Config: tt.config})
				b.refuse = tt.refuse
				tt.q.Key = "k"
				x := r.Send(tt.q)
				x.Answer(200, "")
				want(t, "status", x.Response().Status, "200")
				want(t, "calls", calls(r), "reserve commit")
				want(t, "upstream calls", b.count(), 0)
				want(t, "body", x.Upstream.Body(), tt.q.Body)
			})
		}
		r, b := abortRig(t, guest, Options{})
		x := r.Open(Request{Key: "k"}, false)
		x.RequestData([]byte("b"), false)
		x.RequestTrailers(hostsim.H("x", "y"))
		x.Answer(200, "")
		x.Response()
		want(t, "upstream calls of a request with trailers", b.count(), 0)
	})
}

// An answer that is too large to record still reaches the client whose request ran.
func TestCarriedAnswerIsTooLargeToRecord(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r, b := abortRig(t, guest, Options{Config: `{"mode":"body","client_abort":"continue","max_response_body_bytes":1000}`})
		large := strings.Repeat("x", 5000)
		x := r.Send(Request{Key: "k", Body: "b"})
		b.await(t, 0).answer(upstream(200, large))
		want(t, "body", x.Response().Body, large)
		want(t, "retry", r.Send(Request{Key: "k", Body: "b"}).Response().Problem(t), "answer-not-recorded")
		// If the answer is too large for the VM, even the first client learns only that the request ran.
		y := r.Send(Request{Key: "huge", Body: "b"})
		b.await(t, 1).answer(upstream(200, strings.Repeat("x", 16<<20+1)))
		want(t, "first", y.Response().Problem(t), "answer-not-recorded")
		_, result := r.Manager.State("huge")
		want(t, "recorded status", result.Status, 200)
	})
}

// While the manager is away, the outcome waits for it. The client and its retries get the answer.
func TestManagerIsDownWhenACarriedCallIsAnswered(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r, b := abortRig(t, guest, Options{})
		r.Manager.FailAll(api.PathCommit, Fault{Close: 14})
		x := r.Send(Request{Key: "k", Body: "b"})
		b.await(t, 0).answer(upstream(200, "answer"))
		want(t, "first", x.Response().Body, "answer")
		want(t, "retry", r.Send(Request{Key: "k", Body: "b"}).Response().Body, "answer")
		r.Manager.FailAll(api.PathCommit, Fault{})
		for state, _ := r.Manager.State("k"); state != api.StateCommitted; state, _ = r.Manager.State("k") {
			r.Clock.Advance(time.Second)
		}
		want(t, "executions", b.count(), 1)
	})
}

// Without a manager only the cache knows the answer. That is enough for a retry at the same proxy.
func TestWorkGoesOnWithoutAManager(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r, b := abortRig(t, guest, Options{Config: `{"mode":"body","client_abort":"continue","ledger":"none"}`})
		x := r.Send(Request{Key: "k", Body: "b"})
		c := b.await(t, 0)
		x.Leave()
		c.answer(upstream(200, "answer"))
		y := r.Send(Request{Key: "k", Body: "b"})
		want(t, "retry", y.Response().Body, "answer")
		z := r.Send(Request{Key: "l", Body: "b"})
		b.await(t, 1).answer(upstream(200, "other"))
		want(t, "ledger", z.Response().Header("idempotency-ledger"), "none")
	})
}

// A crowd that leaves costs one execution each, and nothing is left over.
func TestCrowdThatLeavesCostsOneExecution(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r, b := abortRig(t, guest, Options{Workers: 2, Config: `{"mode":"body","client_abort":"continue","max_upstream_calls":20}`})
		const crowd = 30 // keys, each of which comes three times
		var all []*Exchange
		for i := range 3 * crowd {
			all = append(all, r.Send(Request{Key: fmt.Sprint("k", i%crowd), Body: "b", Worker: i % 2}))
		}
		r.Settle()
		for _, x := range all {
			x.Leave()
		}
		want(t, "upstream calls", b.count(), crowd)
		for i := range crowd {
			b.await(t, i).answer(upstream(200, "answer"))
		}
		r.Settle()
		for i := range crowd {
			want(t, "retry", r.Send(Request{Key: fmt.Sprint("k", i), Body: "b"}).Response().Body, "answer")
		}
		want(t, "executions", b.count(), crowd)
	})
}

// An answer to the gate's own call reaches the client, and each retry, with its trailers, with and without a body.
func TestCarriedAnswerHasTrailers(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, body := range []string{"answer", ""} {
			r, b := abortRig(t, guest, Options{})
			x := r.Send(Request{Key: "k", Body: "b"})
			answer := upstream(200, body)
			answer.Trailers = hostsim.H("x-sum", "end", "x-sum", "again", "content-length", "7")
			b.await(t, 0).answer(answer)
			for _, p := range []Response{x.Response(), r.Send(Request{Key: "k", Body: "b"}).Response()} {
				want(t, "answer", p.Status+" "+p.Body+" "+p.Trailers, "200 "+body+" x-sum: end, x-sum: again")
				want(t, "mark", p.Header("idempotency-trailers"), "")
				want(t, "length", p.Header("content-length"), "")
			}
		}
	})
}

// Trailers for which an answer's record has no room are left out, and the answer says so.
func TestTrailersWithoutRoom(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		x := r.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		// An upstream cannot make a header a trailer.
		x.ResponseHeaders(hostsim.H(":status", "200", "idempotency-trailer-x-forged", "1"), false)
		x.ResponseData([]byte("answer"), false)
		x.ResponseTrailers(hostsim.H("x-short", "1", "x-long", strings.Repeat("x", 64<<10)))
		x.Response()
		r.Settle()
		p := r.Send(Request{Key: "k"}).Response()
		want(t, "replay", p.Body+" "+p.Trailers+" "+p.Header("idempotency-trailers"), "answer  omitted")
	})
}

// The outcome of a request whose client left within its upload is unknown, because upstream may have begun with a part of
// the body. A route can say that upstream does nothing with a part.
func TestClientThatLeavesWithinItsUpload(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, c := range []struct {
			config, length string
			sent           string
			end            bool
			status, state  string
		}{
			{`{}`, "content-length: 6", "abc", false, "409", "unknown"},
			{`{"incomplete_upload":"release"}`, "content-length: 6", "abc", false, "201", "released"},
			{`{"incomplete_upload":"release"}`, "content-length: 6", "", false, "201", "released"},
			{`{"incomplete_upload":"release"}`, "x: y", "abc", false, "201", "released"},
			{`{"incomplete_upload":"release"}`, "content-length: 6", "abcdef", false, "409", "unknown"},
			{`{"incomplete_upload":"release"}`, "x: y", "abcdef", true, "409", "unknown"},
			{`{"incomplete_upload":"release"}`, "expect: 100-continue", "abc", false, "409", "unknown"},
		} {
			r := NewRig(t, guest, Options{Config: c.config})
			q := Request{Key: "k", Headers: []string{"content-type: application/json", c.length}}
			x := r.Open(q, false)
			x.Upstream.AwaitHeaders(t)
			if c.sent != "" {
				x.RequestData([]byte(c.sent), c.end)
			}
			r.Settle()
			x.Leave()
			r.Settle()
			what := fmt.Sprint(c.config, ", ", c.length, ", sent ", c.sent)
			want(t, what+": status", r.Metric("oncegate_gate_outcomes_"+c.state+"_total"), 1)
			y := r.Open(q, false)
			y.RequestData([]byte("abcdef"), true)
			if c.status == "201" {
				y.Upstream.AwaitEnd(t)
				y.Answer(201, "")
			}
			want(t, what+": retry", y.Response().Status, c.status)
		}
	})
}
