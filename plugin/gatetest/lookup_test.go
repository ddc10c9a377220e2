package gatetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

const lookupConfig = `"lookup":{"path":"/lost"}`

// asked is the look-up of a lost POST to /payments.
func asked(r *Rig, key string, headers ...string) *Exchange {
	r.Helper()
	return r.Open(Request{Method: "GET", Path: "/lost?path=%2Fpayments", Key: key, Headers: headers}, true)
}

// A look-up shows each state, in each mode and with each ledger, and nothing reaches the upstream.
func TestLookUp(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, config := range []string{`"mode":"headers"`, `"mode":"body"`, `"ledger":"none"`, `"ledger":"upstream"`} {
			r := NewRig(t, guest, Options{Config: `{` + lookupConfig + `,` + config + `}`, BodyMode: true})
			alice := []string{"authorization: Bearer alice"}
			look := func(key string, headers ...string) Response {
				x := asked(r, key, headers...)
				a := x.Response()
				want(t, config+": upstream called", x.Upstream.Begun(), false)
				return a
			}
			want(t, config, look("k", alice...).Problem(t), "not-found")
			x := r.Send(Request{Key: "k", Body: "b", Headers: alice})
			x.Upstream.AwaitHeaders(r)
			a := look("k", alice...)
			want(t, config, a.Status+" "+a.Body+" "+a.Header("content-type"), `202 {"state":"pending"} application/json`)
			x.Answer(201, "answer", "x-a: 1")
			want(t, config, x.Response().Status, "201")
			r.Settle()
			a = look("k", alice...)
			want(t, config, a.Status+" "+a.Body+" "+a.Header("x-a")+" "+a.Header("idempotent-replayed"), "201 answer 1 true")
			for _, other := range [][]string{nil, {"authorization: Bearer bob"}, {"authorization: Bearer alice", "authorization: Bearer bob"}} {
				a = look("k", other...)
				want(t, config+": another caller", a.Problem(t)+" "+a.Status, "not-found 404")
			}
			want(t, config+": another key", look("l", alice...).Problem(t), "not-found")
			want(t, config+": reserves", r.Manager.Count(api.PathReserve) <= 1, true)
			// The key is still free for those that found nothing.
			y := r.Send(Request{Key: "l", Body: "b", Headers: alice})
			y.Answer(201, "later")
			want(t, config, y.Response().Body, "later")
		}
	})
}

// No cache keeps the answer to a look-up, whatever the recorded answer says.
func TestLookUpsAreNotCached(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{` + lookupConfig + `}`})
		check := func(what string, a Response) {
			t.Helper()
			want(t, what+": cache-control", values(a, "cache-control"), "no-store")
			want(t, what+": expires", a.Header("expires"), "")
		}
		check("nothing is known", asked(r, "k").Response())
		x := r.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(r)
		check("it runs", asked(r, "k").Response())
		x.Answer(201, "answer", "cache-control: max-age=60", "cache-control: public", "expires: Fri, 01 Jan 2027 00:00:00 GMT", "x-a: 1")
		want(t, "the first answer", x.Response().Header("expires"), "Fri, 01 Jan 2027 00:00:00 GMT")
		r.Settle()
		a := asked(r, "k").Response()
		want(t, "found", a.Status+" "+a.Body+" "+a.Header("x-a"), "201 answer 1")
		check("recorded", a)
		check("no path", r.Open(Request{Method: "GET", Path: "/lost", Key: "k"}, true).Response())
		want(t, "a retry", values(r.Send(Request{Key: "k"}).Response(), "cache-control"), "max-age=60|public")
	})
}

// values joins the values of a header.
func values(a Response, name string) string {
	var all []string
	for _, h := range a.Headers {
		if h[0] == name {
			all = append(all, h[1])
		}
	}
	return strings.Join(all, "|")
}

// The path of a look-up is normalised as the proxy normalised that of the request.
func TestLookUpNormalisesThePath(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{` + lookupConfig + `}`})
		send := func(path, key string) {
			x := r.Send(Request{Path: path, Key: key})
			x.Answer(201, "answer")
			x.Response()
			r.Settle()
		}
		send("/payments/%C3%A9", "k")
		send("/payments/", "l")
		for path, key := range map[string]string{
			"/payments/%25C3%25A9": "k", "/payments/%25c3%25a9": "k", "//payments//%25C3%25A9": "k", "/x/../payments/./%25C3%25A9": "k",
			"/%252E%252e/payments/%25c3%25a9": "k", "/payments/": "l", "/payments/.": "l", "/payments//": "l", "/payments/x/..": "l", "/../payments/x/%252e%252E": "l",
		} {
			a := r.Open(Request{Method: "GET", Path: "/lost?path=" + path, Key: key}, true).Response()
			want(t, path, a.Status+" "+a.Body, "201 answer")
		}
		for _, path := range []string{"/payments", "/payments/x", "/"} {
			a := r.Open(Request{Method: "GET", Path: "/lost?path=" + path, Key: "l"}, true).Response()
			want(t, path, a.Status, "404")
		}
	})
}

