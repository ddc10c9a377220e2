package gatetest

import (
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

func TestFirstCallIsExecutedAndRecorded(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"manager":{"auth_token":"secret"}}`})
		x := r.Send(Request{Key: "k1", Body: `{"amount":1}`})
		up := x.Upstream.AwaitHeaders(t)
		want(t, ":path", up.Get(":path"), "/payments")
		x.Upstream.AwaitEnd(t)
		want(t, "upstream's body", x.Upstream.Body(), `{"amount":1}`)
		x.Answer(201, `{"n":1}`, "content-type: application/json", "x-custom: a", "x-custom: b")
		p := x.Response()
		want(t, "status", p.Status, "201")
		want(t, "body", p.Body, `{"n":1}`)
		want(t, "idempotency-status", p.Header("idempotency-status"), "executed")
		want(t, "idempotent-replayed", p.Header("idempotent-replayed"), "")
		x.Over()

		calls := r.Manager.Calls()
		want(t, "calls", len(calls), 2)
		want(t, "first call", calls[0].Path, api.PathReserve)
		want(t, "second call", calls[1].Path, api.PathCommit)
		want(t, "key", calls[0].Key, "k1")
		want(t, "scope", calls[1].Scope, calls[0].Scope)
		want(t, "token", calls[1].Token, calls[0].Token)
		want(t, "token's length", len(calls[0].Token), 32)
		want(t, "fingerprint", calls[1].Fingerprint, calls[0].Fingerprint)
		want(t, "authorization", calls[1].Authorization, "Bearer secret")
		want(t, "recorded status", calls[1].Result.Status, 201)
		want(t, "recorded body", string(calls[1].Result.Body), `{"n":1}`)
		want(t, "misses", r.Metric("oncegate_gate_requests_miss_total"), 1)
		want(t, "committed", r.Metric("oncegate_gate_outcomes_committed_total"), 1)
		want(t, "calls measured", r.Metric("oncegate_gate_call_microseconds"), 2)
	})
}

func TestReplayEqualsTheOriginal(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"response":{"drop_headers":[]}}`})
		headers := []string{
			"content-type: text/plain; charset=utf-8", "set-cookie: a=1", "set-cookie: b=2", "x-empty: ",
			"date: Thu, 01 Jan 1970 00:00:00 GMT", "age: 3", "connection: x-hop, close", "x-hop: 1", "keep-alive: 5",
			"x-envoy-upstream-service-time: 3", "etag: \"x\"",
		}
		x := r.Send(Request{Key: "k", Body: "b"})
		x.Answer(200, "first answer", headers...)
		first := x.Response()
		again := r.Send(Request{Key: "k", Body: "b"})
		p := again.Response()
		want(t, "status", p.Status, "200")
		want(t, "body", p.Body, first.Body)
		want(t, "idempotent-replayed", p.Header("idempotent-replayed"), "true")
		want(t, "idempotency-status", p.Header("idempotency-status"), "replayed")
		for _, name := range []string{"content-type", "set-cookie", "etag"} {
			want(t, name, strings.Join(p.Headers.Values(name), "|"), strings.Join(first.Headers.Values(name), "|"))
		}
		if !p.Headers.Has("x-empty") {
			t.Error("an empty header is missing")
		}
		for _, name := range []string{"date", "age", "connection", "x-hop", "keep-alive", "x-envoy-upstream-service-time"} {
			if p.Headers.Has(name) {
				t.Errorf("%s was replayed", name)
			}
		}
		want(t, "upstream saw the replay", again.Upstream.Begun(), false)
		want(t, "calls", len(r.Manager.Calls()), 2)
		want(t, "hits", r.Metric("oncegate_gate_requests_hit_committed_total"), 1)
	})
}

// All ways to write a host give the same scope.
func TestHostIsOneScope(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		x := r.Send(Request{Key: "k", Host: "api.test:8443"})
		x.Answer(201, "first")
		x.Response()
		for _, host := range []string{"api.test", "API.test:443", "api.test.", "api.test.:80"} {
			want(t, host, r.Send(Request{Key: "k", Host: host}).Response().Body, "first")
		}
		y := r.Send(Request{Key: "k", Host: "other.test"})
		y.Answer(201, "another")
		want(t, "another host", y.Response().Header("idempotency-status"), "executed")
	})
}

// A host sets the content type of its own replies. A replay keeps upstream's.
func TestReplayKeepsContentTypeAsItWas(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		for _, c := range []struct{ key, body, header string }{
			{"typed-empty", "", "content-type: application/json"},
			{"untyped-body", "text", "x-a: b"},
			{"untyped-empty", "", "x-a: b"},
		} {
			x := r.Send(Request{Key: c.key})
			x.Answer(200, c.body, c.header)
			first := x.Response()
			p := r.Send(Request{Key: c.key}).Response()
			want(t, c.key+": replayed", p.Header("idempotent-replayed"), "true")
			want(t, c.key+": content-type", strings.Join(p.Headers.Values("content-type"), "|"),
				strings.Join(first.Headers.Values("content-type"), "|"))
			want(t, c.key+": body", p.Body, c.body)
		}
	})
}

