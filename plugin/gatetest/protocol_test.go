package gatetest

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
)

// try is a request and what its client gets.
type try struct {
	what string
	q    Request
	// status is the upstream's answer; 0: the request must not reach it.
	status int
	// answer is its body, headers its headers.
	answer  string
	headers []string
	// want is how the client's status and body begin; has are headers that it gets: "name: value", or "name: " for none.
	want string
	has  []string
}

// play sends the tries, one after the other. The gate's requests carry a credential unless they say otherwise.
func play(t *testing.T, r *Rig, tries []try) {
	t.Helper()
	for i, c := range tries {
		what := strconv.Itoa(i) + ", " + c.what
		if !strings.Contains(strings.Join(c.q.Headers, "\n"), "authorization: ") {
			c.q.Headers = append(c.q.Headers, "authorization: Bearer a")
		}
		x := r.Send(c.q)
		if c.status != 0 {
			x.Answer(c.status, c.answer, c.headers...)
		}
		p := x.Response()
		want(t, what+": reached upstream", x.Upstream.Begun(), c.status != 0)
		if got := p.Status + " " + p.Body; !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: got %s, want %s...", what, got, c.want)
		}
		for _, line := range c.has {
			name, value, _ := strings.Cut(line, ": ")
			want(t, what+": "+name, p.Header(name), value)
		}
		r.Settle()
	}
}

func playProtocol(t *testing.T, config string, tries []try) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		play(t, NewRig(t, guest, Options{Config: config, BodyMode: true}), tries)
	})
}

// The rules of "Idempotency, Retries & Concurrency" in the specification of the Agentic Commerce Protocol.
func TestAgenticCommerce(t *testing.T) {
	pay := func(key, body string, headers ...string) Request {
		return Request{Path: "/checkout_sessions", Key: key, Body: body, Headers: headers}
	}
	const conflict = `422 {"type": "invalid_request", "code": "idempotency_conflict", "message": "`
	echoed := []string{"idempotency-key: k", "idempotent-replayed: true"}
	playProtocol(t, `{"protocol":"acp","anonymous":"refuse"}`, []try{
		{what: "every POST needs a key", q: pay("", "{}"), want: `400 {"type": "invalid_request", "code": "idempotency_key_required", "message": "`, has: []string{"content-type: application/json"}},
		{what: "GET needs none", q: Request{Method: "GET", Path: "/checkout_sessions"}, status: 200, want: "200 "},
		{what: "the key is echoed", q: pay("k", `{"a":1,"b":{"c":2,"d":null}}`), status: 201, answer: "first", want: "201 first", has: []string{"idempotency-key: k", "idempotent-replayed: "}},
		{what: "the order of members does not count", q: pay("k", `{"b": {"d": null, "c": 2}, "a": 1}`), want: "201 first", has: echoed},
		{what: "trailing zeros do not count", q: pay("k", `{"a":1.0,"b":{"c":2.00,"d":null}}`), want: "201 first", has: echoed},
		{what: "headers do not count", q: pay("k", `{"a":1,"b":{"c":2,"d":null}}`, "content-type: application/vnd.x+json", "timestamp: 2", "signature: x"), want: "201 first", has: echoed},
		{what: "null is not absent", q: pay("k", `{"a":1,"b":{"c":2}}`), want: conflict, has: []string{"idempotency-key: k"}},
		{what: "elements of lists have an order", q: pay("l", `{"a":[1,2]}`), status: 200, want: "200 "},
		{what: "elements of lists have an order", q: pay("l", `{"a":[2,1]}`), want: conflict},
		{what: "the path is in the scope", q: Request{Path: "/checkout_sessions/1", Key: "k", Body: `{}`}, status: 200, answer: "other", want: "200 other"},
		{what: "the caller is in the scope", q: pay("k", `{}`, "content-type: application/json", "authorization: Bearer b"), status: 200, answer: "b", want: "200 b"},
		{what: "5xx are not recorded", q: pay("s", `{}`), status: 500, want: "500 "},
		{what: "so the retry is a new request", q: pay("s", `{}`), status: 200, answer: "now", want: "200 now"},
		{what: "refusals are", q: pay("r", `{}`), status: 402, answer: "declined", want: "402 declined"},
		{what: "refusals are", q: pay("r", `{}`), want: "402 declined", has: []string{"idempotent-replayed: true"}},
	})
}

