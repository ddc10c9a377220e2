package gatetest

import (
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// bodyMode starts a rig whose host delivers bodies while headers are held.
func bodyMode(t *testing.T, guest hostsim.Source, config string) *Rig {
	t.Helper()
	return NewRig(t, guest, Options{Config: config, BodyMode: true})
}

func TestBodyModeDecidesAfterTheBody(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := bodyMode(t, guest, `{"mode":"body"}`)
		r.Manager.FailNext(api.PathReserve, Fault{HoldCall: true})
		x := r.Open(Request{Key: "k", Headers: []string{"content-type: text/plain", "content-length: 6"}}, false)
		x.RequestData([]byte("one"), false)
		r.Settle()
		want(t, "calls", len(r.Manager.Calls()), 0)
		x.RequestData([]byte("two"), false)
		x.RequestData(nil, true)
		r.Settle()
		want(t, "calls", len(r.Manager.Calls()), 1)
		want(t, "upstream called", x.Upstream.Begun(), false)
		r.Manager.Release()
		x.Upstream.AwaitEnd(t)
		want(t, "upstream's body", x.Upstream.Body(), "onetwo")
		x.Answer(200, "done")
		want(t, "answer", x.Response().Body, "done")
	})
}

func TestBodyModeTellsBodiesApart(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := bodyMode(t, guest, `{"mode":"body"}`)
		x := r.Send(Request{Key: "k", Body: "aaaa"})
		x.Answer(200, "done")
		x.Response()
		want(t, "same length", r.Send(Request{Key: "k", Body: "bbbb"}).Response().Status, "422")
		want(t, "same body", r.Send(Request{Key: "k", Body: "aaaa"}).Response().Body, "done")
		// The same body in other pieces, without a length, ended by trailers.
		y := r.Open(Request{Key: "k", Headers: []string{"content-type: application/json"}}, false)
		y.RequestData([]byte("a"), false)
		y.RequestData([]byte("aaa"), false)
		y.RequestTrailers(hostsim.H("x-t", "1"))
		want(t, "chunked", y.Response().Body, "done")
	})
}

func TestBodyModeWithTrailers(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := bodyMode(t, guest, `{"mode":"body"}`)
		x := r.Open(Request{Key: "k"}, false)
		x.RequestData([]byte("body"), false)
		x.RequestTrailers(hostsim.H("x-t", "1"))
		x.Upstream.AwaitEnd(t)
		want(t, "upstream's body", x.Upstream.Body(), "body")
		want(t, "upstream's trailer", x.Upstream.trailers.Get("x-t"), "1")
		x.Answer(200, "done")
		want(t, "answer", x.Response().Body, "done")
	})
}

// A trailer with a key's name is no key. It comes too late for most upstreams, and for mode headers.
func TestKeyInATrailerIsNone(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, config := range []string{`"mode":"headers"`, `"mode":"body"`, `"mode":"body","key":{"sources":["header:idempotency-key"]}`} {
			r := bodyMode(t, guest, `{`+config+`,"match":[{"path":"/required","key":{"required":true}},{}]}`)
			send := func(path string) *Exchange {
				x := r.Open(Request{Path: path}, false)
				x.RequestData([]byte("body"), false)
				x.RequestTrailers(hostsim.H("idempotency-key", "k"))
				return x
			}
			for range 2 {
				x := send("/payments")
				x.Upstream.AwaitEnd(t)
				want(t, config+": upstream's trailer", x.Upstream.trailers.Get("idempotency-key"), "k")
				x.Answer(200, "done")
				want(t, config, x.Response().Body, "done")
			}
			want(t, config+": required", send("/required").Response().Problem(t), "key-required")
			want(t, config+": calls", len(r.Manager.Calls()), 0)
		}
	})
}

func TestBodyModeWithoutABody(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := bodyMode(t, guest, `{"mode":"body"}`)
		x := r.Send(Request{Key: "k"})
		x.Answer(204, "")
		want(t, "answer", x.Response().Status, "204")
		want(t, "replay", r.Send(Request{Key: "k"}).Response().Header("idempotent-replayed"), "true")
		// Without end of stream on the headers.
		y := r.Open(Request{Key: "k2"}, false)
		y.RequestData(nil, true)
		y.Answer(204, "")
		want(t, "answer", y.Response().Status, "204")
	})
}

func TestBodyModePassesWhatHasNoKey(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := bodyMode(t, guest, `{"mode":"body"}`)
		x := r.Open(Request{}, false)
		x.Upstream.AwaitHeaders(t) // before any body
		x.RequestData([]byte("b"), true)
		x.Upstream.AwaitEnd(t)
		x.Answer(200, "")
		x.Response()
		want(t, "calls", len(r.Manager.Calls()), 0)
	})
}

