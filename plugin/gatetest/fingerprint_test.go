package gatetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
)

// What a retry must repeat (fingerprint).

// payOnce lets the first request with a key run.
func payOnce(r *Rig, q Request) {
	x := r.Send(q)
	x.Answer(201, "first")
	want(r, "first", x.Response().Body, "first")
	r.Settle()
}

func TestFingerprintOfCanonicalJSON(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{BodyMode: true, Config: `{"mode":"body","fingerprint":{"body":"canonical_json","exclude":["ts"]},
			"match":[{"path":"/strict","fingerprint":{"exclude":[]}},{}]}`})
		payOnce(r, Request{Key: "k", Body: `{"amount":1.50,"ts":1,"to":"\u00e9"}`})
		for body, replayed := range map[string]bool{
			`{"to":"é", "amount":15e-1,"ts":22222}`:          true,
			`{"to":"é","amount":1.5}`:                        true,
			`{"to":"é","amount":1.51}`:                       false,
			`{"to":"é","amount":1.5,"ts":1,"ts":1}`:          false,
			`{"to":"é","amount":1.5,"amount":1.5}`:           false,
			`{"to":"é","amount":1.5} {}`:                     false,
			`{"to":"é","amount":1.5,"d":` + nested(70) + `}`: false,
		} {
			p := r.Send(Request{Key: "k", Body: body}).Response()
			want(t, body, p.Header("idempotent-replayed") == "true", replayed)
			if !replayed {
				want(t, body, p.Problem(t), "fingerprint-mismatch")
			}
		}
		payOnce(r, Request{Key: "s", Path: "/strict", Body: `{"ts":1}`})
		want(t, "strict", r.Send(Request{Key: "s", Path: "/strict", Body: `{"ts":2}`}).Response().Problem(t), "fingerprint-mismatch")
		want(t, "strict, in other words", r.Send(Request{Key: "s", Path: "/strict", Body: ` {"ts" :1.0}`}).Response().Body, "first")
		// The deepest body that counts as JSON, with objects whose members must be sorted at each level.
		deep := func(sep string) string {
			return strings.Repeat(`{"c":1,"b":2,"a":`, 63) + `{"z":1,` + sep + `"y":2}` + strings.Repeat("}", 63)
		}
		payOnce(r, Request{Key: "d", Body: deep("")})
		want(t, "deep", r.Send(Request{Key: "d", Body: deep(" ")}).Response().Body, "first")
		var members []string
		for i := range 5000 {
			members = append(members, fmt.Sprintf(`"k%d":%d`, (i*7919)%5000, (i*7919)%5000))
		}
		payOnce(r, Request{Key: "w", Body: `{` + strings.Join(members, ",") + `}`})
		members[0], members[4999] = members[4999], members[0]
		want(t, "wide", r.Send(Request{Key: "w", Body: `{` + strings.Join(members, ", ") + `}`}).Response().Body, "first")
		payOnce(r, Request{Key: "empty"})
		want(t, "empty", r.Send(Request{Key: "empty"}).Response().Body, "first")
	})
}

func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

// A body that comes in pieces, with and without a length, is the same as one that comes whole.
func TestFingerprintOfCanonicalJSONInPieces(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, abort := range []string{"cancel", "continue"} {
			r, b := abortRig(t, guest, Options{Config: `{"mode":"body","client_abort":"` + abort + `","max_request_body_bytes":100000,"fingerprint":{"exclude":["ts"]}}`})
			pad := strings.Repeat("x", 40000)
			send := func(key, body string, length bool) *Exchange {
				q := Request{Key: key, Headers: []string{"content-type: application/json"}}
				if length {
					q.Headers = append(q.Headers, fmt.Sprint("content-length: ", len(body)))
				}
				x := r.Open(q, false)
				for len(body) > 9000 {
					x.RequestData([]byte(body[:9000]), false)
					body = body[9000:]
				}
				x.RequestData([]byte(body), length)
				if !length {
					x.RequestData(nil, true)
				}
				return x
			}
			first := `{"ts":1,"pad":"` + pad + `"}`
			x := send("k", first, true)
			if abort == "continue" {
				c := b.await(t, 0)
				want(t, "upstream's body", string(c.Body), first)
				c.answer(upstream(200, "first"))
			} else {
				x.Upstream.AwaitEnd(t)
				want(t, "upstream's body", x.Upstream.Body(), first)
				x.Answer(200, "first")
			}
			want(t, "first", x.Response().Body, "first")
			r.Settle()
			want(t, "whole", r.Send(Request{Key: "k", Body: `{"pad":"` + pad + `","ts":2}`}).Response().Body, "first")
			want(t, "chunked", send("k", `{"ts":345,"pad":"`+pad+`"}`, false).Response().Body, "first")
			want(t, "another", send("k", `{"ts":345,"pad":"`+pad+`y"}`, false).Response().Problem(t), "fingerprint-mismatch")
			// Beyond the limit, only the beginning and the declared length count.
			large := func(ts int) *Exchange {
				return r.Send(Request{Key: "large", Body: fmt.Sprintf(`{"ts":%d,"pad":"%s"}`, ts, pad+pad+pad)})
			}
			x = large(1)
			x.Answer(200, "first")
			want(t, "large", x.Response().Body, "first")
			r.Settle()
			want(t, "large retry", large(1).Response().Body, "first")
			want(t, "another large one", large(2).Response().Problem(t), "fingerprint-mismatch")
		}
	})
}