// A duplicate of a request that runs gets what the route's protocol says.
func TestInFlight(t *testing.T) {
	for protocol, wanted := range map[string]string{
		"acp":       `409 {"type": "invalid_request", "code": "idempotency_in_flight", "message": "`,
		"ucp":       `409 {"code": "idempotency_in_flight", "content": "`,
		"iceberg":   `503 {"error": {"message": "The first request with this key is still being processed. `,
		"stripe-v1": `409 {"error": {"type": "invalid_request_error", "code": "idempotency_key_in_use", "message": "`,
		"stripe-v2": `409 {"error": {"type": "invalid_request_error", "code": "idempotency_key_in_use", "message": "`,
		"ietf":      `409 {"type":"urn:oncegate:problem:request-pending"`,
	} {
		each(t, func(t *testing.T, guest hostsim.Source) {
			r := NewRig(t, guest, Options{Config: `{"protocol":"` + protocol + `","wait_for_pending":false}`, BodyMode: true})
			q := Request{Key: "00000000-0000-0000-0000-000000000001", Body: "{}", Headers: []string{"authorization: a"}}
			x := r.Send(q)
			x.Upstream.AwaitHeaders(t)
			play(t, r, []try{{what: protocol, q: q, want: wanted, has: []string{"retry-after: 1"}}})
			x.Answer(200, "")
			x.Response()
		})
	}
}

// The requirements of "Replay Protection" in the specification of the Universal Commerce Protocol.
func TestUniversalCommerce(t *testing.T) {
	put := func(key, body string, headers ...string) Request {
		return Request{Method: "PUT", Path: "/checkout-sessions/1", Key: key, Body: body, Headers: headers}
	}
	const conflict = `409 {"code": "idempotency_conflict", "content": "`
	playProtocol(t, `{"protocol":"ucp","anonymous":"refuse"}`, []try{
		{what: "a key is not required", q: put("", "{}"), status: 200, want: "200 "},
		{what: "updates are protected", q: put("k", `{"a":1}`), status: 200, answer: "first", want: "200 first"},
		{what: "the recorded answer", q: put("k", `{"a":1}`), want: "200 first"},
		{what: "bytes are compared", q: put("k", `{"a": 1}`), want: conflict, has: []string{"content-type: application/json"}},
		{what: "the digest alone counts", q: put("k", `{"a":1}`, "content-type: application/json; charset=latin1"), want: "200 first"},
		{what: "another operation", q: Request{Path: "/checkout-sessions/1", Key: "k", Body: "{}"}, status: 200, answer: "second", want: "200 second"},
		{what: "another platform", q: put("k", "{}", "content-type: application/json", `ucp-agent: profile="https://p.test"`), status: 200, answer: "third", want: "200 third"},
	})
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"protocol":"ucp"}`, BodyMode: true, NoCluster: true})
		x := r.Send(put("k", "{}", "content-type: application/json", "authorization: a"))
		r.Clock.Advance(time.Minute)
		p := x.Response()
		want(t, "a failed store refuses", strings.HasPrefix(p.Status+" "+p.Body, `503 {"code": "manager-unavailable", "content": "`), true)
	})
}