// HEAD is GET without the body. Otherwise the upstream would say what it knows of the look-up's own path.
func TestLookUpByHead(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, config := range []string{`"mode":"headers"`, `"mode":"body","match":[{"methods":["*"]}]`} {
			r := NewRig(t, guest, Options{Config: `{` + lookupConfig + `,` + config + `}`, BodyMode: true})
			head := func(key string) string {
				x := r.Open(Request{Method: "HEAD", Path: "/lost?path=/payments", Key: key}, true)
				a := x.Response()
				want(t, "upstream called", x.Upstream.Begun(), false)
				want(t, "body", a.Body, "")
				return a.Status + " " + a.Header("idempotency-status") + " " + a.Header("content-length") + " " + a.Header("x-a")
			}
			want(t, "unknown", head("k")[:14], "404 not-found ")
			x := r.Send(Request{Key: "k"})
			x.Upstream.AwaitHeaders(r)
			want(t, "running", head("k"), "202 pending 19 ")
			x.UpstreamSelected("192.0.2.9:80")
			x.ResponseHeaders(hostsim.H(":status", "201", "x-a", "1"), false)
			x.ResponseData([]byte("answer"), false)
			x.ResponseTrailers(hostsim.H("x-trailer", "1"))
			x.Response()
			r.Settle()
			want(t, "recorded", head("k"), "201 replayed  1")
		}
	})
}

// Another gate, or one that lost its cache, asks the manager, which changes nothing.
func TestLookUpAsksTheManager(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		first := NewRig(t, guest, Options{Config: `{"pending_wait_timeout":1}`})
		r := NewRig(t, guest, Options{Config: `{` + lookupConfig + `}`, Manager: first.Manager, Clock: first.Clock})
		x := first.Send(Request{Key: "k", Headers: []string{"accept-encoding: gzip"}})
		x.Upstream.AwaitHeaders(first)
		want(t, "pending", asked(r, "k").Response().Status, "202")
		x.Answer(402, "refused", "content-encoding: gzip", "x-a: 1")
		x.Response()
		first.Settle()
		a := asked(r, "k", "accept-encoding: gzip").Response()
		want(t, "final", a.Status+" "+a.Body+" "+a.Header("x-a")+" "+a.Header("idempotent-replayed"), "402 refused 1 true")
		want(t, "encoding", asked(r, "k").Response().Problem(t), "encoding-not-accepted")
		want(t, "unknown key", asked(r, "l").Response().Problem(t), "not-found")
		y := first.Send(Request{Key: "gone"})
		y.Upstream.AwaitHeaders(first)
		y.Leave()
		first.Settle()
		want(t, "unknown outcome", asked(r, "gone").Response().Problem(t), "outcome-unknown")
		state, _ := r.Manager.State("l")
		want(t, "reserved", state, api.StateNone)
		r.Manager.FailNext(api.PathLookUp, Fault{Close: 16})
		want(t, "a manager that is away", asked(r, "k").Response().Problem(t), "manager-unavailable")
		// A client that leaves has no part in the answer.
		r.Manager.FailNext(api.PathLookUp, Fault{Hold: true})
		z := asked(r, "k")
		r.Settle()
		z.Leave()
		r.Manager.Release()
		want(t, "the next", asked(r, "k", "accept-encoding: gzip").Response().Status, "402")
	})
}