func TestReplayIsAnsweredFromTheCacheOfAnotherWorker(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Workers: 2})
		x := r.Send(Request{Key: "k", Worker: 0})
		x.Answer(200, "one")
		x.Response()
		p := r.Send(Request{Key: "k", Worker: 1}).Response()
		want(t, "body", p.Body, "one")
		want(t, "calls", len(r.Manager.Calls()), 2)
	})
}

func TestUnmatchedRequestsPassUntouched(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		for name, q := range map[string]Request{
			"get":             {Method: "GET", Key: "k"},
			"head":            {Method: "HEAD", Key: "k"},
			"no key":          {},
			"grpc, no key":    {Headers: []string{"content-type: application/grpc"}},
			"upgrade, no key": {Headers: []string{"connection: upgrade", "upgrade: websocket"}},
		} {
			x := r.Send(q)
			x.Answer(200, "")
			p := x.Response()
			if p.Headers.Has("idempotency-status") {
				t.Errorf("%s: the answer is marked", name)
			}
		}
		want(t, "calls", len(r.Manager.Calls()), 0)
	})
}

// unsupported are requests that have no single answer.
var unsupported = map[string]Request{
	"connect":   {Method: "CONNECT"},
	"websocket": {Headers: []string{"connection: keep-alive, Upgrade", "upgrade: websocket"}},
	"grpc":      {Headers: []string{"content-type: application/grpc+proto"}},
	"grpc-web":  {Headers: []string{"content-type: Application/gRPC-Web; x=y"}},
}

// A request that cannot be protected does not run as if it were.
func TestUnsupportedRequestsAreRefused(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		const all = `"match":[{"methods":["*"]}]`
		for _, c := range []struct {
			name, config, key string
			refused, marked   bool
		}{
			{"a key", `{` + all + `}`, "k", true, false},
			{"no key", `{` + all + `}`, "", false, false},
			{"a key required", `{` + all + `,"key":{"required":true}}`, "", true, false},
			{"a key required and there", `{` + all + `,"key":{"required":true}}`, "k", true, false},
			{"a key from each body", `{` + all + `,"mode":"body","key":{"derive":"md5"}}`, "", true, false},
			{"a key in JSON bodies", `{` + all + `,"mode":"body","key":{"json_path":"id"}}`, "", false, true},
			{"a key, let pass", `{` + all + `,"unsupported":"pass"}`, "k", false, true},
			{"no key, let pass", `{` + all + `,"unsupported":"pass"}`, "", false, false},
			{"a key required, let pass", `{` + all + `,"unsupported":"pass","key":{"required":true}}`, "", false, true},
			{"let pass by the rule", `{"match":[{"methods":["*"],"unsupported":"pass"}]}`, "k", false, true},
		} {
			r := NewRig(t, guest, Options{Config: c.config, BodyMode: true})
			for name, q := range unsupported {
				what := name + ", " + c.name
				q.Key = c.key
				x := r.Send(q)
				if !c.refused {
					x.Answer(200, "")
				}
				p := x.Response()
				want(t, what+": upstream called", x.Upstream.Begun(), !c.refused)
				switch {
				case c.refused && name == "grpc":
					want(t, what, p.Status+" "+p.Header("grpc-status")+" "+p.Header("idempotency-status"), "200 12 unsupported-protocol")
				case c.refused:
					want(t, what, p.Status+" "+p.Problem(t), "400 unsupported-protocol")
				case c.marked:
					want(t, what, p.Header("idempotency-status"), "bypassed")
				default:
					want(t, what, p.Header("idempotency-status"), "")
				}
			}
			count := func(b bool) int64 {
				if b {
					return int64(len(unsupported))
				}
				return 0
			}
			want(t, c.name+": refused", r.Metric("oncegate_gate_requests_unsupported_total"), count(c.refused))
			want(t, c.name+": bypassed", r.Metric("oncegate_gate_requests_bypass_total"), count(c.marked))
			want(t, c.name+": calls", len(r.Manager.Calls()), 0)
		}
	})
}