// The rules for Idempotency-Key in the Iceberg REST catalog's description, and what its Java client makes of statuses.
func TestIcebergCatalog(t *testing.T) {
	const id = "017f22e2-79b0-7cc3-98c4-dc0c0c07398"
	commit := func(n, body string) Request {
		return Request{Path: "/v1/namespaces/a/tables/t", Key: id + n, Body: body}
	}
	unknown := `500 {"error": {"message": "The first request with this key may have been executed, but its outcome is not known. `
	playProtocol(t, `{"protocol":"iceberg"}`, []try{
		{what: "the key is a UUID", q: Request{Path: "/v1/namespaces", Key: "k", Body: "{}"}, want: `400 {"error": {"message": "`, has: []string{"content-type: application/json"}},
		{what: "commit", q: commit("f", "{}"), status: 200, answer: "{1}", want: "200 {1}"},
		{what: "upper case is the same key", q: Request{Path: "/v1/namespaces/a/tables/t", Key: strings.ToUpper(id + "f"), Body: "{}"}, want: "200 {1}"},
		{what: "another request", q: commit("f", "{2}"), want: `422 {"error": {"message": "The key was already used for another request. A retry must repeat the request unchanged; another request needs another key.", "type": "UnprocessableEntityException", "code": 422}}`},
		{what: "drop", q: Request{Method: "DELETE", Path: "/v1/namespaces/a/tables/t", Key: id + "0"}, status: 204, want: "204 "},
		{what: "dropped once", q: Request{Method: "DELETE", Path: "/v1/namespaces/a/tables/t", Key: id + "0"}, want: "204 "},
		{what: "terminal", q: commit("1", "{}"), status: 409, answer: "{exists}", want: "409 {exists}"},
		{what: "terminal", q: commit("1", "{}"), want: "409 {exists}"},
		{what: "not done", q: commit("2", "{}"), status: 503, want: "503 "},
		{what: "so it runs", q: commit("2", "{}"), status: 200, want: "200 "},
		{what: "perhaps done", q: commit("3", "{}"), status: 500, answer: "oops", want: "500 oops"},
		{what: "so it is unknown, and no 409", q: commit("3", "{}"), want: unknown},
		{what: "perhaps done", q: commit("4", "{}"), status: 504, want: "504 "},
		{what: "so it is unknown, and no 409", q: commit("4", "{}"), want: unknown},
	})
}

