package gatetest

import (
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// What records and replays leave out (response, replay, problems).

// The first caller gets the upstream's headers, retries get those that the route keeps.
func TestReplayHasTheHeadersThatTheRouteKeeps(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for config, kept := range map[string]string{
			`{}`:                               "location x-a x-b original-date",
			`{"response":{"drop_headers":[]}}`: "location set-cookie x-a x-b original-date",
			`{"ledger":"none","response":{"keep_headers":["x-*"],"drop_headers":["X-B","original-date"]}}`: "x-a",
			`{"mode":"body","response":{"keep_headers":["location"]}}`:                                     "location original-date",
		} {
			r := NewRig(t, guest, Options{Config: config, BodyMode: true})
			x := r.Send(Request{Key: "k", Body: "b"})
			headers := []string{"content-type: a/b", "location: /p/1", "set-cookie: a=1", "set-cookie: b=2", "x-a: 1", "x-b: 2", "date: Thu, 01 Jan 1970 00:00:00 GMT"}
			x.Answer(201, "answer", headers...)
			first := x.Response()
			for _, line := range headers {
				name, value, _ := strings.Cut(line, ": ")
				want(t, config+": first "+name, strings.Contains(strings.Join(first.Headers.Values(name), "|"), value), true)
			}
			want(t, config+": the first has an original date", first.Headers.Has("original-date"), false)
			r.Settle()
			p := r.Send(Request{Key: "k", Body: "b"}).Response()
			want(t, config, p.Status+" "+p.Body+" "+p.Header("content-type")+" "+p.Header("idempotent-replayed"), "201 answer a/b true")
			for _, name := range []string{"location", "set-cookie", "x-a", "x-b", "original-date"} {
				want(t, config+": "+name, p.Headers.Has(name), strings.Contains(kept, name))
			}
			if strings.Contains(kept, "original-date") {
				want(t, config, p.Header("original-date"), "Thu, 01 Jan 1970 00:00:00 GMT")
			}
		}
	})
}

// The lists of headers concern trailers as well: when an answer is recorded, and when a record of other settings is replayed.
func TestReplayHasTheTrailersThatTheRouteKeeps(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		all := NewRig(t, guest, Options{Config: `{"response":{"drop_headers":[]}}`})
		for config, kept := range map[string]string{
			`{}`:                                    "x-a: 1, x-b: 2",
			`{"response":{"drop_headers":["x-a"]}}`: "set-cookie: a=1, x-b: 2",
			`{"response":{"keep_headers":["x-b"]}}`: "x-b: 2",
			`{"response":{"drop_headers":["*"]}}`:   "",
		} {
			own := NewRig(t, guest, Options{Config: config})
			for _, r := range []*Rig{own, all} {
				x := r.Send(Request{Key: config})
				x.Upstream.AwaitHeaders(t)
				x.ResponseHeaders(hostsim.H(":status", "200"), false)
				x.ResponseData([]byte("answer"), false)
				x.ResponseTrailers(hostsim.H("x-a", "1", "set-cookie", "a=1", "x-b", "2"))
				want(t, config+": first", x.Response().Trailers, "x-a: 1, set-cookie: a=1, x-b: 2")
				r.Settle()
			}
			for _, manager := range []*Rig{own, all} {
				r := NewRig(t, guest, Options{Config: config, Manager: manager.Manager, Clock: manager.Clock})
				p := r.Send(Request{Key: config}).Response()
				want(t, config, p.Body+" "+p.Trailers+" "+p.Header("idempotency-trailers"), "answer "+kept+" ")
			}
			_, record := own.Manager.State(config)
			recorded := slices.ContainsFunc(record.Headers, func(h api.Header) bool { return strings.HasSuffix(h.Name, "set-cookie") })
			want(t, config+": recorded", recorded, strings.Contains(kept, "set-cookie"))
		}
	})
}