// Large bodies are digested up to the limit, then streamed. The host slows down
// the sender instead of failing the request.
func TestBodyBeyondTheLimit(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{
			Config: `{"mode":"body","max_request_body_bytes":10000}`, BodyMode: true, BufferLimit: 16000,
		})
		const pieces, size = 20, 5000
		r.Manager.FailNext(api.PathReserve, Fault{HoldCall: true})
		send := func(key string, last byte) *Exchange {
			x := r.Open(Request{Key: key, Headers: []string{fmt.Sprint("content-length: ", pieces*size)}}, false)
			go func() {
				for i := range pieces {
					if x.AwaitRequest(t.Context()) != nil {
						return
					}
					b := []byte(strings.Repeat("x", size))
					if i == pieces-1 {
						b[size-1] = last
					}
					x.RequestData(b, false)
				}
				x.RequestData(nil, true)
			}()
			return x
		}
		x := send("k", 'a')
		for r.Manager.Count(api.PathReserve) == 0 {
			changed := r.Manager.Changed()
			if r.Manager.Count(api.PathReserve) > 0 {
				break
			}
			select {
			case <-changed:
			case <-time.After(patience):
				t.Fatal("the ledger is not asked before the whole body has come")
			}
		}
		r.Manager.Release()
		x.Upstream.AwaitEnd(t)
		want(t, "upstream's body", len(x.Upstream.Body()), pieces*size)
		x.Answer(200, "done")
		want(t, "answer", x.Response().Body, "done")
		// What is beyond the limit does not count; the declared length does.
		p := send("k", 'b').Response()
		want(t, "retry", p.Body+p.Header("idempotent-replayed"), "donetrue")
		y := r.Open(Request{Key: "k", Headers: []string{"content-length: 99999"}}, false)
		y.RequestData([]byte(strings.Repeat("x", 10001)), false)
		r.Clock.Advance(2 * time.Second) // the reply waits for a client that may send more
		want(t, "other length", y.Response().Status, "422")
	})
}

func TestBodyOfExactlyTheLimit(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := bodyMode(t, guest, `{"mode":"body","max_request_body_bytes":4}`)
		x := r.Send(Request{Key: "k", Body: "1234"})
		x.Answer(200, "done")
		want(t, "answer", x.Response().Body, "done")
		want(t, "other body", r.Send(Request{Key: "k", Body: "1235"}).Response().Status, "422")
	})
}

// A request without a body has nothing to wait for, and its answer must not be stuck.
func TestRequestsWithoutBodyWhereNoBodiesCome(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, bodyMode := range []bool{false, true} {
			r := NewRig(t, guest, Options{Config: `{"mode":"body"}`, BodyMode: bodyMode})
			x := r.Open(Request{Key: "k"}, true)
			x.Upstream.AwaitHeaders(t)
			x.UpstreamSelected("192.0.2.9:80")
			x.ResponseHeaders(hostsim.H(":status", "201", "content-length", "4"), false)
			x.ResponseData([]byte("done"), true)
			first := x.Response()
			want(t, "first", first.Status+first.Body+first.Header("idempotency-status"), "201doneexecuted")
			want(t, "the outcome is recorded before the answer's end", r.Manager.Count(api.PathCommit), 1)
			want(t, "retry", r.Open(Request{Key: "k"}, true).Response().Header("idempotent-replayed"), "true")
		}
	})
}

func TestKeyFromTheBody(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := bodyMode(t, guest, `{"mode":"body","key":{"json_path":"meta.id"}}`)
		x := r.Send(Request{Body: `{"meta":{"id":"abc"}}`})
		x.Answer(200, "done")
		want(t, "answer", x.Response().Body, "done")
		want(t, "key", r.Manager.Calls()[0].Key, "abc")
		want(t, "replay", r.Send(Request{Body: `{"meta":{"id":"abc"}}`}).Response().Body, "done")
		// The header goes first.
		y := r.Send(Request{Key: "other", Body: `{"meta":{"id":"abc"}}`})
		y.Answer(200, "other")
		want(t, "header", y.Response().Body, "other")
		// Without a key there, the request passes.
		for _, body := range []string{`{"meta":{}}`, `not json`, `{"meta":{"id":null}}`} {
			z := r.Send(Request{Body: body})
			z.Answer(200, "")
			want(t, body, z.Response().Header("idempotency-status"), "")
			want(t, "upstream's body", z.Upstream.Body(), body)
		}
		p := r.Send(Request{Body: `{"meta":{"id":{}}}`}).Response()
		want(t, "object", p.Status, "400")
		want(t, "twice", r.Send(Request{Body: `{"meta":{"id":"new","id":"abc"}}`}).Response().Problem(t), "invalid-key")
		want(t, "code", p.Problem(t), "invalid-key")
	})
}

