package gatetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// frame is a gRPC message.
func frame(text string) []byte {
	return append([]byte{0, 0, 0, 0, byte(len(text))}, text...)
}

// grpcRig starts a gate that protects unary calls.
func grpcRig(t testing.TB, guest hostsim.Source, more string) *Rig {
	return NewRig(t, guest, Options{Config: `{"mode":"body","grpc":"unary"` + more + `}`, BodyMode: true})
}

// rpc starts a call whose body comes in pieces.
func (r *Rig) rpc(key string, pieces ...[]byte) *Exchange {
	r.Helper()
	x := r.Open(Request{Key: key, Path: "/p.Pay/Do", Protocol: "HTTP/2", Headers: []string{"content-type: application/grpc+proto", "te: trailers",
		"authorization: Bearer a", "cookie: a=b", "cookie: c=d", "x-api-key: a", "x-forwarded-access-token: a", "x-forwarded-client-cert: Hash=a"}}, false)
	for i, piece := range pieces {
		x.RequestData(piece, i == len(pieces)-1)
	}
	return x
}

// grpcAnswer lets upstream answer with a message and trailers.
func (x *Exchange) grpcAnswer(text string, trailers ...string) {
	x.rig.Helper()
	want(x.rig, "path", x.Upstream.AwaitHeaders(x.rig).Get(":path"), "/p.Pay/Do")
	x.UpstreamSelected("192.0.2.9:80")
	x.ResponseHeaders(hostsim.H(":status", "200", "content-type", "application/grpc+proto", "x-first", "a", "x-first", "b"), false)
	x.ResponseData(frame(text), false)
	x.ResponseTrailers(hostsim.H(trailers...))
}

// blank answers a request that the gate sent to the route for recorded answers.
func (x *Exchange) blank() {
	x.rig.Helper()
	h := x.Upstream.AwaitHeaders(x.rig)
	want(x.rig, "rewritten to", h.Get(":path")+" "+h.Get("content-type"), "/oncegate/answer application/octet-stream")
	for _, name := range []string{"authorization", "cookie", "x-api-key", "x-forwarded-access-token", "x-forwarded-client-cert", "idempotency-key", "te"} {
		want(x.rig, name, h.Get(name), "")
	}
	want(x.rig, "x-forwarded-proto", h.Get("x-forwarded-proto"), "http")
	want(x.rig, "there is an x-request-id", h.Get("x-request-id") != "", true)
	x.UpstreamSelected("192.0.2.9:80")
	x.ResponseHeaders(hostsim.H(":status", "200", "content-length", "1", "oncegate-blank", "1", "x-other", "1"), false)
	x.ResponseData([]byte("-"), false)
	x.ResponseData(nil, true)
}

// shown is what a client sees of an answer, apart from the marks.
func (p Response) shown() string {
	var headers []string
	for _, h := range p.Headers {
		if !strings.HasPrefix(h[0], "idempote") && h[0] != "original-date" {
			headers = append(headers, h[0]+": "+h[1])
		}
	}
	return fmt.Sprintf("%s %q %s", strings.Join(headers, ", "), p.Body, p.Trailers)
}

// The recorded message and trailers replace a blank, from the cache, from the ledger, and for a call that waited.
func TestUnaryGRPC(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := grpcRig(t, guest, "")
		x := r.rpc("k", frame("pay")[:3], frame("pay")[3:], nil)
		x.Upstream.AwaitHeaders(t)
		waiting := r.rpc("k", frame("pay"), nil)
		r.Settle()
		want(t, "the duplicate ran", waiting.Upstream.Begun(), false)
		x.grpcAnswer("paid", "grpc-status", "0", "x-sum", "1", "x-sum", "2")
		first := x.Response()
		want(t, "first", first.Header("idempotency-status")+" "+first.Trailers, "executed grpc-status: 0, x-sum: 1, x-sum: 2")
		for _, x := range []*Exchange{waiting, r.rpc("k", frame("pay"))} {
			x.blank()
			p := x.Response()
			want(t, "replay", p.shown(), first.shown())
			want(t, "marks", p.Header("idempotency-status")+p.Header("idempotent-replayed"), "replayedtrue")
		}
		// Another gate has only the ledger.
		other := NewRig(t, guest, Options{Config: `{"mode":"body","grpc":"unary"}`, BodyMode: true, Manager: r.Manager, Clock: r.Clock})
		y := other.rpc("k", frame("pay"))
		y.blank()
		want(t, "replay from the ledger", y.Response().shown(), first.shown())
		want(t, "mismatch", grpcProblem(r.rpc("k", frame("PAY"))), "3 fingerprint-mismatch")
	})
}