// Another gate of the same ledger has other settings: they count at its replays.
func TestKeptHeadersCountAtReplays(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		all := NewRig(t, guest, Options{Config: `{"response":{"drop_headers":[]}}`})
		x := all.Send(Request{Key: "k"})
		x.Answer(200, "answer", "set-cookie: a=1", "x-a: 1", "content-encoding: identity", "x-replayed: by upstream")
		x.Response()
		all.Settle()
		for config, want2 := range map[string]string{
			`{}`: "answer|identity||1||true|",
			`{"response":{"body":"none","drop_headers":[]},"replay":{"header":"X-Replayed"}}`: "||a=1|1|omitted||true",
		} {
			r := NewRig(t, guest, Options{Config: config, Manager: all.Manager, Clock: all.Clock})
			p := r.Send(Request{Key: "k"}).Response()
			got := []string{p.Body}
			for _, name := range []string{"content-encoding", "set-cookie", "x-a", "idempotency-body", "idempotent-replayed"} {
				got = append(got, strings.Join(p.Headers.Values(name), ","))
			}
			if strings.Contains(config, "X-Replayed") {
				got = append(got, strings.Join(p.Headers.Values("x-replayed"), ","))
			} else {
				got = append(got, "")
			}
			want(t, config, strings.Join(got, "|"), want2)
		}
		want(t, "original date of an answer without a date", all.Send(Request{Key: "k"}).Response().Header("original-date"), "Fri, 02 Jan 2026 03:04:05 GMT")
	})
}

// With body none the first caller gets the whole answer, whatever its size is, and retries its head.
func TestBodiesThatAreNotRecorded(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, config := range []string{`"mode":"headers"`, `"mode":"body"`, `"ledger":"none"`, `"commit":"async"`, `"max_response_body_bytes":3`} {
			r := NewRig(t, guest, Options{Config: `{` + config + `,"response":{"body":"none"}}`, BodyMode: true})
			x := r.Send(Request{Key: "k", Body: "b"})
			x.Answer(201, "answer", "content-type: a/b", "content-encoding: gzip", "location: /p/1")
			first := x.Response()
			want(t, config, first.Body+" "+first.Header("content-type")+" "+first.Header("idempotency-status"), "answer a/b executed")
			r.Settle()
			p := r.Send(Request{Key: "k", Body: "b"}).Response()
			want(t, config, p.Status+" "+p.Body+" "+p.Header("location")+" "+p.Header("idempotency-body")+" "+p.Header("idempotent-replayed"), "201  /p/1 omitted true")
			want(t, config+": describes a body", p.Headers.Has("content-type") || p.Headers.Has("content-encoding"), false)
			// An answer that had no body is whole.
			x = r.Send(Request{Key: "empty"})
			x.Answer(204, "")
			x.Response()
			r.Settle()
			p = r.Send(Request{Key: "empty"}).Response()
			want(t, config, p.Status+" "+p.Header("idempotency-body"), "204 ")
			want(t, config, r.Metric("oncegate_gate_outcomes_oversize_total"), 0)
		}
	})
}

// A call of the gate's own records the same.
func TestCarriedAnswersThatAreNotRecordedWhole(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r, b := abortRig(t, guest, Options{Config: `{"mode":"body","client_abort":"continue","response":{"body":"none","drop_headers":["x-a"]},"replay":{"header":"replayed"}}`})
		x := r.Send(Request{Key: "k", Body: "pay"})
		b.await(t, 0).answer(upstream(200, "answer", "content-type: a/b", "x-a: 1", "x-b: 2"))
		first := x.Response()
		want(t, "first", first.Body+" "+first.Header("x-a"), "answer 1")
		r.Settle()
		p := r.Send(Request{Key: "k", Body: "pay"}).Response()
		want(t, "retry", p.Status+p.Body+" "+p.Header("x-b")+" "+p.Header("idempotency-body")+" "+p.Header("replayed"), "200 2 omitted true")
		want(t, "dropped", p.Headers.Has("x-a") || p.Headers.Has("idempotent-replayed"), false)
	})
}

func TestProblemsNameTheirDocumentation(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"key":{"required":true},"match":[
			{"path":"/docs","problems":{"type_base":"https://docs.test/#","docs_url":"https://docs.test/keys"}},{}]}`})
		p := r.Send(Request{Path: "/docs"}).Response()
		want(t, "problem", p.Problem(t), "key-required")
		want(t, "type", strings.Contains(p.Body, `"type":"https://docs.test/#key-required"`), true)
		want(t, "link", p.Header("link"), `<https://docs.test/keys>; rel="describedby"; type="text/html"`)
		p = r.Send(Request{}).Response()
		want(t, "default type", strings.Contains(p.Body, `"type":"urn:oncegate:problem:key-required"`), true)
		want(t, "link", p.Headers.Has("link"), false)
	})
}