// Each try of a JSON-RPC request has another id, and gets an answer with its own.
func TestJSONRPC(t *testing.T) {
	call := func(id, key, amount string) Request {
		return Request{Path: "/mcp", Body: `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"pay","arguments":{"meta":{"idempotency-key":"` + key + `"},"amount":` + amount + `}}}`}
	}
	meta := func(try string) Request {
		return Request{Path: "/mcp", Body: `{"id":` + try + `,"params":{"_meta":{"progressToken":` + try + `},"arguments":{"meta":{"idempotency-key":"m"}}}}`}
	}
	stream := []string{"content-type: text/event-stream; charset=utf-8"}
	playProtocol(t, `{"protocol":"jsonrpc"}`, []try{
		{what: "first", q: call("1", "k", "1"), status: 200, answer: `{"jsonrpc":"2.0","id":1,"result":{"id":1}}`, headers: []string{"content-type: application/json", "content-digest: sha-256=:x:"}, want: `200 {"jsonrpc":"2.0","id":1,`, has: []string{"content-digest: sha-256=:x:"}},
		{what: "another id", q: call("2", "k", "1"), want: `200 {"jsonrpc":"2.0","id":2,"result":{"id":1}}`, has: []string{"content-digest: "}},
		{what: "a text as id", q: call(`"a\"b"`, "k", "1"), want: `200 {"jsonrpc":"2.0","id":"a\"b","result":{"id":1}}`},
		{what: "another call", q: call("3", "k", "2"), want: `422 {"jsonrpc": "2.0", "id": 3, "error": {"code": -32000, "message": "The key was already used for another request", "data": {"code": "fingerprint-mismatch", `},
		{what: "an event", q: call("4", "e", "1"), status: 200, answer: "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":4,\"result\":{}}\n\n", headers: stream, want: "200 event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":4,"},
		{what: "its replay", q: call("5", "e", "1"), want: "200 event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":5,\"result\":{}}\n\n", has: []string{"content-type: text/event-stream; charset=utf-8"}},
		{what: "events", q: call("6", "f", "1"), status: 200, answer: "data: {\"method\":\"progress\",\"id\":6}\r\n\r\ndata:{\"id\":6,\"error\":{}}\r\n\r\n", headers: stream, want: "200 data: "},
		{what: "their replay", q: call("7", "f", "1"), want: "200 data:{\"id\":7,\"error\":{}}\r\n\r\n"},
		{what: "no response", q: call("6", "p", "1"), status: 200, answer: "id: 1\nretry: 10\ndata: \n\ndata: {\"method\":\"progress\"}\n\n", headers: stream, want: "200 id: 1\n"},
		{what: "a client would wait for it forever", q: call("7", "p", "1"), want: `410 {"jsonrpc": "2.0", "id": 7, "error": {"code": -32000, "message": "The request was executed, but its answer is not recorded"`},
		{what: "lines that end in CR", q: call("8", "c", "1"), status: 200, answer: "event: a\rdata: {\"id\":8,\"result\":1}\r\rdata: {\"id\":8,\"result\":2}\r\r", headers: stream, want: "200 event: a"},
		{what: "their replay", q: call("9", "c", "1"), want: "200 event: a\rdata: {\"id\":9,\"result\":1}\r\rdata: {\"id\":9,\"result\":2}\r\r"},
		{what: "a message over several lines", q: call("8", "l", "1"), status: 200, answer: "data: {\"id\":\ndata: 8,\nid: 8\ndata: \"result\":{}}\n\n", headers: stream, want: "200 data: "},
		{what: "its replay", q: call("9", "l", "1"), want: "200 data: {\"id\":\ndata: 9,\nid: 8\ndata: \"result\":{}}\n\n"},
		{what: "no encoding", q: call("8", "d", "1"), status: 200, answer: `{"id":8,"result":1}`, headers: []string{"content-encoding: identity"}, want: "200 "},
		{what: "its replay", q: call("9", "d", "1"), want: `200 {"id":9,"result":1}`},
		{what: "an answer of a session", q: meta("1"), status: 200, answer: `{"id":1,"result":1}`, headers: []string{"mcp-session-id: a"}, want: "200 ", has: []string{"mcp-session-id: a"}},
		{what: "a retry in another session", q: meta("2"), want: "200 ", has: []string{"mcp-session-id: "}},
		{what: "no key", q: Request{Path: "/mcp", Body: `{"jsonrpc":"2.0","method":"notifications/initialized"}`}, status: 202, want: "202 "},
		{what: "a batch", q: Request{Path: "/mcp", Body: " [" + call("8", "k", "1").Body + "]"}, want: `400 {"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "A batch of JSON-RPC requests cannot be protected", `},
		{what: "an answer without id", q: call("9", "n", "1"), status: 200, answer: `{"id":null,"error":{}}`, want: `200 {"id":null,`},
		{what: "stays so", q: call("10", "n", "1"), want: `200 {"id":null,"error":{}}`},
	})
	// The gate must read the id of a request with a key.
	const cannot = `400 {"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "This JSON-RPC request cannot be protected", `
	long := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":"` + strings.Repeat("x", 100) + `"}`
	playProtocol(t, `{"protocol":"jsonrpc","key":{"header":"idempotency-key","json_path":""},"max_request_body_bytes":100}`, []try{
		{what: "key in a header", q: Request{Path: "/mcp", Key: "k", Body: `{"id":1}`}, status: 200, answer: `{"id":1,"result":1}`, want: `200 {"id":1,`},
		{what: "another id", q: Request{Path: "/mcp", Key: "k", Body: `{"id":2}`}, want: `200 {"id":2,"result":1}`},
		{what: "too long", q: Request{Path: "/mcp", Key: "l", Body: long}, want: cannot},
		{what: "encoded", q: Request{Path: "/mcp", Key: "z", Body: "xyz", Headers: []string{"content-encoding: gzip"}}, want: cannot},
		{what: "too long, without key", q: Request{Path: "/mcp", Body: long}, status: 200, answer: "1", want: "200 1"},
	})
	// The gate cannot put an id into a compressed answer.
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, abort := range []string{"cancel", "continue"} {
			r := NewRig(t, guest, Options{Config: `{"protocol":"jsonrpc","client_abort":"` + abort + `"}`, BodyMode: true, Clusters: map[string]hostsim.Cluster{"route-cluster": nil}})
			q := call("1", "k", "1")
			q.Headers = []string{"accept-encoding: gzip", "accept: text/event-stream"}
			x := r.Send(q)
			want(t, abort, x.Upstream.AwaitHeaders(t).Has("accept-encoding"), false)
			x.Answer(200, "")
			x.Response()
		}
	})
}

