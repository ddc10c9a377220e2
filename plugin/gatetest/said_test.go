package gatetest

import (
	"fmt"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// Answers in which upstream says what they mean (outcome_header).

const saying = `"outcome_header":"Oncegate-Outcome"`

func TestUpstreamSaysTheOutcome(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{` + saying + `,"wait_for_pending":false}`})
		for i, c := range []struct {
			status int
			said   []string
			state  api.State
		}{
			{500, []string{"reject"}, api.StateRejected},
			{429, []string{"commit"}, api.StateCommitted},
			{200, []string{"release"}, api.StateNone},
			{202, []string{"hold"}, api.StateUnknown},
			{400, []string{"hold"}, api.StateUnknown},
			// Unknown values, several values, and none: the status decides.
			{200, nil, api.StateCommitted},
			{200, []string{""}, api.StateCommitted},
			{200, []string{"Release"}, api.StateCommitted},
			{429, []string{"commit, commit"}, api.StateNone},
			{429, []string{"commit", "commit"}, api.StateNone},
		} {
			key := fmt.Sprint("k", i)
			var headers []string
			for _, v := range c.said {
				headers = append(headers, "oncegate-outcome: "+v)
			}
			x := r.Send(Request{Key: key})
			x.Answer(c.status, "first", append(headers, "etag: e")...)
			p := x.Response()
			want(t, key+": status", p.Status, fmt.Sprint(c.status))
			want(t, key+": body", p.Body, "first")
			want(t, key+": etag", p.Header("etag"), "e")
			want(t, key+": idempotency-status", p.Header("idempotency-status"), statusAfter(c.state))
			want(t, key+": header", len(p.Headers.Values("oncegate-outcome")), 0)
			r.Settle()
			state, result := r.Manager.State(key)
			want(t, key+": state", state, c.state)
			for _, h := range result.Headers {
				if h.Name == "oncegate-outcome" {
					t.Errorf("%s: recorded", key)
				}
			}
			y := r.Send(Request{Key: key})
			switch c.state {
			case api.StateNone:
				y.Answer(200, "again")
				want(t, key+": again", y.Response().Body, "again")
			case api.StateUnknown:
				want(t, key+": retry", y.Response().Problem(t), "outcome-unknown")
			default:
				q := y.Response()
				want(t, key+": replay", q.Status+q.Body, p.Status+"first")
				want(t, key+": header in the replay", len(q.Headers.Values("oncegate-outcome")), 0)
			}
		}
		// A request without a key passes, and its client does not get the header either.
		x := r.Send(Request{})
		x.Answer(200, "", "oncegate-outcome: hold")
		want(t, "header without a key", len(x.Response().Headers.Values("oncegate-outcome")), 0)
	})
}

// Without outcome_header upstream decides nothing, and its header passes.
func TestOutcomeHeaderMeansNothingByDefault(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		x := r.Send(Request{Key: "k"})
		x.Answer(200, "first", "oncegate-outcome: release")
		want(t, "header", x.Response().Header("oncegate-outcome"), "release")
		p := r.Send(Request{Key: "k"}).Response()
		want(t, "replayed", p.Header("idempotent-replayed"), "true")
		want(t, "header in the replay", p.Header("oncegate-outcome"), "release")
	})
}

// A held outcome is settled by the token that reserved the key.
func TestHeldOutcomeIsSettledLater(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{` + saying + `}`, Workers: 2})
		x := r.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		waiting := r.Send(Request{Key: "k", Worker: 1})
		r.Settle()
		x.Answer(202, "accepted", "oncegate-outcome: hold")
		want(t, "first", x.Response().Body, "accepted")
		want(t, "the one that waited", waiting.Response().Problem(t), "outcome-unknown")
		r.Settle()
		var c Call
		for _, c = range r.Manager.Calls() {
			if c.Path == api.PathReserve {
				break
			}
		}
		f := api.FinishRequest{Key: "k", Scope: c.Scope, Token: c.Token, Fingerprint: c.Fingerprint, Result: api.Result{Status: 201, Body: []byte("settled")}}
		raw := []api.Header{{Name: "content-type", Value: api.ContentTypeRaw}, {Name: "accept", Value: api.ContentTypeRaw}}
		if a := r.Manager.manager.Do(t.Context(), api.PathCommit, raw, f.AppendRaw(nil)); a.Status != 200 {
			t.Fatalf("commit: %d %q", a.Status, a.Body)
		}
		p := r.Send(Request{Key: "k"}).Response()
		want(t, "retry", p.Status+p.Body, "201settled")
	})
}

func TestUpstreamSaysTheOutcomeOfAContinuedCall(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r, b := abortRig(t, guest, Options{Config: `{"mode":"body","client_abort":"continue","wait_for_pending":false,` + saying + `}`})
		for i, said := range []string{"hold", "release", "reject"} {
			x := r.Send(Request{Key: said, Body: "pay"})
			b.await(t, i).answer(upstream(200, "first", "oncegate-outcome: "+said))
			p := x.Response()
			want(t, said+": first", p.Status+p.Body, "200first")
			want(t, said+": status", p.Header("idempotency-status"), map[string]string{"hold": "executed", "release": "released", "reject": "executed"}[said])
			want(t, said+": header", len(p.Headers.Values("oncegate-outcome")), 0)
			r.Settle()
			state, _ := r.Manager.State(said)
			want(t, said, state, map[string]api.State{"hold": api.StateUnknown, "release": api.StateNone, "reject": api.StateRejected}[said])
		}
		p := r.Send(Request{Key: "reject", Body: "pay"}).Response()
		want(t, "replay", p.Body, "first")
		want(t, "header in the replay", len(p.Headers.Values("oncegate-outcome")), 0)
		want(t, "held", r.Send(Request{Key: "hold", Body: "pay"}).Response().Problem(t), "outcome-unknown")
	})
}

// With ledger: none, the cache keeps the key of a held outcome taken.
func TestHeldOutcomeWithoutALedger(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"ledger":"none",` + saying + `}`})
		x := r.Send(Request{Key: "k"})
		x.Answer(202, "accepted", "oncegate-outcome: hold")
		want(t, "first", x.Response().Body, "accepted")
		r.Settle()
		want(t, "retry", r.Send(Request{Key: "k"}).Response().Problem(t), "outcome-unknown")
	})
}