// A key that comes from several sources is looked up in the sources of the lost request. A caller cannot name
// another caller's joined key in a header.
func TestLookUpReadsTheSources(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{` + lookupConfig + `,"mode":"body","anonymous":"shared","scope":["host"],"match":[
			{"path_prefix":"/p/","key":{"sources":["header:idempotency-key","cookie:user","path:1","query:currency?"],"format":"pattern","pattern":"[a-z]{1,9}"}},
			{"path":"/query","key":{"sources":["query:id"]}},
			{"path":"/json","key":{"sources":["json:id"]}},
			{"path":"/both","key":{"sources":["header:idempotency-key","json:id"]}}]}`, BodyMode: true})
		alice, bob := []string{"cookie: user=alice"}, []string{"cookie: user=bob"}
		run := func(q Request) {
			x := r.Send(q)
			x.Answer(201, q.Path)
			x.Response()
			r.Settle()
		}
		run(Request{Path: "/p/7?currency=eur", Key: "k", Headers: alice})
		run(Request{Path: "/p/8", Key: "k", Headers: alice})
		run(Request{Path: "/query?id=9"})
		run(Request{Path: "/json", Body: `{"id":"k"}`})
		run(Request{Path: "/both", Key: "k", Body: `{"id":"k"}`})
		for _, c := range []struct {
			path, key string
			headers   []string
			want      string
		}{
			{"/p/7%3Fcurrency=eur", "k", alice, "/p/7?currency=eur"},
			{"/p/8", "k", alice, "/p/8"},
			{"/p/7", "k", alice, "not-found"},
			{"/p/8", "k", bob, "not-found"},
			{"/p/8", "k,alice,8,-", bob, "invalid-key"},
			{"/p/8", "", alice, "key-required"},
			{"/p/8", "k", nil, "key-required"},
			{"/query%3Fid=9", "", nil, "/query?id=9"},
			{"/query", "9", nil, "key-required"},
			{"/json", "k", nil, "/json"},
			{"/both", "k", nil, "invalid-request"},
			{"/both", "k,k", nil, "invalid-request"},
		} {
			a := r.Open(Request{Method: "GET", Path: "/lost?path=" + c.path, Key: c.key, Headers: c.headers}, true).Response()
			got := a.Body
			if a.Header("content-type") == api.ContentTypeProblem {
				got = a.Problem(t)
			}
			want(t, c.path+" "+c.key, got, c.want)
		}
	})
}

// Route and scope are those of the lost request.
func TestLookUpHasRouteAndScopeOfTheLostRequest(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{` + lookupConfig + `,"mode":"body","scope":["host","path_and_query","method"],"match":[
			{"methods":["PUT"],"path":"/put","key":{"header":"x-key"}},
			{"path":"/body","key":{"header":"","json_path":"id"}},{"path":"/payments"}]}`, BodyMode: true})
		run := func(q Request) {
			x := r.Send(q)
			x.Answer(201, q.Path)
			x.Response()
			r.Settle()
		}
		run(Request{Path: "/payments?a=1&b=%2F", Key: "k", Body: "b"})
		run(Request{Method: "PUT", Path: "/put", Headers: []string{"x-key: k"}, Body: "b"})
		run(Request{Path: "/body", Body: `{"id":"k"}`})
		for _, c := range []struct{ path, key, header, want string }{
			{"/lost?path=/payments%3Fa=1%26b=%252F", "k", "", "/payments?a=1&b=%2F"},
			{"/lost?path=/payments", "k", "", "not-found"},
			{"/lost?path=/put", "", "x-key: k", "/put"},
			{"/lost?method=PUT&path=/put", "", "x-key: k", "/put"},
			{"/lost?method=POST&path=/put", "", "x-key: k", "not-found"},
			{"/lost?path=/put", "k", "", "key-required"},
			{"/lost?path=/body", "k", "", "/body"},
			{"/lost?path=/elsewhere", "k", "", "not-found"},
			{"/lost", "k", "", "invalid-request"},
			{"/lost?path=", "k", "", "invalid-request"},
			{"/lost?path=put", "k", "", "invalid-request"},
			{"/lost?path=/put&path=/body", "k", "", "invalid-request"},
			{"/lost?path=/a%00", "k", "", "invalid-request"},
			{"/lost?path=/payments", "", "", "key-required"},
			{"/lost?path=/payments", "a,b", "", "invalid-key"},
		} {
			q := Request{Method: "GET", Path: c.path, Key: c.key}
			if c.header != "" {
				q.Headers = []string{c.header}
			}
			a := r.Open(q, true).Response()
			got := a.Body
			if a.Header("content-type") == api.ContentTypeProblem {
				got = a.Problem(t)
			}
			want(t, c.path, got, c.want)
		}
		// Other methods and paths pass.
		for _, q := range []Request{{Method: "GET", Path: "/lost/x"}, {Method: "GET", Path: "/losts"}, {Path: "/lost"}} {
			x := r.Open(q, true)
			x.Answer(200, "upstream")
			want(t, q.Path, x.Response().Body, "upstream")
		}
	})
}