func TestKeyDerivedFromTheBody(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := bodyMode(t, guest, `{"mode":"body","key":{"derive":"md5","required":true}}`)
		x := r.Send(Request{Body: "payload"})
		x.Answer(200, "done")
		want(t, "answer", x.Response().Body, "done")
		sum := md5.Sum([]byte("payload"))
		want(t, "key", r.Manager.Calls()[0].Key, hex.EncodeToString(sum[:]))
		want(t, "replay", r.Send(Request{Body: "payload"}).Response().Header("idempotent-replayed"), "true")
		p := r.Send(Request{}).Response()
		want(t, "no body", p.Status, "400")
		want(t, "code", p.Problem(t), "key-required")
	})
}

// In headers mode the gate does not look at the body, and no byte of it passes
// before the decision, whatever the host's setting.
func TestHeadersModeOnAHostThatDeliversBodies(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{BodyMode: true, BufferLimit: 1024})
		r.Manager.FailNext(api.PathReserve, Fault{HoldCall: true})
		x := r.Open(Request{Key: "k", Headers: []string{"content-length: 900"}}, false)
		x.RequestData([]byte(strings.Repeat("x", 900)), false)
		x.RequestData(nil, true)
		r.Settle()
		want(t, "upstream called", x.Upstream.Begun(), false)
		r.Manager.Release()
		x.Upstream.AwaitEnd(t)
		want(t, "upstream's body", len(x.Upstream.Body()), 900)
		x.Answer(200, "done")
		want(t, "answer", x.Response().Body, "done")
	})
}

func TestDuplicatesWithBodiesWait(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"mode":"body"}`, BodyMode: true, Workers: 2})
		x := r.Send(Request{Key: "k", Body: "body"})
		x.Upstream.AwaitHeaders(t)
		var waiting []*Exchange
		for i := range 10 {
			waiting = append(waiting, r.Send(Request{Key: "k", Body: "body", Worker: i % 2}))
		}
		r.Settle()
		x.Answer(200, "done")
		want(t, "answer", x.Response().Body, "done")
		for _, w := range waiting {
			want(t, "waiter", w.Response().Body, "done")
			want(t, "upstream called", w.Upstream.Begun(), false)
		}
	})
}

// The gate has read a waiter's body. If that request runs in the end, upstream gets the whole body.
func TestWaiterWithABodyRunsInTheEnd(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := bodyMode(t, guest, `{"mode":"body"}`)
		x := r.Send(Request{Key: "k", Body: "body"})
		x.Upstream.AwaitHeaders(t)
		y := r.Send(Request{Key: "k", Body: "body"})
		r.Settle()
		x.Answer(429, "busy")
		want(t, "answer", x.Response().Body, "busy")
		y.Upstream.AwaitEnd(t)
		want(t, "upstream's body", y.Upstream.Body(), "body")
		y.Answer(200, "done")
		want(t, "answer", y.Response().Body, "done")
	})
}

// The host holds bodies back with the headers. That is a wrong configuration, and the log says so.
func TestBodyModeOnAHostWithoutIt(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"mode":"body"}`})
		slow := r.Open(Request{Key: "slow"}, false)
		r.Clock.Advance(time.Minute)
		r.Settle()
		want(t, "warnings", len(r.Host.Warnings()), 0)
		x := r.Open(Request{Key: "k"}, false)
		x.RequestData([]byte("body"), true)
		r.Settle()
		r.Clock.Advance(10 * time.Second)
		for _, x := range []*Exchange{x, slow, r.Send(Request{Key: "k", Body: "body"})} {
			a := x.Response()
			want(t, "status", a.Status, "500")
			want(t, "names the problem", strings.Contains(a.Body, "body-mode-unavailable"), true)
			want(t, "upstream called", x.Upstream.Begun(), false)
		}
		hints := 0
		for _, w := range r.Host.Warnings() {
			if strings.Contains(w.Message, "allow_on_headers_stop_iteration") {
				hints++
			}
		}
		want(t, "hints", hints, 1)
	})
}

// A slow client is not mistaken for a wrong configuration.
func TestSlowClientIsNotTakenForAWrongSetting(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := bodyMode(t, guest, `{"mode":"body"}`)
		x := r.Open(Request{Key: "slow"}, false)
		r.Clock.Advance(time.Minute)
		x.RequestData([]byte("one"), false)
		r.Clock.Advance(time.Minute)
		x.RequestData([]byte("two"), true)
		x.Answer(200, "done")
		want(t, "answer", x.Response().Body, "done")
		want(t, "warnings", len(r.Host.Warnings()), 0)
	})
}