// Stripe's errors, and what it runs again.
func TestStripe(t *testing.T) {
	for _, version := range []string{"stripe-v1", "stripe-v2"} {
		q := Request{Path: "/v1/charges", Key: "k", Body: "a=1&b=x+y", Headers: []string{"content-type: application/x-www-form-urlencoded"}}
		same, other := q, q
		same.Body, other.Body = "b=x%20y&a=1", "a=2&b=x+y"
		again := try{what: version + ": 500", q: Request{Path: "/x", Key: "s", Body: "b"}, want: "500 oops"}
		if version == "stripe-v2" {
			again.status, again.answer, again.want = 200, "done", "200 done"
			// Bodies of v2 are JSON.
			q.Body, same.Body, other.Body = `{"a":1,"b":null}`, `{"b": null, "a": 1.0}`, `{"a":1}`
			for _, r := range []*Request{&q, &same, &other} {
				r.Headers = []string{"content-type: application/json"}
			}
		}
		playProtocol(t, `{"protocol":"`+version+`"}`, []try{
			{what: "first", q: q, status: 200, answer: "paid", want: "200 paid", has: []string{"idempotency-key: k"}},
			{what: "retry", q: q, want: "200 paid", has: []string{"idempotency-key: k", "idempotent-replayed: true"}},
			{what: "equal parameters", q: same, want: "200 paid"},
			{what: "other parameters", q: other, want: `400 {"error": {"type": "idempotency_error", "code": "fingerprint-mismatch", "message": "`},
			{what: "another endpoint", q: Request{Path: "/v1/refunds", Key: "k", Body: q.Body, Headers: q.Headers}, want: `400 {"error": {"type": "idempotency_error", `},
			{what: "500", q: again.q, status: 500, answer: "oops", want: "500 oops"},
			again,
		})
	}
}

// The IETF's draft.
func TestDraft(t *testing.T) {
	q := Request{Key: `"k"`, Body: "a"}
	playProtocol(t, `{"protocol":"ietf"}`, []try{
		{what: "no key", q: Request{Body: "a"}, want: `400 {"type":"urn:oncegate:problem:key-required"`},
		{what: "first", q: q, status: 201, answer: "1", want: "201 1"},
		{what: "retry", q: q, want: "201 1"},
		{what: "another request", q: Request{Key: `"k"`, Body: "bb"}, want: `422 {"type":"urn:oncegate:problem:fingerprint-mismatch"`},
	})
}

// A rule's own fields count, and so does a rule without a protocol below one that has it.
func TestProtocolOfOneRule(t *testing.T) {
	playProtocol(t, `{"match":[{"path_prefix":"/acp","protocol":"acp","problems":{"codes":{"key-required":"no_key"}}},{}]}`, []try{
		{what: "own code", q: Request{Path: "/acp"}, want: `400 {"type": "invalid_request", "code": "no_key"`},
		{what: "the rest of the preset", q: Request{Path: "/acp", Key: "k", Body: "{}"}, status: 200, want: "200 ", has: []string{"idempotency-key: k"}},
		{what: "the rest of the preset", q: Request{Path: "/acp", Key: "k", Body: "[]"}, want: `422 {"type": "invalid_request", "code": "idempotency_conflict"`},
		{what: "the other rule", q: Request{Key: "k", Body: "{}"}, status: 200, want: "200 ", has: []string{"idempotency-key: "}},
		{what: "the other rule", q: Request{Key: "k", Body: "[1]"}, want: `422 {"type":"urn:oncegate:problem:fingerprint-mismatch"`},
	})
}

