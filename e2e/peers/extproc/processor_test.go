package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/oncegate/oncegate/manager/managertest/ports"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// envoy plays Envoy's part: a stream for each request.
type envoy struct {
	t      *testing.T
	client extproc.ExternalProcessorClient
}

func newEnvoy(t *testing.T) *envoy {
	port, err := ports.Hold()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(port.Release)
	host, number, err := net.SplitHostPort(port.Address)
	if err != nil {
		t.Fatal(err)
	}
	servers.Redis(t, "--bind", host, "--port", number)
	redis, err := connect(port.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := newServer()
	extproc.RegisterExternalProcessorServer(srv, &processor{begin: func() exchange { return &stream{redis: redis} }})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &envoy{t, extproc.NewExternalProcessorClient(conn)}
}

// request is the stream of one request, as Envoy sees it.
type request struct {
	t *testing.T
	extproc.ExternalProcessor_ProcessClient
}

func headers(end bool, pairs ...string) *extproc.HttpHeaders {
	h := &extproc.HttpHeaders{Headers: &core.HeaderMap{}, EndOfStream: end}
	for i := 0; i < len(pairs); i += 2 {
		h.Headers.Headers = append(h.Headers.Headers, &core.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return h
}

// request begins a stream; more are further headers.
func (e *envoy) request(more ...string) request {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), time.Minute)
	e.t.Cleanup(cancel)
	stream, err := e.client.Process(ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	x := request{e.t, stream}
	x.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: headers(false,
		append([]string{":method", "POST", ":authority", "payments.test", ":path", "/payments"}, more...)...)}})
	return x
}

func (x request) send(m *extproc.ProcessingRequest) {
	x.t.Helper()
	if err := x.Send(m); err != nil {
		x.t.Fatal(err)
	}
}

func (x request) receive() *extproc.ProcessingResponse {
	x.t.Helper()
	m, err := x.Recv()
	if err != nil {
		x.t.Fatal(err)
	}
	return m
}

// wantGoesOn wants the request to be let through.
func (x request) wantGoesOn() request {
	x.t.Helper()
	if m := x.receive(); m.GetRequestHeaders() == nil {
		x.t.Fatalf("the request did not continue: %v", m)
	}
	return x
}

func (x request) wantEnd() {
	x.t.Helper()
	if m, err := x.Recv(); !errors.Is(err, io.EOF) {
		x.t.Fatalf("the stream continues: %v, %v", m, err)
	}
}

// wantReply wants an answer of the processor's own.
func (x request) wantReply(code int32) *extproc.ImmediateResponse {
	x.t.Helper()
	m := x.receive()
	if got := int32(m.GetImmediateResponse().GetStatus().GetCode()); got != code {
		x.t.Fatalf("the answer is %v, want %d", m, code)
	}
	x.wantEnd()
	return m.GetImmediateResponse()
}

// answer sends upstream's answer in chunks.
func (x request) answer(code string, chunks ...string) {
	x.t.Helper()
	x.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: headers(len(chunks) == 0,
		":status", code, "content-type", "application/json", "x-a", "1", "x-a", "2", "date", "now")}})
	for i, c := range chunks {
		x.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseBody{ResponseBody: &extproc.HttpBody{
			Body: []byte(c), EndOfStream: i == len(chunks)-1,
		}}})
	}
}

// wantAnswered wants upstream's answer to be let through, headers first.
func (x request) wantAnswered(chunks int) {
	x.t.Helper()
	if m := x.receive(); m.GetResponseHeaders() == nil {
		x.t.Fatalf("the answer did not continue: %v", m)
	}
	for range chunks {
		if m := x.receive(); m.GetResponseBody() == nil {
			x.t.Fatalf("the answer's body did not continue: %v", m)
		}
	}
	x.wantEnd()
}

func TestRetryGetsTheRecordedAnswer(t *testing.T) {
	e := newEnvoy(t)
	e.request().wantGoesOn().wantEnd()
	e.request(":method", "GET", "idempotency-key", "a").wantGoesOn().wantEnd()
	for name, chunks := range map[string][]string{"none": nil, "one": {"body"}, "many": {"bo", "d", "y", ""}} {
		first := e.request("idempotency-key", name).wantGoesOn()
		e.request("idempotency-key", name).wantReply(409)
		first.answer("201", chunks...)
		first.wantAnswered(len(chunks))

		got := e.request("idempotency-key", name).wantReply(201)
		want := ""
		if chunks != nil {
			want = "body"
		}
		var lines []string
		for _, o := range got.GetHeaders().GetSetHeaders() {
			lines = append(lines, o.GetHeader().GetKey()+": "+string(o.GetHeader().GetRawValue()))
		}
		if string(got.GetBody()) != want || !slices.Equal(lines, []string{"idempotent-replayed: true", "content-type: application/json", "x-a: 1", "x-a: 2"}) {
			t.Errorf("%s: the replay is %v", name, got)
		}
		e.request("idempotency-key", name, "authorization", "other").wantGoesOn()
		e.request("idempotency-key", name, "content-length", "7").wantReply(422)
	}
}

// What upstream asks to be repeated may be repeated.
func TestRetryableAnswerFreesItsKey(t *testing.T) {
	e := newEnvoy(t)
	for range 2 {
		x := e.request("idempotency-key", "a").wantGoesOn()
		x.answer("503", "later")
		x.wantAnswered(1)
	}
}

// A client that leaves keeps its key reserved: the outcome is unknown.
func TestClientThatLeavesKeepsItsKeyReserved(t *testing.T) {
	e := newEnvoy(t)
	x := e.request("idempotency-key", "a").wantGoesOn()
	if err := x.CloseSend(); err != nil {
		t.Fatal(err)
	}
	x.wantEnd()
	e.request("idempotency-key", "a").wantReply(409)
}

// A long answer passes before its end, and is not recorded.
func TestLongAnswerIsNotRecorded(t *testing.T) {
	e := newEnvoy(t)
	x := e.request("idempotency-key", "a").wantGoesOn()
	half := string(bytes.Repeat([]byte("x"), maxBody/2+1))
	x.answer("200", half, half, half)
	x.wantAnswered(3)
	e.request("idempotency-key", "a").wantReply(410)
}

// What is damaged in Redis is an error and no answer.
func TestDamagedRecordIsAnError(t *testing.T) {
	record, err := (&stream{status: "200", headers: headers(true, "a", "b").GetHeaders().GetHeaders()}).record()
	if err != nil {
		t.Fatal(err)
	}
	whole := record[17:]
	for n := range whole {
		if _, err := replay(whole[:n]); err == nil {
			t.Errorf("a record cut to %d of %d bytes can be read", n, len(whole))
		}
	}
	if _, err := replay(whole); err != nil {
		t.Error(err)
	}
}
