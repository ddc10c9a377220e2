package gatetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
)

func TestSubmissionModeMakesNoCallouts(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"ledger":"upstream"}`, NoCluster: true, Workers: 2})
		x := r.Send(Request{Key: "k", Body: "job", Worker: 0})
		x.Upstream.AwaitHeaders(t)
		y := r.Send(Request{Key: "k", Body: "job", Worker: 1})
		r.Settle()
		want(t, "coalesced", y.Upstream.Begun(), false)
		x.Answer(202, "queued")
		want(t, "answer", x.Response().Body, "queued")
		want(t, "duplicate", y.Response().Header("idempotent-replayed"), "true")
		want(t, "cached", r.Send(Request{Key: "k", Body: "job"}).Response().Body, "queued")

		// The cache does not repeat answers that upstream's ledger may not have recorded.
		for _, status := range []int{400, 409, 422, 429, 500, 503} {
			key := fmt.Sprint(status)
			for range 2 {
				x := r.Send(Request{Key: key})
				x.Answer(status, "no")
				want(t, key, x.Response().Status, key)
			}
		}
		// The cache does not compare requests more strictly than upstream's ledger.
		z := r.Send(Request{Key: "k", Body: "another job"})
		z.Answer(202, "queued", "idempotent-replayed: true")
		p := z.Response()
		want(t, "other payload", p.Status, "202")
		want(t, "idempotency-status", p.Header("idempotency-status"), "replayed")

		// The outcome is unknown to the gate, but not to upstream's ledger.
		a := r.Send(Request{Key: "lost"})
		a.Upstream.AwaitHeaders(t)
		a.UpstreamFailed(hostsim.UpstreamDisconnected, "")
		a.Response()
		b := r.Send(Request{Key: "lost"})
		b.Answer(202, "queued", "idempotent-replayed: true")
		want(t, "retry", b.Response().Status, "202")
		want(t, "calls", len(r.Manager.Calls()), 0)
	})
}

func TestCacheOnlyMode(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"ledger":"none","max_response_body_bytes":100}`, NoCluster: true, Workers: 2})
		x := r.Send(Request{Key: "k", Worker: 0})
		x.Upstream.AwaitHeaders(t)
		y := r.Send(Request{Key: "k", Worker: 1})
		z := r.Send(Request{Key: "k", Worker: 0})
		r.Settle()
		x.Answer(200, "once")
		p := x.Response()
		want(t, "answer", p.Body, "once")
		want(t, "idempotency-ledger", p.Header("idempotency-ledger"), "none")
		for _, w := range []*Exchange{y, z} {
			q := w.Response()
			want(t, "waiter", q.Body, "once")
			want(t, "upstream called", w.Upstream.Begun(), false)
			want(t, "idempotency-ledger", q.Header("idempotency-ledger"), "none")
		}
		// The cache releases keys, and keeps them for unknown outcomes, as a ledger would.
		a := r.Send(Request{Key: "free"})
		a.Answer(429, "later")
		a.Response()
		b := r.Send(Request{Key: "free"})
		b.Answer(200, "now")
		want(t, "released", b.Response().Body, "now")
		c := r.Send(Request{Key: "held"})
		c.Upstream.AwaitHeaders(t)
		c.UpstreamFailed(hostsim.UpstreamTimedOut, "")
		c.Response()
		d := r.Send(Request{Key: "held"})
		r.Settle()
		want(t, "held", d.Upstream.Begun(), false)
		d.Leave()
		// The answer is too large to keep. The retry learns that and does not run.
		e := r.Send(Request{Key: "large"})
		e.Answer(200, strings.Repeat("x", 101))
		e.Response()
		want(t, "large", r.Send(Request{Key: "large"}).Response().Status, "410")
		want(t, "calls", len(r.Manager.Calls()), 0)
	})
}

// Without a ledger the cache evicts nothing. If there is no room for a new key's answer, the
// gate refuses the key until an entry expires. It may lose an answer that it could not keep. It
// still knows that the request ran, and does not run it again.
func TestCacheOnlyModeRefusesWhenFull(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		// Room for three answers of the smaller kind, and for none of the larger.
		r := NewRig(t, guest, Options{Config: `{"ledger":"none","max_entries":8,"max_bytes":65536}`, NoCluster: true})
		sizes := map[string]int{"a": 20000, "b": 20000, "c": 20000, "large": 70000}
		for _, key := range []string{"a", "b", "large", "c"} {
			x := r.Send(Request{Key: key})
			x.Answer(200, strings.Repeat("x", sizes[key]))
			want(t, key, len(x.Response().Body), sizes[key])
		}
		x := r.Send(Request{Key: "d"})
		r.Settle()
		want(t, "d runs", x.Upstream.Begun(), false)
		want(t, "d", x.Response().Status, "503")
		if x.Response().Header("retry-after") == "" {
			t.Error("d does not learn when to try again")
		}
		for key, status := range map[string]string{"a": "200", "b": "200", "large": "410", "c": "200"} {
			x := r.Send(Request{Key: key})
			r.Settle()
			want(t, key+" runs again", x.Upstream.Begun(), false)
			want(t, "retry of "+key, x.Response().Status, status)
		}
		r.Clock.Advance(time.Second)
		want(t, "refused", r.Metric("oncegate_gate_cache_full_total"), 1)
		want(t, "not kept", r.Metric("oncegate_gate_cache_answers_dropped_total"), 1)
		want(t, "evicted", r.Metric("oncegate_gate_cache_evictions_total"), 0)
		r.Clock.Advance(10 * time.Minute)
		x = r.Send(Request{Key: "d"})
		x.Answer(200, "at last")
		want(t, "d", x.Response().Body, "at last")
	})
}