// The answers say how long they are remembered, and upstream's own headers of the names do not get in between.
func TestAnswersSayHowLongTheyAreRemembered(t *testing.T) {
	for _, mode := range []string{"headers", "body"} {
		each(t, func(t *testing.T, guest hostsim.Source) {
			r := NewRig(t, guest, Options{Config: `{"mode":"` + mode + `","committed_ttl_seconds":100,"rejected_ttl_seconds":50,"response":{"ttl_header":"Key-TTL","echo_key":true}}`, BodyMode: true})
			own := []string{"key-ttl: 7", "idempotency-key: upstream"}
			play(t, r, []try{
				{what: "commit", q: Request{Key: "k", Body: "b"}, status: 200, headers: own, want: "200 ", has: []string{"key-ttl: 100", "idempotency-key: k"}},
				{what: "reject", q: Request{Key: "r", Body: "b"}, status: 400, want: "400 ", has: []string{"key-ttl: 50"}},
				{what: "release", q: Request{Key: "s", Body: "b"}, status: 429, want: "429 ", has: []string{"key-ttl: "}},
				{what: "release, with upstream's word", q: Request{Key: "t", Body: "b"}, status: 429, headers: own, want: "429 ", has: []string{"key-ttl: ", "idempotency-key: t"}},
			})
			r.Clock.Advance(40 * time.Second)
			play(t, r, []try{{what: "replay", q: Request{Key: "k", Body: "b"}, want: "200 ", has: []string{"key-ttl: 60", "idempotency-key: k"}}})
			other := NewRig(t, guest, Options{Config: `{"mode":"` + mode + `","response":{"ttl_header":"key-ttl"}}`, Manager: r.Manager, Clock: r.Clock, BodyMode: true})
			play(t, other, []try{{what: "replay by another gate", q: Request{Key: "k", Body: "b"}, want: "200 ", has: []string{"key-ttl: 60"}}})
		})
	}
}

// Credentials are exchanged with one client, so a replay has no challenge.
func TestChallengesAreNotReplayed(t *testing.T) {
	q := Request{Key: "k", Body: "b"}
	challenges := []string{"www-authenticate: Basic", "authentication-info: x", "x-a: 1"}
	playProtocol(t, `{}`, []try{
		{what: "first", q: q, status: 401, headers: challenges, want: "401 ", has: challenges},
		{what: "retry", q: q, want: "401 ", has: []string{"www-authenticate: ", "authentication-info: ", "x-a: 1"}},
	})
}

// An upstream that can continue gets the next try, one at a time, after an outcome that is not known.
func TestResumableUpstream(t *testing.T) {
	for _, abort := range []string{"cancel", "hold"} {
		each(t, func(t *testing.T, guest hostsim.Source) {
			r := NewRig(t, guest, Options{Config: `{"resumable":true,"outcomes":{"hold":["504"]},"forward":{"attempt_header":"x-attempt","token_header":"x-token"},"wait_for_pending":false}`})
			q := Request{Key: "k", Body: "b", Headers: []string{"authorization: a"}}
			x := r.Send(q)
			first := x.Upstream.AwaitHeaders(t)
			want(t, "one at a time", r.Send(q).Response().Problem(t), "request-pending")
			if abort == "cancel" {
				x.Leave()
			} else {
				x.Answer(504, "")
				x.Response()
			}
			r.Settle()
			r.Clock.Advance(time.Millisecond)
			y := r.Send(q)
			second := y.Upstream.AwaitHeaders(t)
			want(t, "one at a time", r.Send(q).Response().Problem(t), "request-pending")
			want(t, "attempts grow", second.Get("x-attempt") > first.Get("x-attempt"), true)
			want(t, "tokens differ", second.Get("x-token") != first.Get("x-token"), true)
			y.Answer(200, "done")
			y.Response()
			r.Settle()
			play(t, r, []try{{what: "replay", q: q, want: "200 done"}})
		})
	}
}

