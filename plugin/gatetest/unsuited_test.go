package gatetest

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
)

// Answers that the gate's own upstream calls cannot hand over: streams, and answers that are too large.

const eventStream = "content-type: text/event-stream"

// firstEvent begins to answer a request that the router carries, and wants the event at the client while upstream still waits.
func firstEvent(t *testing.T, x *Exchange) {
	t.Helper()
	x.rig.Settle()
	want(t, "the router carries it", x.Upstream.Begun(), true)
	x.UpstreamSelected("192.0.2.9:80")
	x.ResponseHeaders(hostsim.H(":status", "200", "content-type", "text/event-stream"), false)
	x.ResponseData([]byte("data: 1\n\n"), false)
	x.Client.AwaitBody(t, 9)
	x.ResponseData([]byte("data: 2\n\n"), true)
	want(t, "stream", x.Response().Body, "data: 1\n\ndata: 2\n\n")
}

// After an answer that does not suit a call, the router carries the requests for its path.
func TestGateLearnsWhichAnswersDoNotSuitItsCalls(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, tt := range []struct {
			name   string
			answer hostsim.CallResponse
			status string
			why    string
			leaves bool // the first client does not wait for the answer
		}{
			{name: "a stream", answer: upstream(200, "data: 1\n\n", eventStream+"; charset=utf-8"), status: "200", why: "streams (text/event-stream)"},
			{name: "a stream that frees the key", answer: upstream(429, "data: 1\n\n", eventStream), status: "429", why: "streams"},
			{name: "too large", answer: upstream(200, strings.Repeat("x", 16<<20+1)), status: "410", why: "has 16777217 bytes"},
			{name: "broke off", answer: hostsim.CallResponse{Failure: hostsim.CallResetMidAnswer}, status: "502", why: "broke off"},
			{name: "a stream without a client", answer: upstream(200, "data: 1\n\n", eventStream), why: "streams", leaves: true},
		} {
			t.Run(tt.name, func(t *testing.T) {
				r, b := abortRig(t, guest, Options{})
				first := r.Send(Request{Key: "1", Path: "/run?a=1", Body: "b"})
				c := b.await(t, 0)
				if tt.leaves {
					first.Leave()
				}
				c.answer(tt.answer)
				if !tt.leaves {
					want(t, "first", first.Response().Status, tt.status)
				}
				r.Settle()
				wantLog(t, r, "an answer for POST api.test/run "+tt.why, 1)

				firstEvent(t, r.Send(Request{Key: "2", Path: "/run?a=2", Body: "b"}))
				x := r.Send(Request{Key: "3", Path: "/run", Body: "b"})
				x.Answer(400, "a refusal says nothing about other answers")
				want(t, "refusal", x.Response().Status, "400")
				x = r.Send(Request{Key: "4", Path: "/run", Body: "b"})
				x.Answer(200, "plain")
				want(t, "plain", x.Response().Body, "plain")
				want(t, "upstream calls", b.count(), 1)
				want(t, "routed", r.Metric("oncegate_gate_upstream_routed_total"), 3)

				// The plain answer suits a call, so the gate makes them again.
				y := r.Send(Request{Key: "5", Path: "/run", Body: "b"})
				b.await(t, 1).answer(upstream(200, "called"))
				want(t, "called", y.Response().Body, "called")
			})
		}
	})
}

// What the gate has learned is about one method, host and path.
func TestOtherPathsAreStillCalled(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r, b := abortRig(t, guest, Options{})
		for i, q := range []Request{{Path: "/run"}, {Path: "/run/"}, {Path: "/run", Host: "b.test"}, {Path: "/run", Method: "PATCH"}} {
			q.Key, q.Body = "key-"+string(rune('0'+i)), "b"
			x := r.Send(q)
			b.await(t, i).answer(upstream(200, "data: 1\n\n", eventStream))
			x.Response()
		}
		want(t, "routed", r.Metric("oncegate_gate_upstream_routed_total"), 0)
	})
}

// A JSON body may ask for a stream, as those of OpenAI's API do.
func TestBodyAsksForAStream(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		const ask = `{"model":"m","messages":[{"stream":false}],"stream": true}`
		for name, tt := range map[string]struct {
			config, body string
			headers      []string
			routed       bool
		}{
			"asks":              {body: ask, routed: true},
			"does not":          {body: `{"model":"m","stream":false}`},
			"asks inside":       {body: `{"options":{"stream":true}}`},
			"a text":            {body: `{"stream":"true"}`},
			"no object":         {body: `[true]`},
			"no JSON":           {body: `stream=true`},
			"another type":      {body: ask, headers: []string{"content-type: text/plain"}},
			"a kind of JSON":    {body: ask, headers: []string{"content-type: application/vnd.api+json; charset=utf-8"}, routed: true},
			"no streamed types": {config: `{"mode":"body","client_abort":"continue","streamed_types":[]}`, body: ask},
		} {
			t.Run(name, func(t *testing.T) {
				r, b := abortRig(t, guest, Options{Config: tt.config})
				x, h := r.prepare(Request{Key: "k"})
				for _, line := range append([]string{"content-type: application/json"}, tt.headers...) {
					name, value, _ := strings.Cut(line, ": ")
					h.Set(name, value)
				}
				x.RequestHeaders(h, false)
				x.RequestData([]byte(tt.body[:5]), false)
				x.RequestData([]byte(tt.body[5:]), true)
				if tt.routed {
					firstEvent(t, x)
					want(t, "upstream's body", x.Upstream.Body(), tt.body)
				} else {
					b.await(t, 0).answer(upstream(200, "called"))
					want(t, "called", x.Response().Body, "called")
				}
			})
		}
	})
}

// The router carries a request whose upstream call the proxy refuses. The log says why.
func TestRouterCarriesWhatCannotBeCalled(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, tt := range []struct {
			noRoute bool
			why     string
		}{
			{false, `the proxy knows no cluster \"route-cluster\"`},
			{true, "the proxy does not say to which cluster the route leads"},
		} {
			r := NewRig(t, guest, Options{Config: continuing, BodyMode: true})
			x := r.Send(Request{Key: "k", Body: "b", NoRoute: tt.noRoute})
			x.Answer(200, "routed")
			want(t, "body", x.Response().Body, "routed")
			wantLog(t, r, "no upstream call, so the router carries the request: "+tt.why, 1)
		}
	})
}