// grpcProblem is the status and the mark of a refusal.
func grpcProblem(x *Exchange) string {
	p := x.Response()
	return p.Header("grpc-status") + " " + p.Header("idempotency-status")
}

// An answer without a message is replayed as a local reply.
func TestUnaryGRPCWithoutMessage(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := grpcRig(t, guest, "")
		x := r.rpc("k", frame("pay"))
		x.Upstream.AwaitHeaders(t)
		x.ResponseHeaders(hostsim.H(":status", "200", "content-type", "application/grpc", "grpc-status", "9", "grpc-message", "no%20funds"), true)
		first := x.Response()
		want(t, "first", first.Header("grpc-status"), "9")
		r.Settle()
		p := r.rpc("k", frame("pay")).Response()
		want(t, "replay", p.Header("grpc-status")+" "+p.Header("grpc-message")+" "+p.Header("idempotency-status"), "9 no%20funds replayed")
		want(t, "calls to the manager", r.Manager.Count(api.PathReject), 1)
	})
}

// What is not one message in each direction with a status at its end.
func TestUnaryGRPCOnly(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := grpcRig(t, guest, `,"unknown_ttl_seconds":60`)
		for name, pieces := range map[string][][]byte{
			"two messages":     {frame("a"), frame("b"), nil},
			"two in one piece": {append(frame("a"), frame("b")...)},
			"less than one":    {frame("abc")[:7]},
			"no message":       {nil},
		} {
			want(t, name, grpcProblem(r.rpc("k", pieces...)), "12 unsupported-protocol")
		}
		// gRPC-Web is another protocol.
		p := r.Send(Request{Key: "k", Headers: []string{"content-type: application/grpc-web"}}).Response()
		want(t, "gRPC-Web", p.Problem(t), "unsupported-protocol")
		// Without a key nothing is held.
		x := r.rpc("", frame("a"))
		x.Upstream.AwaitBody(t, 6)
		x.ClientReset()
		x.Over()
		// An answer without a status: its outcome is unknown.
		x = r.rpc("nostatus", frame("a"))
		x.Upstream.AwaitHeaders(t)
		x.ResponseHeaders(hostsim.H(":status", "200", "content-type", "application/grpc"), false)
		x.ResponseData(frame("b"), true)
		x.Response()
		r.Settle()
		want(t, "no status", grpcProblem(r.rpc("nostatus", frame("a"))), "10 outcome-unknown")
	})
}

// An answer whose status did not come has an unknown outcome, also if its message is whole: a replay would have no status.
func TestUnaryGRPCBrokenOffBeforeItsStatus(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, more := range []string{"", `,"commit":"async"`} {
			r := grpcRig(t, guest, more)
			x := r.rpc("k", frame("pay"))
			x.Upstream.AwaitHeaders(t)
			x.UpstreamSelected("192.0.2.9:80")
			x.ResponseHeaders(hostsim.H(":status", "200", "content-type", "application/grpc", "content-length", "9"), false)
			x.ResponseData(frame("paid"), false)
			x.Leave()
			r.Settle()
			want(t, "retry"+more, grpcProblem(r.rpc("k", frame("pay"))), "10 outcome-unknown")
			// A retry cannot wait for a status that is not in the record.
			x = r.rpc("full", frame("pay"))
			x.grpcAnswer("paid", "grpc-status", "0", "x-long", strings.Repeat("x", 64<<10))
			x.Response()
			r.Settle()
			want(t, "trailers without room"+more, grpcProblem(r.rpc("full", frame("pay"))), "6 answer-not-recorded")
		}
	})
}

// A compressed message goes only to a client that can read it.
func TestUnaryGRPCCompressed(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := grpcRig(t, guest, "")
		call := func(key string, headers ...string) *Exchange {
			x := r.Open(Request{Key: key, Path: "/p.Pay/Do", Protocol: "HTTP/2", Headers: append(headers, "content-type: application/grpc", "te: trailers")}, false)
			x.RequestData(frame("pay"), true)
			return x
		}
		for key, flag := range map[string]byte{"compressed": 1, "plain": 0} {
			x := call(key, "grpc-accept-encoding: gzip, deflate")
			x.Upstream.AwaitHeaders(t)
			x.UpstreamSelected("192.0.2.9:80")
			x.ResponseHeaders(hostsim.H(":status", "200", "content-type", "application/grpc", "grpc-encoding", "gzip"), false)
			x.ResponseData(append([]byte{flag}, frame("paid")[1:]...), false)
			x.ResponseTrailers(hostsim.H("grpc-status", "0"))
			x.Response()
			r.Settle()
			x = call(key, "grpc-accept-encoding: identity,gzip")
			x.blank()
			want(t, key, x.Response().Header("grpc-encoding"), "gzip")
			x = call(key)
			if flag == 1 {
				want(t, key+" for another client", grpcProblem(x), "9 encoding-not-accepted")
			} else {
				x.blank()
				want(t, key, x.Response().Trailers, "grpc-status: 0")
			}
		}
	})
}