// A catalog's configuration says how long keys are remembered, if the catalog does not say it itself.
func TestCatalogSaysHowLongKeysAreRemembered(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, mode := range []string{"headers", "body"} {
			r := NewRig(t, guest, Options{Config: `{"protocol":"iceberg","mode":"` + mode + `","key":{"required":true},"committed_ttl_seconds":90}`, BodyMode: true})
			for name, c := range map[string]struct {
				path, status, body string
				headers            []string
				want               string
			}{
				"added":              {"/v1/config?warehouse=w", "200", ` {"overrides":{},"defaults":{}}`, nil, ` {"idempotency-key-lifetime":"PT90S","overrides":{},"defaults":{}}`},
				"added to nothing":   {"/v1/config", "200", `{ }`, nil, `{"idempotency-key-lifetime":"PT90S" }`},
				"the catalog's":      {"/v1/config", "200", `{"idempotency-key-lifetime":"PT1H"}`, nil, `{"idempotency-key-lifetime":"PT1H"}`},
				"no object":          {"/v1/config", "200", `[{}]`, nil, `[{}]`},
				"no JSON":            {"/v1/config", "200", `{`, nil, `{`},
				"compressed":         {"/v1/config", "200", `{}`, []string{"content-encoding", "gzip"}, `{}`},
				"another type":       {"/v1/config", "200", `{}`, []string{"content-type", "text/plain"}, `{}`},
				"a refusal":          {"/v1/config", "404", `{}`, nil, `{}`},
				"another path":       {"/v1/configs", "200", `{}`, nil, `{}`},
				"too large":          {"/v1/config", "200", `{"a":"` + strings.Repeat("a", 70<<10) + `"}`, nil, `{"a":"` + strings.Repeat("a", 70<<10) + `"}`},
				"ended by a trailer": {"/v1/config", "200", `{}`, []string{"x-trailers", "true"}, `{}`},
			} {
				x := r.Send(Request{Method: "GET", Path: c.path, Headers: []string{"accept-encoding: gzip"}})
				want(t, name, x.Upstream.AwaitHeaders(t).Has("accept-encoding"), c.path == "/v1/configs")
				h := hostsim.H(":status", c.status, "content-type", "application/json; charset=utf-8")
				trailers := false
				for i := 0; i < len(c.headers); i += 2 {
					h.Set(c.headers[i], c.headers[i+1])
					trailers = c.headers[i] == "x-trailers"
				}
				half := len(c.body) / 2
				x.ResponseHeaders(h, false)
				x.ResponseData([]byte(c.body[:half]), false)
				x.ResponseData([]byte(c.body[half:]), false)
				if trailers {
					x.ResponseTrailers(hostsim.H("x-a", "1"))
				} else {
					x.ResponseData(nil, true)
				}
				p := x.Response()
				want(t, name, p.Body, c.want)
				want(t, name, p.Header("idempotency-status"), "")
			}
		}
	})
}