func TestStreamingGRPCPassesWithTrailers(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"unsupported":"pass"}`})
		x := r.Open(Request{Key: "k", Headers: []string{"content-type: application/grpc", "te: trailers"}}, false)
		x.Upstream.AwaitHeaders(t)
		x.RequestData([]byte("message"), false)
		x.Upstream.AwaitBody(t, 7)
		x.ResponseHeaders(hostsim.H(":status", "200", "content-type", "application/grpc"), false)
		x.Client.AwaitHeaders(t)
		x.ResponseData([]byte("reply"), false)
		x.Client.AwaitBody(t, 5)
		x.RequestData(nil, true)
		x.ResponseTrailers(hostsim.H("grpc-status", "0"))
		x.Client.AwaitEnd(t)
		x.Over()
		want(t, "calls", len(r.Manager.Calls()), 0)
	})
}

func TestBadKeysAreRefused(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		for name, headers := range map[string][]string{
			"empty":    {"idempotency-key: "},
			"too long": {"idempotency-key: " + strings.Repeat("x", 256)},
			"control":  {"idempotency-key: a\x01b"},
			"tab":      {"idempotency-key: a\tb"},
			"blank":    {`idempotency-key: " "`},
			"list":     {"idempotency-key: a, b"},
			"twice":    {"idempotency-key: a", "idempotency-key: b"},
			"unclosed": {`idempotency-key: "abc`},
		} {
			x := r.Send(Request{Headers: headers})
			p := x.Response()
			want(t, name+": status", p.Status, "400")
			want(t, name+": code", p.Problem(t), "invalid-key")
			want(t, name+": upstream called", x.Upstream.Begun(), false)
		}
		want(t, "invalid", r.Metric("oncegate_gate_requests_invalid_total"), 8)
		want(t, "calls", len(r.Manager.Calls()), 0)
		x := r.Send(Request{Key: strings.Repeat("x", 255)})
		x.Answer(200, "")
		want(t, "status of the longest key", x.Response().Status, "200")
	})
}

func TestQuotedAndBareKeysAreTheSame(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		x := r.Send(Request{Key: `"abc"`})
		x.Answer(200, "x")
		x.Response()
		want(t, "replayed", r.Send(Request{Key: "abc"}).Response().Header("idempotent-replayed"), "true")
	})
}

// A key may have blanks inside, in quotes or bare. It is the same key in the ledger, in a look-up and for the upstream.
func TestKeysWithBlanks(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{` + lookupConfig + `,"forward":{"key_header":"x-key"},
			"match":[{"path":"/p","key":{"format":"pattern","pattern":"pay ?\\* [^a] [0-9]{1,3}"}},{"path":"/s","key":{"format":"structured"}},{}]}`})
		const key = `a  "b" \ c`
		x := r.Send(Request{Key: `"a  \"b\" \\ c";v="1 2"`})
		want(t, "for the upstream", x.Upstream.AwaitHeaders(t).Get("x-key"), key)
		x.Answer(201, "first")
		x.Response()
		r.Settle()
		want(t, "in the ledger", r.Manager.Calls()[0].Key, key)
		for _, again := range []string{key, " " + key + "\t", `"a  \"b\" \\ c"`} {
			want(t, again, r.Send(Request{Key: again}).Response().Body, "first")
			want(t, "look-up of "+again, asked(r, again).Response().Body, "first")
		}
		for path, keys := range map[string][]string{"/payments": {`a "b" \ c`, "a b"}, "/p": {"pay x* b 17"}, "/s": {"host 1:42:a1b2c3d4e5f6a7b8"}} {
			for _, other := range keys {
				x := r.Send(Request{Path: path, Key: other})
				x.Answer(201, "other")
				want(t, other, x.Response().Body, "other")
			}
		}
		for path, key := range map[string]string{"/p": "pay x* a 17", "/s": "host:42 :a1b2c3d4e5f6a7b8"} {
			want(t, key, r.Send(Request{Path: path, Key: key}).Response().Problem(t), "invalid-key")
		}
	})
}

func TestRequiredKeyMustBeThere(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"key":{"required":true}}`})
		p := r.Send(Request{}).Response()
		want(t, "status", p.Status, "400")
		want(t, "code", p.Problem(t), "key-required")
	})
}

