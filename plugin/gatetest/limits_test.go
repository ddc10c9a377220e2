package gatetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// Bodies around the limits of the gate and of its host. While the host does not read, a feed
// waits as a real sender does.

// feed sends a body in pieces of a size.
func feed(t *testing.T, x *Exchange, body string, size int, answer bool) {
	go func() {
		for len(body) > 0 {
			piece := []byte(body[:min(size, len(body))])
			body = body[len(piece):]
			if answer {
				if x.AwaitResponse(t.Context()) != nil {
					return
				}
				x.ResponseData(piece, false)
			} else {
				if x.AwaitRequest(t.Context()) != nil {
					return
				}
				x.RequestData(piece, false)
			}
		}
		if answer {
			x.ResponseData(nil, true)
		} else {
			x.RequestData(nil, true)
		}
	}()
}

// passTime advances the clock tick by tick until happened returns true.
func passTime(t *testing.T, r *Rig, what string, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !happened(); {
		if time.Now().After(deadline) {
			t.Fatal("waited too long for ", what)
		}
		r.Clock.Advance(200 * time.Millisecond)
	}
}

var bothModes = map[string]Options{
	"headers mode": {Config: `{}`},
	"body mode":    {Config: `{"mode":"body"}`, BodyMode: true},
}

// A piece of any size may follow the body that is held.
func TestPieceBeyondTheHostsLimit(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for name, o := range bothModes {
			t.Run(name, func(t *testing.T) {
				r := NewRig(t, guest, o)
				x := r.Open(Request{Key: "k"}, false)
				x.RequestData([]byte(strings.Repeat("a", 400_000)), false)
				x.RequestData([]byte(strings.Repeat("b", 1_100_000)), true)
				x.Upstream.AwaitEnd(t)
				want(t, "upstream's body", len(x.Upstream.Body()), 1_500_000)
				x.ResponseHeaders(hostsim.H(":status", "200"), false)
				x.ResponseData([]byte(strings.Repeat("a", 400_000)), false)
				x.ResponseData([]byte(strings.Repeat("b", 1_100_000)), true)
				p := x.Response()
				want(t, "answer", p.Body, x.Upstream.Body())
				y := r.Open(Request{Key: "k"}, false)
				y.RequestData([]byte(strings.Repeat("a", 400_000)+strings.Repeat("b", 200_000)), false)
				r.Clock.Advance(2 * time.Second) // the reply waits for a client that may send more
				want(t, "retry", y.Response().Status, "410")
			})
		}
	})
}

// The host stops reading an answer before the gate has all of it. The gate releases the bytes that
// the host holds, and still records the answer. From then on it knows the host's limit.
func TestAnswerBeyondASmallLimit(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for name, o := range bothModes {
			for _, sized := range []bool{false, true} {
				t.Run(fmt.Sprint(name, " sized ", sized), func(t *testing.T) {
					o.BufferLimit = 32 << 10
					r := NewRig(t, guest, o)
					body := strings.Repeat("0123456789", 20_000)
					answer := func(key string) *Exchange {
						x := r.Send(Request{Key: key})
						x.Upstream.AwaitHeaders(t)
						h := hostsim.H(":status", "200")
						if sized {
							h.Add("content-length", fmt.Sprint(len(body)))
						}
						x.ResponseHeaders(h, false)
						feed(t, x, body, 20_000, true)
						return x
					}
					x := answer("k")
					passTime(t, r, "the first piece", func() bool { return x.Client.Body() != "" })
					want(t, "answer", x.Response().Body, body)
					p := r.Send(Request{Key: "k"}).Response()
					want(t, "replay", p.Header("idempotent-replayed")+p.Body, "true"+body)
					// This answer does not wait for the tick. Its end waits for the ledger.
					r.Manager.FailNext(api.PathCommit, Fault{HoldCall: true})
					y := answer("k2")
					y.Client.AwaitBody(t, 40_000)
					for r.Manager.Count(api.PathCommit) < 2 {
						r.Settle()
					}
					want(t, "ended before it was recorded", y.Client.Ended(), false)
					r.Manager.Release()
					want(t, "answer", y.Response().Body, body)
					hints := 0
					for _, w := range r.Host.Warnings() {
						hints += strings.Count(w.Message, "per_connection_buffer_limit_bytes")
					}
					want(t, "hints", hints, 1)
				})
			}
		}
	})
}