// Where a 5xx of the upstream frees the key, one that the proxy made after it had sent the request does not.
func TestFailuresOfTheProxyAreNotTheUpstreams(t *testing.T) {
	const problem = `{"type": "processing_error", "code": "outcome_unknown", "message": "`
	for protocol, unknown := range map[string]string{
		"acp": "500 " + problem, "stripe-v2": `409 {"error": {"type": "api_error", "code": "outcome-unknown"`,
		"iceberg": `500 {"error": {"message": "The first request with this key may have been executed`,
	} {
		each(t, func(t *testing.T, guest hostsim.Source) {
			r := NewRig(t, guest, Options{Config: `{"protocol":"` + protocol + `"}`, BodyMode: true})
			for i, c := range []struct {
				failure hostsim.UpstreamFailure
				status  string
				free    bool
			}{
				{hostsim.UpstreamTimedOut, "504 ", false},
				{hostsim.UpstreamDisconnected, "503 ", false},
				{hostsim.UpstreamConnectFailed, "503 ", true},
			} {
				q := Request{Key: "00000000-0000-0000-0000-00000000000" + strconv.Itoa(i), Body: "{}", Headers: []string{"authorization: a"}}
				x := r.Send(q)
				x.Upstream.AwaitHeaders(t)
				x.UpstreamSelected("192.0.2.9:80")
				x.UpstreamFailed(c.failure, "")
				want(t, protocol, x.Response().Status+" ", c.status)
				r.Settle()
				again := try{what: protocol, q: q, want: unknown}
				if c.free {
					again.status, again.want = 200, "200 "
				}
				play(t, r, []try{again})
			}
		})
	}
}

// A rule for GET does not hide the answer that says how long keys are remembered.
func TestCatalogBesideARuleForAllMethods(t *testing.T) {
	get := func(headers ...string) Request { return Request{Method: "GET", Path: "/v1/config", Headers: headers} }
	const added = `200 {"idempotency-key-lifetime":"PT90S","a":1}`
	for _, rule := range []string{`{"methods":["*"],"path":"/other"}`, `{"methods":["GET"],"outcome_header":"x-outcome"}`, `{"methods":["*"],"mode":"body","key":{"json_path":"a"}}`} {
		playProtocol(t, `{"match":[`+rule+`,{"protocol":"iceberg","committed_ttl_seconds":90}]}`, []try{
			{what: rule, q: get(), status: 200, answer: `{"a":1}`, headers: []string{"content-type: application/json", "x-outcome: commit"}, want: added, has: []string{"idempotency-status: "}},
		})
	}
	playProtocol(t, `{"match":[{"methods":["GET"],"outcome_header":"x-outcome"},{"protocol":"iceberg"}]}`, []try{
		{what: "the outcome header", q: get(), status: 200, answer: `{"a":1}`, headers: []string{"content-type: application/json", "x-outcome: commit"}, want: "200 ", has: []string{"x-outcome: "}},
		{what: "a request with a key", q: Request{Method: "GET", Path: "/v1/config", Key: "k"}, status: 200, answer: `{"a":1}`, headers: []string{"content-type: application/json"}, want: `200 {"a":1}`, has: []string{"idempotency-status: executed"}},
	})
}

// An upstream that can continue gets the next try also after an answer that broke off.
func TestResumableAnswerThatBreaksOff(t *testing.T) {
	for name, config := range map[string]string{
		"held": `{"resumable":true}`, "copied": `{"resumable":true,"commit":"async"}`, "events": `{"resumable":true,"mode":"body","jsonrpc":true}`,
	} {
		each(t, func(t *testing.T, guest hostsim.Source) {
			for _, leaves := range []bool{false, true} {
				r := NewRig(t, guest, Options{Config: config, BodyMode: true})
				q := Request{Key: "k", Body: "b", Headers: []string{"authorization: a"}}
				x := r.Send(q)
				x.Upstream.AwaitHeaders(t)
				x.UpstreamSelected("192.0.2.9:80")
				h := hostsim.H(":status", "200")
				if name == "events" {
					h.Set("content-type", "text/event-stream")
				}
				x.ResponseHeaders(h, false)
				x.ResponseData([]byte("half"), false)
				if leaves {
					x.Leave()
				} else {
					x.UpstreamFailed(hostsim.UpstreamDisconnected, "")
					x.Over()
				}
				r.Settle()
				play(t, r, []try{{what: name, q: q, status: 200, answer: "whole", want: "200 whole"}, {what: name + ", replay", q: q, want: "200 whole"}})
			}
		})
	}
}
