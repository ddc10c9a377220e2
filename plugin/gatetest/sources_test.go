package gatetest

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
)

// Keys from several sources (key.sources), and what they look like (key.format).

func TestKeysOfSeveralSources(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, mode := range []string{"headers", "body"} {
			r := NewRig(t, guest, Options{BodyMode: mode == "body", Config: `{"mode":"` + mode + `","wait_for_pending":false,
				"key":{"sources":["header:x-key","cookie:session","query:currency?"]},"forward":{"key_header":"x-joined"},"anonymous":"shared"}`})
			q := Request{Path: "/payments?currency=eur", Headers: []string{"x-key: k", "cookie: a=b; session=s,1"}, Body: "pay"}
			x := r.Send(q)
			want(t, "joined", x.Upstream.AwaitHeaders(t).Get("x-joined"), "k,s%2C1,eur")
			x.Answer(201, "first")
			x.Response()
			r.Settle()
			state, _ := r.Manager.State("k,s%2C1,eur")
			want(t, "state", state.String(), "committed")
			want(t, "retry", r.Send(q).Response().Header("idempotent-replayed"), "true")
			q.Headers = []string{"x-key: k", "cookie: session=t"}
			x = r.Send(q)
			x.Answer(201, "another")
			want(t, "another session", x.Response().Body, "another")
			q.Headers = []string{"x-key: k"}
			want(t, "half a key", r.Send(q).Response().Problem(t), "key-required")
			q.Headers = []string{"x-key: k", "cookie: session=t; session=u"}
			want(t, "two sessions", r.Send(q).Response().Problem(t), "invalid-key")
			q.Headers = []string{"idempotency-key: k", "cookie: session=t"}
			x = r.Send(q)
			x.Answer(200, "no key")
			p := x.Response()
			want(t, "without the first source", p.Body+p.Header("idempotency-status"), "no key")
			grpc := r.Send(Request{Headers: []string{"x-key: k", "content-type: application/grpc"}})
			want(t, "gRPC", grpc.Response().Header("idempotency-status"), "unsupported-protocol")
		}
	})
}

func TestKeysOfBodyAndClaim(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{BodyMode: true, Config: `{"mode":"body","key":{"sources":["json:order.id","path:1"],"required":true},"match":[
			{"path":"/v1/claims","key":{"sources":["jwt:payload.sub"]}},{}]}`})
		q := Request{Path: "/v1/payments", Body: `{"order":{"id":7}}`}
		payOnce(r, q)
		want(t, "retry", r.Send(q).Response().Body, "first")
		state, _ := r.Manager.State("7,payments")
		want(t, "state", state.String(), "committed")
		for _, body := range []string{`{"order":{}}`, `{}`, `[`, ``} {
			q.Body = body
			want(t, body, r.Send(q).Response().Problem(t), "key-required")
		}
		// A body that comes in pieces.
		x := r.Open(Request{Path: "/v1/payments", Headers: []string{"content-type: application/json", "content-length: 18"}}, false)
		x.RequestData([]byte(`{"order":{`), false)
		x.RequestData([]byte(`"id":7}}`), true)
		want(t, "in pieces", x.Response().Body, "first")

		claims := func(sub string) *Exchange {
			x := &Exchange{rig: r, Upstream: newRecorder(), Client: newRecorder()}
			s, err := r.Host.NewStream(hostsim.StreamOptions{
				Downstream: x.Client, Upstream: x.Upstream,
				Properties: map[string][]byte{"metadata.filter_metadata.envoy.filters.http.jwt_authn.payload.sub": []byte(sub)},
			})
			if err != nil {
				t.Fatal(err)
			}
			x.Stream = s
			x.RequestHeaders(hostsim.H(":method", "POST", ":path", "/v1/claims", ":authority", "api.test", ":scheme", "http"), true)
			return x
		}
		x = claims("alice")
		x.Answer(200, "claimed")
		x.Response()
		r.Settle()
		want(t, "claim", claims("alice").Response().Body, "claimed")
		state, _ = r.Manager.State("alice")
		want(t, "state", state.String(), "committed")
		want(t, "no claim", r.Send(Request{Path: "/v1/claims"}).Response().Problem(t), "key-required")
	})
}

// A request that may have a key in a body that the gate cannot read does not pass as if it had none.
func TestKeysInBodiesThatCannotBeRead(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		large := `{"id":"k","filler":"` + strings.Repeat("a", 2000) + `"}`
		for _, c := range []struct {
			key, body, encoding, status string
		}{
			{`"json_path":"id"`, large, "", "bypassed"},
			{`"json_path":"id"`, "\x1f\x8b", "gzip", "bypassed"},
			{`"json_path":"id"`, "", "", ""},
			{`"json_path":"id"`, `{"a":1}`, "identity", ""},
			{`"json_path":"id"`, `a=1`, "", ""},
			{`"sources":["json:id","path:0"]`, large, "", "bypassed"},
			{`"derive":"sha256"`, large, "", "bypassed"},
			{`"derive":"sha256"`, "", "", "bypassed"},
			{`"derive":"sha256"`, "\x1f\x8b", "gzip", "executed"},
			{`"required":true,"json_path":"id"`, large, "", "key-required"},
			{`"required":true,"derive":"sha256"`, "", "", "key-required"},
		} {
			r := NewRig(t, guest, Options{BodyMode: true, Config: `{"mode":"body","max_request_body_bytes":1000,"key":{` + c.key + `}}`})
			q := Request{Body: c.body}
			if c.encoding != "" {
				q.Headers = []string{"content-encoding: " + c.encoding}
			}
			x := r.Send(q)
			if c.status != "key-required" {
				x.Answer(201, "done")
			}
			want(t, c.key+" "+c.encoding, x.Response().Header("idempotency-status"), c.status)
			count := int64(0)
			if c.status == "bypassed" {
				count = 1
			}
			want(t, c.key+" "+c.encoding+": counted", r.Metric("oncegate_gate_requests_bypass_total"), count)
		}
	})
}

func TestFormatsOfKeys(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"key":{"format":"uuid"},"match":[{"path":"/p","key":{"format":"pattern","pattern":"pay_[a-z0-9]{4,8}"}},{}]}`})
		for key, path := range map[string]string{"123e4567-E89B-12d3-a456-426614174000": "/u", "pay_ab12": "/p"} {
			x := r.Send(Request{Key: key, Path: path})
			x.Answer(200, "ok")
			want(t, key, x.Response().Body, "ok")
		}
		for key, path := range map[string]string{"123e4567e89b12d3a456426614174000": "/u", "pay_ab1": "/p", "pay_ab12!": "/p"} {
			want(t, key, r.Send(Request{Key: key, Path: path}).Response().Problem(t), "invalid-key")
		}
	})
}