// With a slow upstream and a host that has room, the answer begins to pass. Its end waits, and it
// is recorded whole.
func TestAnswerThatStandsStill(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, bothModes["body mode"])
		x := r.Send(Request{Key: "k", Body: "b"})
		x.Upstream.AwaitHeaders(t)
		x.ResponseHeaders(hostsim.H(":status", "200"), false)
		x.ResponseData([]byte(strings.Repeat("a", 10_000)), false)
		r.Settle()
		want(t, "passed at once", x.Client.Begun(), false)
		r.Clock.Advance(5 * time.Second)
		want(t, "passed later", len(x.Client.Body()), 10_000)
		x.ResponseData([]byte("end"), false)
		x.ResponseTrailers(hostsim.H("x-t", "1"))
		want(t, "answer", len(x.Response().Body), 10_003)
		want(t, "replay", len(r.Send(Request{Key: "k", Body: "b"}).Response().Body), 10_003)
		want(t, "warnings", len(r.Host.Warnings()), 0)
		// A small answer is held, however long it takes.
		y := r.Send(Request{Key: "k2", Body: "b"})
		y.Upstream.AwaitHeaders(t)
		y.ResponseHeaders(hostsim.H(":status", "200"), false)
		y.ResponseData([]byte("small"), false)
		r.Clock.Advance(20 * time.Second)
		want(t, "passed", y.Client.Begun(), false)
		y.ResponseData(nil, true)
		want(t, "answer", y.Response().Body, "small")
	})
}

// The gate needs to see more of a request than its host holds.
func TestRequestBeyondASmallLimit(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		id := strings.Repeat("9", 30)
		body := `{"pad":"` + strings.Repeat("0123456789", 20_000) + `","id":"` + id + `"}`
		for name, config := range map[string]string{
			"key in a header": `{"mode":"body"}`,
			"key in the body": `{"mode":"body","key":{"header":"","json_path":"id"}}`,
		} {
			for _, sized := range []bool{true, false} {
				t.Run(fmt.Sprint(name, " sized ", sized), func(t *testing.T) {
					r := NewRig(t, guest, Options{Config: config, BodyMode: true, BufferLimit: 32 << 10})
					send := func(body string, size int) *Exchange {
						q := Request{Key: "k"}
						if sized {
							q.Headers = []string{fmt.Sprint("content-length: ", len(body))}
						}
						x := r.Open(q, false)
						feed(t, x, body, size, false)
						return x
					}
					x := send(body, 20_000)
					x.Upstream.AwaitEnd(t)
					want(t, "upstream's body", x.Upstream.Body(), body)
					x.Answer(200, "done")
					want(t, "answer", x.Response().Body, "done")
					for _, size := range []int{1000, 7000, 30_000} {
						p := send(body, size).Response()
						want(t, "retry", p.Header("idempotent-replayed")+p.Body, "truedone")
					}
					want(t, "other body", send(strings.Replace(body, "0", "1", 1), 20_000).Response().Status, "422")
				})
			}
		}
	})
}

// The gate puts the pieces that it took over back before the trailers.
func TestTakenBodyWithTrailers(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		body := strings.Repeat("0123456789", 10_000)
		for name, c := range map[string]struct {
			header, status string
		}{
			"sized":       {"content-length: 100000", "200"},
			"announced":   {"trailer: x-t", "200"},
			"unannounced": {"x-other: x-t", "400"},
		} {
			t.Run(name, func(t *testing.T) {
				r := NewRig(t, guest, Options{Config: `{"mode":"body"}`, BodyMode: true})
				x := r.Open(Request{Key: "k", Headers: []string{c.header}}, false)
				for i := range 10 {
					x.RequestData([]byte(body[i*10_000:][:10_000]), false)
				}
				x.RequestTrailers(hostsim.H("x-t", "1"))
				if c.status == "200" {
					x.Upstream.AwaitEnd(t)
					want(t, "upstream's body", x.Upstream.Body(), body)
					x.Answer(200, "")
				}
				want(t, "answer", x.Response().Status, c.status)
			})
		}
	})
}