// A host that does not lead the gate's path to a blank never runs the call again, and leaks nothing when clients leave.
func TestUnaryGRPCWithoutBlank(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := grpcRig(t, guest, "")
		x := r.rpc("k", frame("pay"))
		x.grpcAnswer("paid", "grpc-status", "0")
		x.Response()
		r.Settle()
		for _, end := range []bool{true, false} {
			x = r.rpc("k", frame("pay"))
			x.Upstream.AwaitHeaders(t)
			x.UpstreamSelected("192.0.2.9:80")
			x.ResponseHeaders(hostsim.H(":status", "415"), end)
			want(t, "no blank", grpcProblem(x), "13 internal")
			// Another proxy on the way, which does not reach the manager.
			x = r.rpc("k", frame("pay"))
			x.Upstream.AwaitHeaders(t)
			x.UpstreamSelected("192.0.2.9:80")
			x.ResponseHeaders(hostsim.H(":status", "503"), end)
			want(t, "away behind another proxy", grpcProblem(x), "14 unavailable")
		}
		x = r.rpc("k", frame("pay"))
		x.Upstream.AwaitHeaders(t)
		x.UpstreamFailed(hostsim.UpstreamNoHealthy, "")
		want(t, "nowhere to go", grpcProblem(x), "14 unavailable")
		x = r.rpc("k", frame("pay"))
		x.Upstream.AwaitHeaders(t)
		x.Leave()
		x = r.rpc("k", frame("pay"))
		x.blank()
		want(t, "later", x.Response().Trailers, "grpc-status: 0")
	})
}

// A client that asks for the path of recorded answers gets no further, because what serves it waits for the request's
// end. A gate in front of this one has sent its own requests there.
func TestClientsDoNotReachRecordedAnswers(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := grpcRig(t, guest, `,"match":[{"path_prefix":"/p.Pay/","grpc":"unary"},{"methods":["PUT"],"grpc":"none"}]`)
		for _, path := range []string{"/oncegate/answer", "/oncegate/answer?a=b", "/Oncegate/ANSWER#a", "/oncegate/answer;a=b", "/oncegate/blank"} {
			for _, method := range []string{"POST", "GET", "PUT"} {
				for _, key := range []string{"", "k"} {
					x := r.Open(Request{Method: method, Path: path, Key: key, Headers: []string{"content-length: 3000000"}}, false)
					r.Clock.Advance(time.Second)
					p := x.Response()
					want(t, method+" "+path, p.Status+" "+p.Problem(t), "404 not-found")
					want(t, path+" reached upstream", x.Upstream.Begun(), false)
				}
			}
		}
		x := r.Open(Request{Path: "/oncegate/answer", Protocol: "HTTP/2", Headers: []string{"content-type: application/grpc"}}, false)
		r.Clock.Advance(time.Second)
		want(t, "a gRPC call", grpcProblem(x), "12 not-found")
		for _, path := range []string{"/oncegate/answers", "/oncegate/answer/", "/oncegate", "/a/oncegate/answer"} {
			x := r.Open(Request{Path: path}, true)
			x.Upstream.AwaitHeaders(t)
			x.Answer(200, "")
			want(t, path, x.Response().Status, "200")
		}
		x = r.Open(Request{Path: "/oncegate/answer", Properties: map[string][]byte{"oncegate.status": []byte("replayed")}}, true)
		x.Upstream.AwaitHeaders(t)
		x.Answer(200, "-")
		want(t, "another gate's", x.Response().Body, "-")
		// The shipped configurations have the path without a rule for gRPC as well.
		x = NewRig(t, guest, Options{}).Open(Request{Method: "GET", Path: "/oncegate/answer"}, true)
		want(t, "without grpc", x.Response().Status, "404")
	})
}

// A crowd that waits for one answer gets it, in several callbacks.
func TestUnaryGRPCCrowd(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := grpcRig(t, guest, "")
		x := r.rpc("k", frame("pay"))
		x.Upstream.AwaitHeaders(t)
		var crowd []*Exchange
		for range 100 {
			crowd = append(crowd, r.rpc("k", frame("pay")))
		}
		r.Settle()
		x.grpcAnswer("paid", "grpc-status", "0")
		x.Response()
		for _, c := range crowd {
			c.blank()
			want(t, "body", c.Response().Body, string(frame("paid")))
		}
	})
}