func TestStructuredKeysOnly(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"key":{"format":"structured"}}`})
		want(t, "plain key", r.Send(Request{Key: "plain"}).Response().Status, "400")
		x := r.Send(Request{Key: "host1.dc1:12345:42:a1b2c3d4e5f6a7b8"})
		x.Answer(200, "")
		want(t, "structured key", x.Response().Status, "200")
	})
}

func TestScopesSeparateCallers(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		for i, q := range []Request{
			{Key: "k", Headers: []string{"authorization: Bearer a"}},
			{Key: "k", Headers: []string{"authorization: Bearer b"}},
			{Key: "k"},
			{Key: "k", Path: "/other"},
		} {
			x := r.Send(q)
			body := strings.Repeat("x", i+1)
			x.Answer(200, body)
			want(t, "executed", x.Response().Header("idempotency-status"), "executed")
			want(t, "replay", r.Send(q).Response().Body, body)
		}
		for _, c := range r.Manager.Calls() {
			if strings.Contains(c.Scope, "Bearer") {
				t.Errorf("scope %q holds a credential", c.Scope)
			}
		}
		for _, e := range r.Process.SharedData("") {
			if strings.Contains(string(e.Value), "Bearer a") {
				t.Errorf("shared data holds a credential at %s", e.Key)
			}
		}
	})
}

func TestAnotherRequestUnderTheSameKey(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		x := r.Send(Request{Key: "k", Body: "four"})
		other := r.Send(Request{Key: "k", Body: "longer"})
		p := other.Response()
		want(t, "while pending", p.Status, "422")
		want(t, "code", p.Problem(t), "fingerprint-mismatch")
		x.Answer(200, "")
		x.Response()
		want(t, "when done", r.Send(Request{Key: "k", Body: "longer"}).Response().Status, "422")
		want(t, "the right one", r.Send(Request{Key: "k", Body: "four"}).Response().Header("idempotent-replayed"), "true")
		for what, q := range map[string]Request{
			"another method":        {Method: "PATCH", Body: "four"},
			"another type":          {Body: "four", Headers: []string{"content-type: text/plain"}},
			"another digest":        {Body: "four", Headers: []string{"content-digest: sha-256=:x:"}},
			"with a query":          {Path: "/payments?a=1", Body: "four"},
			"without a body at all": {},
		} {
			q.Key = "k"
			want(t, what, r.Send(q).Response().Problem(t), "fingerprint-mismatch")
		}
		want(t, "of the same length", r.Send(Request{Key: "k", Body: "FOUR"}).Response().Header("idempotent-replayed"), "true")
		want(t, "mismatches", r.Metric("oncegate_gate_requests_mismatch_total"), 7)
	})
}

func TestMismatchToldByTheLedger(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		a := NewRig(t, guest, Options{})
		b := NewRig(t, guest, Options{Manager: a.Manager, Clock: a.Clock})
		x := a.Send(Request{Key: "k", Body: "four"})
		x.Answer(200, "")
		x.Response()
		y := b.Send(Request{Key: "k", Body: "longer"})
		want(t, "status", y.Response().Status, "422")
		want(t, "upstream called", y.Upstream.Begun(), false)
		// The cache of b remembers nothing of it.
		want(t, "the right one", b.Send(Request{Key: "k", Body: "four"}).Response().Header("idempotent-replayed"), "true")
	})
}

func TestLosingTheCacheCostsOnlyACall(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		a := NewRig(t, guest, Options{})
		x := a.Send(Request{Key: "k"})
		x.Answer(201, "first", "x-a: b")
		x.Response()
		b := NewRig(t, guest, Options{Manager: a.Manager, Clock: a.Clock})
		for range 2 {
			p := b.Send(Request{Key: "k"}).Response()
			want(t, "status", p.Status, "201")
			want(t, "body", p.Body, "first")
			want(t, "x-a", p.Header("x-a"), "b")
			want(t, "replayed", p.Header("idempotent-replayed"), "true")
		}
		want(t, "reserves", a.Manager.Count(api.PathReserve), 2)
	})
}

func TestMetricsShowTheCache(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"max_entries":8,"max_bytes":131072,"cleanup_interval_seconds":1,"committed_ttl_seconds":60}`})
		for i := range 12 {
			x := r.Send(Request{Key: strings.Repeat("k", i+1)})
			x.Answer(200, "0123456789")
			x.Response()
		}
		r.Clock.Advance(5 * time.Second)
		want(t, "entries", r.Metric("oncegate_gate_cache_entries"), 8)
		if n := r.Metric("oncegate_gate_cache_bytes"); n < 80 || n > 8000 {
			t.Errorf("%d bytes", n)
		}
		want(t, "evictions", r.Metric("oncegate_gate_cache_evictions_total"), 4)
		r.Clock.Advance(2 * time.Minute)
		want(t, "entries", r.Metric("oncegate_gate_cache_entries"), 0)
		want(t, "bytes", r.Metric("oncegate_gate_cache_bytes"), 0)
	})
}

func TestHeadIsReplayed(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"match":[{"methods":["*"]}]}`})
		x := r.Send(Request{Method: "HEAD", Key: "k"})
		x.Upstream.AwaitHeaders(t)
		x.ResponseHeaders(hostsim.H(":status", "200", "content-type", "text/plain", "content-length", "5", "x-a", "b"), true)
		want(t, "answer", x.Response().Header("x-a"), "b")
		p := r.Send(Request{Method: "HEAD", Key: "k"}).Response()
		want(t, "replay", p.Status+p.Header("x-a")+p.Header("idempotent-replayed"), "200btrue")
		want(t, "content-type", p.Header("content-type"), "text/plain")
		// Another method under the same key is another request.
		want(t, "get", r.Send(Request{Method: "GET", Key: "k"}).Response().Status, "422")
	})
}
