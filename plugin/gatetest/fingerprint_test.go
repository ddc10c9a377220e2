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

// Clients make a new boundary for each try of an upload, and some say which charset their JSON has.
func TestFingerprintOfWhatClientsChange(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{BodyMode: true, Config: `{"mode":"body","match":[{"path":"/form","fingerprint":{"body":"form"}},{}]}`})
		upload := func(boundary, file string) Request {
			return Request{Key: "u", Headers: []string{"content-type: multipart/form-data; boundary=" + boundary}, Body: "--" + boundary +
				"\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a.txt\"\r\n\r\n" + file + "\r\n--" + boundary + "--\r\n"}
		}
		payOnce(r, upload("b", "content"))
		want(t, "another boundary", r.Send(upload("----longer", "content")).Response().Body, "first")
		want(t, "another file", r.Send(upload("b", "Content")).Response().Problem(t), "fingerprint-mismatch")
		typed := func(key, path, contentType, body string) Request {
			return Request{Key: key, Path: path, Body: body, Headers: []string{"content-type: " + contentType}}
		}
		payOnce(r, typed("j", "/", "application/json", "{}"))
		want(t, "charset", r.Send(typed("j", "/", "Application/json; charset=UTF-8", "{}")).Response().Body, "first")
		want(t, "type", r.Send(typed("j", "/", "text/plain", "{}")).Response().Problem(t), "fingerprint-mismatch")
		const form = "application/x-www-form-urlencoded"
		payOnce(r, typed("f", "/form", form, "a=1&b=%20"))
		want(t, "form", r.Send(typed("f", "/form", form, "b=+&a=1")).Response().Body, "first")
		want(t, "another form", r.Send(typed("f", "/form", form, "b=+&a=2")).Response().Problem(t), "fingerprint-mismatch")
	})
}

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

// A request is the same one in both modes, and with and without a declared length. Each mode compares what it knows,
// and the ledger's answer is the same as the cache's.
func TestBothModesKnowTheSameRequest(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, secret := range []string{"", "0123456789abcdef"} {
			for _, oneProxy := range []bool{true, false} {
				rigs := map[string]*Rig{}
				for _, mode := range []string{"headers", "body"} {
					o := Options{BodyMode: mode == "body", Config: fmt.Sprintf(`{"mode":%q,"scope_secret":%q}`, mode, secret)}
					if first := rigs["headers"]; first != nil {
						o.Manager, o.Clock = first.Manager, first.Clock
						if oneProxy {
							o.Process = first.Process
						}
					}
					rigs[mode] = NewRig(t, guest, o)
				}
				for _, first := range ways {
					for _, retry := range ways {
						name := fmt.Sprintf("secret %v, one proxy %v, %v then %v", secret != "", oneProxy, first, retry)
						x := first.send(rigs[first.mode], name, "1234")
						x.Answer(201, "first")
						want(t, name, x.Response().Body, "first")
						rigs[first.mode].Settle()
						for range 2 {
							for body, same := range map[string]bool{
								"1234":  true,
								"12345": !first.knowsLength() || !retry.knowsLength(),
								"abcd":  first.mode == "headers" || retry.mode == "headers",
							} {
								p := retry.send(rigs[retry.mode], name, body).Response()
								if same {
									want(t, name+": "+body, p.Body, "first")
								} else {
									want(t, name+": "+body, p.Problem(t), "fingerprint-mismatch")
								}
							}
						}
					}
				}
			}
		}
	})
}

// way is how a request comes to the gate.
type way struct {
	mode    string
	chunked bool
}

var ways = []way{{"headers", false}, {"headers", true}, {"body", false}, {"body", true}}

func (w way) knowsLength() bool { return w.mode == "body" || !w.chunked }

func (w way) send(r *Rig, key, body string) *Exchange {
	key = strings.NewReplacer(" ", "-", "{", "", "}", "", ",", "").Replace(key)
	if !w.chunked {
		return r.Send(Request{Key: key, Body: body})
	}
	x := r.Open(Request{Key: key, Headers: []string{"content-type: application/json"}}, false)
	x.RequestData([]byte(body), false)
	x.RequestData(nil, true)
	return x
}

// A request without a body has the length 0 wherever the gate knows of its end.
func TestRequestsWithoutBodiesHaveTheLengthZero(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		headers := NewRig(t, guest, Options{})
		body := NewRig(t, guest, Options{BodyMode: true, Config: `{"mode":"body"}`, Manager: headers.Manager, Clock: headers.Clock})
		for first, key := range map[*Rig]string{headers: "h", body: "b"} {
			request := Request{Key: key, Headers: []string{"content-type: application/json"}}
			payOnce(first, request)
			for name, r := range map[string]*Rig{"headers": headers, "body": body} {
				want(t, name, r.Send(request).Response().Body, "first")
				zero := request
				zero.Headers = append(zero.Headers[:1:1], "content-length: 0")
				want(t, name, r.Open(zero, true).Response().Body, "first")
				want(t, name, r.Send(Request{Key: key, Body: "x"}).Response().Problem(t), "fingerprint-mismatch")
			}
		}
	})
}

// What a gate learned of the ledger answers the request that asked. The ledger decides about others, because the cache's
// entry has another fingerprint than the first request.
func TestLearnedEntriesDoNotDecideAboutOtherRequests(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		headers := NewRig(t, guest, Options{})
		payOnce(headers, Request{Key: "k", Body: "1234"})
		body := NewRig(t, guest, Options{BodyMode: true, Config: `{"mode":"body"}`, Manager: headers.Manager, Clock: headers.Clock})
		calls := func(n int) {
			t.Helper()
			want(t, "calls", body.Manager.Count("/v1/ledger/reserve"), n)
		}
		want(t, "a wrong retry", body.Send(Request{Key: "k", Body: "abcd"}).Response().Body, "first")
		calls(2)
		want(t, "again", body.Send(Request{Key: "k", Body: "abcd"}).Response().Body, "first")
		calls(2)
		want(t, "the right one", body.Send(Request{Key: "k", Body: "1234"}).Response().Body, "first")
		calls(3)
		want(t, "another length", body.Send(Request{Key: "k", Body: "12345"}).Response().Problem(t), "fingerprint-mismatch")
		calls(4)
	})
}

// Without the secret a fingerprint, or a part of it, cannot be computed.
func TestSecretKeysAllOfAFingerprint(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		parts := func(secret string) []string {
			r := NewRig(t, guest, Options{BodyMode: true, Config: fmt.Sprintf(`{"mode":"body","scope_secret":%q}`, secret)})
			payOnce(r, Request{Key: "k", Body: "1234"})
			return strings.Split(r.Manager.entries()[0].Fingerprint, ".")
		}
		plain, keyed := parts(""), parts("0123456789abcdef")
		want(t, "parts", fmt.Sprint(len(plain), len(keyed)), "3 3")
		for i := range plain {
			if plain[i] == keyed[i] {
				t.Errorf("part %d is %s with and without a secret", i, plain[i])
			}
		}
	})
}