// A look-up with wait_ms waits while the request runs, as a duplicate does: in the same VM, in another one, and at another gate.
func TestLookUpWaits(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, config := range []string{`"mode":"headers"`, `"mode":"body"`, `"ledger":"none"`, `"failure_mode":"open"`} {
			r := NewRig(t, guest, Options{Config: `{` + lookupConfig + `,` + config + `,"pending_wait_timeout":5}`, Workers: 2, BodyMode: true})
			far := NewRig(t, guest, Options{Config: `{` + lookupConfig + `,"pending_wait_timeout":5}`, Manager: r.Manager, Clock: r.Clock})
			wait := func(r *Rig, worker int, key, ms string) *Exchange {
				return r.Open(Request{Method: "GET", Path: "/lost?path=/payments&wait_ms=" + ms, Key: key, Worker: worker}, true)
			}
			x := r.Send(Request{Key: "k", Body: "b"})
			x.Upstream.AwaitHeaders(r)
			want(t, config+": no wait", wait(r, 0, "k", "0").Response().Status, "202")
			short := []*Exchange{wait(r, 0, "k", "1000"), wait(r, 1, "k", "1000")}
			long := []*Exchange{wait(r, 0, "k", "5000"), wait(r, 1, "k", "5000")}
			if config != `"ledger":"none"` {
				short, long = append(short, wait(far, 0, "k", "1000")), append(long, wait(far, 0, "k", "5000"))
			}
			r.Settle()
			far.Settle()
			want(t, config+": waiters", r.Metric("oncegate_gate_waiters"), 4)
			r.Clock.Advance(500 * time.Millisecond)
			for i, y := range short {
				want(t, fmt.Sprint(config, ": answered early ", i), y.Client.Begun(), false)
			}
			r.Clock.Advance(time.Second)
			for _, y := range short {
				a := y.Response()
				want(t, config+": time over", a.Status+" "+a.Body, `202 {"state":"pending"}`)
			}
			long[0].Leave()
			x.Answer(201, "answer")
			want(t, config, x.Response().Body, "answer")
			r.Settle()
			r.Clock.Advance(2 * time.Second)
			for i, y := range long[1:] {
				a := y.Response()
				want(t, fmt.Sprint(config, ": waited ", i), a.Status+" "+a.Body+" "+a.Header("idempotent-replayed"), "201 answer true")
				want(t, config+": upstream called", y.Upstream.Begun(), false)
			}
			want(t, config+": finished", wait(r, 0, "k", "5000").Response().Body, "answer")
			want(t, config+": waiters", r.Metric("oncegate_gate_waiters"), 0)
			want(t, config+": duplicates that waited", r.Metric("oncegate_gate_wait_milliseconds"), 0)
			want(t, config+": reserves", r.Manager.Count(api.PathReserve) <= 1, true)

			// The outcome may be another one than an answer.
			gone := r.Send(Request{Key: "gone", Body: "b"})
			gone.Upstream.AwaitHeaders(r)
			y := wait(r, 1, "gone", "5000")
			r.Settle()
			gone.Leave()
			want(t, config+": unknown outcome", y.Response().Problem(t), "outcome-unknown")
			free := r.Send(Request{Key: "free", Body: "b"})
			free.Upstream.AwaitHeaders(r)
			y = wait(r, 1, "free", "5000")
			r.Settle()
			free.Answer(429, "later")
			free.Response()
			want(t, config+": released", y.Response().Problem(t), "not-found")
		}
	})
}

