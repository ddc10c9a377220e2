package e2e

import (
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/managertest/calls"
	"github.com/oncegate/oncegate/manager/managertest/tracetest"
)

func postTraced(t *testing.T, url, traceparent, body string) string {
	t.Helper()
	req, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if traceparent != "" {
		req.Header.Set("Traceparent", traceparent)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode > 299 {
		t.Fatalf("%d %v %s", resp.StatusCode, err, text)
	}
	return string(text)
}

// of accepts spans of a trace.
func of(trace string) func(*tracev1.Span) bool {
	return func(s *tracev1.Span) bool { return hex.EncodeToString(s.TraceId) == trace }
}

// Spans of calls, alone and on a stream, continue the traces that callers name, and times have exemplars. All spans are
// there when the manager has ended, though the batch of spans was not due for an hour.
func TestSpansReachTheCollector(t *testing.T) {
	t.Parallel()
	collector := tracetest.New(t)
	env := environ{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_SERVICE_NAME=ledger-of-test", "OTEL_BSP_SCHEDULE_DELAY=3600000"}
	p := env.startManager(t, "--store", "memory", "--admin", "127.0.0.1:0")
	const alone, first, second, parent = "0123456789abcdef0123456789abcdef", "11111111111111111111111111111111", "22222222222222222222222222222222", "aaaaaaaaaaaaaaaa"
	traceparent := func(trace string) string { return "00-" + trace + "-" + parent + "-01" }
	postTraced(t, "http://"+p.addr["api"]+"/v1/ledger/reserve", traceparent(alone), `{"key":"k","token":"t"}`)
	gate, err := calls.Open(t.Context(), "http://"+p.addr["api"])
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	reserve := func(key, trace string) calls.Call {
		return calls.Call{Op: api.OpReserve, Trace: [][2]string{{"traceparent", traceparent(trace)}}, Message: (&api.ReserveRequest{Key: key, Token: "t"}).AppendRaw(nil)}
	}
	if replies, err := gate.Do(reserve("a", first), reserve("b", second)); err != nil || replies[0].Status != 201 || replies[1].Status != 201 {
		t.Fatalf("%+v, %v", replies, err)
	}
	gate.CloseSend()
	req, _ := http.NewRequest("GET", "http://"+p.addr["admin"]+"/metrics", nil)
	req.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	metrics, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if !strings.Contains(string(metrics), `trace_id="`+alone+`"`) {
		t.Errorf("no exemplar names the trace")
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr)
	}
	server := collector.Await(t, "POST /v1/ledger/reserve", of(alone))
	if hex.EncodeToString(server.ParentSpanId) != parent || server.Kind != tracev1.Span_SPAN_KIND_SERVER || tracetest.Attribute(server, "http.route") != "/v1/ledger/reserve" {
		t.Errorf("%v", server)
	}
	call := collector.Await(t, "ledger reserve", of(alone))
	if string(call.ParentSpanId) != string(server.SpanId) || tracetest.Attribute(call, "oncegate.ledger.state") != "reserved" {
		t.Errorf("%v", call)
	}
	stream := collector.Await(t, "POST "+api.PathCalls, func(*tracev1.Span) bool { return true })
	for _, trace := range []string{first, second} {
		item := collector.Await(t, "ledger reserve", of(trace))
		if hex.EncodeToString(item.ParentSpanId) != parent || len(item.Links) != 1 || string(item.Links[0].SpanId) != string(stream.SpanId) {
			t.Errorf("%v", item)
		}
	}
	if !collector.Service("ledger-of-test") {
		t.Error("the service's name is another one")
	}
	if s := collector.Spans("GET /readyz"); len(s) != 0 {
		t.Errorf("health has spans: %v", s)
	}
}

// No span shows a key that a body or a path names, and the spans of the server have the attributes that the
// semantic conventions for HTTP require.
func TestSpansShowNoKey(t *testing.T) {
	t.Parallel()
	collector := tracetest.New(t)
	env := environ{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_BSP_SCHEDULE_DELAY=3600000"}
	p := env.startManager(t, "--store", "memory")
	url := "http://" + p.addr["api"]
	postTraced(t, url+"/v1/ledger/reserve", "", `{"key":"secret","token":"t"}`)
	for _, path := range []string{"/v1/ledger/entries/secret", "/v1/ledger/entries/secret/history"} {
		resp, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr)
	}
	for _, name := range []string{"POST /v1/ledger/reserve", "GET /v1/ledger/entries/{key}", "GET /v1/ledger/entries/{key}/history", "ledger reserve"} {
		s := collector.Await(t, name, func(*tracev1.Span) bool { return true })
		if strings.Contains(s.String(), "secret") {
			t.Errorf("%v", s)
		}
		if s.Kind == tracev1.Span_SPAN_KIND_SERVER && (tracetest.Attribute(s, "url.scheme") != "http" || tracetest.Attribute(s, "url.path") == "") {
			t.Errorf("%v", s)
		}
	}
}

// The producer's span continues the trace of the submission. Each delivery and each attempt has a span of a consumer,
// linked to the producer's, which the claim names to the worker.
func TestSpansOfJobsAreLinked(t *testing.T) {
	t.Parallel()
	collector := tracetest.New(t)
	env := environ{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_BSP_SCHEDULE_DELAY=3600000"}
	p := env.startManager(t, "--store", "memory")
	const trace, parent = "0123456789abcdef0123456789abcdef", "aaaaaaaaaaaaaaaa"
	url := "http://" + p.addr["api"] + "/v1/jobs"
	submitted := postTraced(t, url, "00-"+trace+"-"+parent+"-01", `{"function":"mail.send","id":"a","payload":"secret"}`)
	if strings.Contains(submitted, "traceparent") {
		t.Errorf("the answer to the submission, which may be recorded: %s", submitted)
	}
	postTraced(t, url+"/batch", "00-"+trace+"-"+parent+"-01", `{"items":[{"function":"mail.later","id":"b"},{"function":"mail.later","id":"c"}]}`)
	var tokens, named []string
	for range 2 {
		var claimed struct{ Jobs []client.Job }
		answer := postTraced(t, url+"/claim", "", `{"worker":"w","functions":["mail.send"]}`)
		if err := json.Unmarshal([]byte(answer), &claimed); err != nil || len(claimed.Jobs) != 1 {
			t.Fatalf("%v: %s", err, answer)
		}
		token := claimed.Jobs[0].Lease.Token
		if tokens, named = append(tokens, token), append(named, claimed.Jobs[0].Traceparent); len(tokens) == 1 {
			postTraced(t, url+"/a/retry", "", `{"lease_token":"`+token+`","delay_ms":0,"error":"secret"}`)
		} else {
			postTraced(t, url+"/a/finish", "", `{"lease_token":"`+token+`","status":"complete","result":"secret"}`)
		}
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr)
	}

	server := collector.Await(t, "POST /v1/jobs", of(trace))
	producer := collector.Await(t, "submit mail.send", of(trace))
	if producer.Kind != tracev1.Span_SPAN_KIND_PRODUCER || string(producer.ParentSpanId) != string(server.SpanId) || tracetest.Attribute(producer, "oncegate.submission.outcome") != "created" {
		t.Errorf("%v", producer)
	}
	context := "00-" + trace + "-" + hex.EncodeToString(producer.SpanId) + "-01"
	if named[0] != context || named[1] != context {
		t.Errorf("the worker gets %q, want %q", named, context)
	}
	items := collector.Spans("submit mail.later")
	if len(items) != 2 || tracetest.Attribute(items[0], "messaging.operation.type") != "create" || string(items[0].SpanId) == string(items[1].SpanId) {
		t.Errorf("items of a batch: %v", items)
	}
	claims, attempts := collector.Spans("claim mail.send"), collector.Spans("process mail.send")
	if len(claims) != 2 || len(attempts) != 2 {
		t.Fatalf("%d claims, %d attempts", len(claims), len(attempts))
	}
	for i, s := range append(claims, attempts...) {
		if s.Kind != tracev1.Span_SPAN_KIND_CONSUMER || len(s.Links) != 1 || string(s.Links[0].SpanId) != string(producer.SpanId) || string(s.Links[0].TraceId) != string(producer.TraceId) {
			t.Errorf("%v", s)
		}
		if n := number(s, "oncegate.job.attempt"); n != int64(i%2+1) || s.EndTimeUnixNano < s.StartTimeUnixNano {
			t.Errorf("attempt %d of %v", n, s)
		}
	}
	if attempts[0].Status.GetCode() != tracev1.Status_STATUS_CODE_ERROR || attempts[1].Status.GetCode() != tracev1.Status_STATUS_CODE_UNSET {
		t.Errorf("%v", attempts)
	}
	for _, s := range append(claims, attempts[0], attempts[1], producer) {
		for name, want := range map[string]string{"messaging.system": "oncegate", "messaging.destination.name": "mail.send", "messaging.message.id": "a"} {
			if got := tracetest.Attribute(s, name); got != want {
				t.Errorf("%s of %s: %q", name, s.Name, got)
			}
		}
		if strings.Contains(s.String(), "secret") {
			t.Errorf("%v", s)
		}
	}
}

func number(s *tracev1.Span, name string) int64 {
	for _, a := range s.Attributes {
		if a.Key == name {
			return a.Value.GetIntValue()
		}
	}
	return 0
}

// A collector that takes connections and never answers costs spans, not calls, and the manager ends.
func TestCollectorThatHangsSlowsNothing(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	env := environ{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + ln.Addr().String(), "OTEL_BSP_SCHEDULE_DELAY=1", "OTEL_BSP_MAX_QUEUE_SIZE=4",
		"OTEL_BSP_MAX_EXPORT_BATCH_SIZE=2"}
	p := env.startManager(t, "--store", "memory")
	for range 300 {
		postTraced(t, "http://"+p.addr["api"]+"/v1/ledger/reserve", "", `{"key":"k","token":"t"}`)
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr)
	}
	if !strings.Contains(p.stderr.String(), "spans do not reach the collector") {
		t.Errorf("the log does not say it: %s", p.stderr)
	}
}