func TestFingerprintInHeadersMode(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"fingerprint":{"body":"none","query":["currency"],"headers":["x-tenant"]}}`})
		payOnce(r, Request{Key: "k", Path: "/payments?currency=eur&trace=1", Body: "{}", Headers: []string{"x-tenant: a", "content-digest: x"}})
		for _, c := range []struct {
			path, body, tenant string
			same               bool
		}{
			{"/payments?trace=2&currency=eur", "{ }", "a", true},
			{"/payments?currency=usd", "{}", "a", false},
			{"/payments?currency=eur", "{}", "b", false},
		} {
			p := r.Send(Request{Key: "k", Path: c.path, Body: c.body, Headers: []string{"x-tenant: " + c.tenant}}).Response()
			want(t, fmt.Sprint(c), p.Header("idempotent-replayed") == "true", c.same)
		}
	})
}

// Gates that key fingerprints and gates that do not understand each other's entries: in the ledger, in the cache of one
// proxy, and while the first request runs. An entry of an earlier release is like one of a gate that does not.
func TestKeyedFingerprints(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, mode := range []string{"headers", "body"} {
			rig := func(keyed bool, o Options) *Rig {
				o.BodyMode = mode == "body"
				o.Config = fmt.Sprintf(`{"mode":%q,"scope_secret":"0123456789abcdef","keyed_fingerprints":%v}`, mode, keyed)
				return NewRig(t, guest, o)
			}
			plain := rig(false, Options{})
			share := Options{Manager: plain.Manager, Clock: plain.Clock}
			keyed := rig(true, share)
			printOf := func(key string) string {
				for _, e := range plain.Manager.entries() {
					if e.Key == key {
						return e.Fingerprint
					}
				}
				t.Fatalf("no entry of %s", key)
				return ""
			}
			payOnce(plain, Request{Key: "p", Body: "a body"})
			payOnce(keyed, Request{Key: "k", Body: "a body"})
			if len(printOf("p")) != 43 || len(printOf("k")) != 43 || printOf("p") == printOf("k") {
				t.Errorf("fingerprints %q and %q", printOf("p"), printOf("k"))
			}
			for _, key := range []string{"p", "k"} {
				before := printOf(key)
				// The third rig is an update of the proxy's configuration: it finds the second one's cache.
				updated := rig(key == "p", Options{Manager: plain.Manager, Clock: plain.Clock, Process: map[string]*Rig{"p": plain, "k": keyed}[key].Process})
				for name, r := range map[string]*Rig{"plain": plain, "keyed": keyed, "updated": updated} {
					for range 2 { // the second time from the cache
						want(t, name+" "+key, r.Send(Request{Key: key, Body: "a body"}).Response().Body, "first")
						want(t, name+" "+key, r.Send(Request{Key: key, Body: "another body"}).Response().Problem(t), "fingerprint-mismatch")
					}
				}
				want(t, "fingerprint of "+key, printOf(key), before)
			}
			// A retry comes to the other gate while the first request runs. Then the key is free, and the
			// waiting retry runs and is recorded; a further one at the first gate gets its answer.
			for name, pair := range map[string][2]*Rig{"w1": {plain, keyed}, "w2": {keyed, plain}} {
				first := pair[0].Send(Request{Key: name, Body: "a body"})
				first.Upstream.AwaitHeaders(t)
				retry := pair[1].Send(Request{Key: name, Body: "a body"})
				wrong := pair[1].Send(Request{Key: name + "x", Body: "a body"})
				wrong.Upstream.AwaitHeaders(t)
				first.Answer(429, "later")
				want(t, name, first.Response().Body, "later")
				pair[0].Settle()
				pair[1].Settle()
				retry.Answer(201, "second")
				want(t, name, retry.Response().Body, "second")
				pair[1].Settle()
				want(t, name, pair[0].Send(Request{Key: name, Body: "a body"}).Response().Body, "second")
				want(t, name, pair[0].Send(Request{Key: name, Body: "another body"}).Response().Problem(t), "fingerprint-mismatch")
				wrong.Answer(201, "")
				wrong.Response()
			}
		}
	})
}