// What a look-up may ask for, and where it does not wait.
func TestLookUpWaitIsBounded(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{` + lookupConfig + `,"pending_wait_timeout":1.5,"match":[{"path":"/no","wait_for_pending":false},{}]}`})
		look := func(path, query string) Response {
			return r.Open(Request{Method: "GET", Path: "/lost?path=" + path + query, Key: "k"}, true).Response()
		}
		for query, value := range map[string]string{
			"&wait_ms=1501": "1501", "&wait_ms=": "", "&wait_ms=-1": "-1", "&wait_ms=1.5": "1.5", "&wait_ms=1s": "1s", "&wait_ms=%22%0a": "??",
			"&wait_ms=1&wait_ms=1": "1", "&wait_ms=99999999999999999999": "99999999999999999999",
		} {
			a := look("/payments", query)
			want(t, query, a.Status+" "+a.Problem(t), "400 invalid-request")
			want(t, query, strings.Contains(a.Body, `wait_ms: \"`+value+`\"; allowed: once, a whole number from 0 to 1500`), true)
		}
		want(t, "nothing runs", look("/payments", "&wait_ms=1500").Problem(t), "not-found")
		x := r.Send(Request{Path: "/no", Key: "k"})
		x.Upstream.AwaitHeaders(r)
		want(t, "a route whose duplicates do not wait", look("/no", "&wait_ms=1500").Status, "202")
		x.Answer(201, "answer")
		want(t, "answer", x.Response().Body, "answer")
	})
}

// A look-up that waits for an attempt which does not get the key has an answer of its own, and never reaches the upstream.
func TestLookUpWaitsForAnAttemptThatFails(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, c := range []struct {
			mode  string
			fault Fault
			want  string
		}{
			{"closed", Fault{Status: 500, Hold: true}, "manager-unavailable"},
			{"open", Fault{Status: 500, Hold: true}, "not-found"}, // the attempt runs unprotected
			{"open", Fault{Status: 503, Code: api.CodeQuarantine, Hold: true}, "quarantine"},
		} {
			r := NewRig(t, guest, Options{Config: `{` + lookupConfig + `,"failure_mode":"` + c.mode + `"}`})
			r.Manager.FailNext(api.PathReserve, c.fault)
			x := r.Send(Request{Key: "k"})
			r.Settle()
			y := r.Open(Request{Method: "GET", Path: "/lost?path=/payments&wait_ms=9000", Key: "k"}, true)
			r.Settle()
			want(t, "waiters", r.Metric("oncegate_gate_waiters"), 1)
			r.Manager.Release()
			if c.want == "not-found" {
				x.Answer(200, "unprotected")
			}
			x.Response()
			want(t, c.mode, y.Response().Problem(t), c.want)
			want(t, "upstream called", y.Upstream.Begun(), false)
		}
	})
}