// When a client leaves, the gate frees the pieces of its body.
func TestClientLeavesWhileItsBodyIsTaken(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"mode":"body"}`, BodyMode: true})
		for range 40 { // each claims half a megabyte
			x := r.Open(Request{Key: "k", Headers: []string{"content-length: 500000"}}, false)
			x.RequestData([]byte(strings.Repeat("a", 100_000)), false)
			r.Settle()
			x.Leave()
		}
		want(t, "calls", len(r.Manager.Calls()), 0)
	})
}

// If more bodies are under way than a VM has room for, the host holds the rest and nothing fails.
func TestManyLargeBodiesAtOnce(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"mode":"body"}`, BodyMode: true})
		const n = 60
		body := strings.Repeat("0123456789", 50_000)
		var all []*Exchange
		for i := range n {
			x := r.Open(Request{Key: fmt.Sprint("k", i), Headers: []string{"content-length: 500000"}}, false)
			x.RequestData([]byte(body[:200_000]), false)
			all = append(all, x)
		}
		r.Settle()
		for _, x := range all {
			x.RequestData([]byte(body[200_000:]), false)
			x.RequestData(nil, true)
			x.Upstream.AwaitEnd(t)
			want(t, "upstream's body", x.Upstream.Body() == body, true)
			x.ResponseHeaders(hostsim.H(":status", "200", "content-length", "500000"), false)
			x.ResponseData([]byte(body[:200_000]), false)
		}
		r.Settle()
		for _, x := range all {
			x.ResponseData([]byte(body[200_000:]), false)
			x.ResponseData(nil, true)
			want(t, "answer", x.Response().Body == body, true)
		}
		want(t, "recorded without a body", r.Metric("oncegate_gate_outcomes_oversize_total"), 0)
		for i := range n {
			x := r.Open(Request{Key: fmt.Sprint("k", i), Headers: []string{"content-length: 500000"}}, false)
			x.RequestData([]byte(body), true)
			want(t, "replay", x.Response().Body == body, true)
		}
	})
}

// The host holds less than the gate needs, and the gate may not take pieces over. The log says which
// setting to change, and the host answers in the end.
func TestBodyThatCannotBeSeenWhole(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"mode":"body"}`, BodyMode: true, BufferLimit: 32 << 10})
		x := r.Open(Request{Key: "k", Headers: []string{"trailer: x-t"}}, false)
		feed(t, x, strings.Repeat("a", 200_000), 20_000, false)
		passTime(t, r, "the host's answer", x.Client.Ended)
		p := x.Response()
		want(t, "status", p.Status, "408")
		want(t, "idempotency-status", p.Header("idempotency-status"), "")
		want(t, "calls", len(r.Manager.Calls()), 0)
		hints := 0
		for _, w := range r.Host.Warnings() {
			hints += strings.Count(w.Message, "per_connection_buffer_limit_bytes")
		}
		want(t, "hints", hints, 1)
	})
}

// Two answers are larger than the host's buffer, and together larger than the VM's room. The one that is
// not copied passes, too.
func TestLargeAnswersBesideEachOther(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"max_response_body_bytes":16777216}`})
		body := strings.Repeat("0123456789", 1_000_000)
		var all []*Exchange
		for i := range 2 {
			x := r.Send(Request{Key: fmt.Sprint("k", i)})
			x.Upstream.AwaitHeaders(t)
			x.ResponseHeaders(hostsim.H(":status", "200", "content-length", fmt.Sprint(len(body))), false)
			x.ResponseData([]byte(body[:200_000]), false)
			all = append(all, x)
		}
		r.Settle()
		for _, x := range all {
			feed(t, x, body[200_000:], 200_000, true)
		}
		for i, x := range all {
			passTime(t, r, "the answer", func() bool { return x.Client.Ended() || x.Client.ResetBy() != "" })
			want(t, fmt.Sprint("answer ", i), x.Response().Body == body, true)
		}
		want(t, "recorded without a body", r.Metric("oncegate_gate_outcomes_oversize_total"), 1)
	})
}
