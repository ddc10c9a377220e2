// Command extproc is what a team could write instead of Oncegate: an
// external processor for Envoy that keeps idempotency keys in Redis. It is the
// peer that `make bench-envoy` measures the gate beside. With -plain it is written from the documentation (plain.go);
// without, it is written to be cheap (processor.go):
//
//   - One stream per request, closed as soon as nothing more is wanted of it: at
//     once for a request without a key and for a replay.
//   - A reservation and the look at what is recorded are one command,
//     SET key value NX GET PX ttl.
//   - rueidis puts the commands of all streams onto one connection, so that
//     Redis reads, writes and fsyncs for many of them at once.
//   - Of the request only the headers are sent. The answer's headers come
//     together with its body (response_body_mode STREAMED and
//     send_body_without_waiting_for_header_response) and wait for their response
//     until the answer is recorded: one exchange, where the body mode BUFFERED
//     takes two.
//
// It promises less than Oncegate, and every difference makes it cheaper: the
// request's body is no part of the fingerprint, a duplicate of a request that is
// at work gets 409 and does not wait, nothing renews a reservation, a commit does
// not look whose reservation it ends, and an outcome that Redis did not take is
// lost.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"flag"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	types "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "`address` to serve")
	redis := flag.String("redis", "127.0.0.1:6379", "`address` of Redis")
	plain := flag.Bool("plain", false, "be the plain processor")
	flag.Parse()
	if err := serve(*listen, *redis, *plain); err != nil {
		log.Fatal(err)
	}
}

func serve(listen, redis string, plain bool) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	srv := newServer()
	var begin func() exchange
	if plain {
		client := goredis.NewClient(&goredis.Options{Addr: redis})
		srv, begin = grpc.NewServer(), func() exchange { return &plainStream{redis: client} }
	} else {
		client, err := connect(redis)
		if err != nil {
			return err
		}
		defer client.Close()
		begin = func() exchange { return &stream{redis: client} }
	}
	extproc.RegisterExternalProcessorServer(srv, &processor{begin: begin})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, srv.Stop)
	return srv.Serve(l)
}

// How long a reservation holds, and how long an answer is remembered.
const (
	pendingTTL = time.Minute
	answerTTL  = 5 * time.Minute
)

// connect opens the one connection that all streams share.
func connect(addr string) (rueidis.Client, error) {
	return rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{addr}, DisableCache: true, AlwaysPipelining: true, PipelineMultiplex: -1, ForceSingleClient: true,
	})
}

// newServer is tuned for many short streams on one connection.
func newServer() *grpc.Server {
	return grpc.NewServer(
		grpc.NumStreamWorkers(uint32(max(64, 4*runtime.GOMAXPROCS(0)))),
		grpc.MaxConcurrentStreams(1<<16),
	)
}

// exchange is one request and its answer. Its methods return what Envoy gets for a message. done: nothing more is wanted
// of the request, so the stream ends and Envoy continues by itself.
type exchange interface {
	requestHeaders(ctx context.Context, headers []*core.HeaderValue) (answers []*extproc.ProcessingResponse, done bool, err error)
	responseHeaders(ctx context.Context, headers []*core.HeaderValue, end bool) (answers []*extproc.ProcessingResponse, done bool, err error)
	responseBody(ctx context.Context, body []byte, end bool) (answers []*extproc.ProcessingResponse, done bool, err error)
}

// processor serves each request with an exchange of its own.
type processor struct {
	extproc.UnimplementedExternalProcessorServer
	begin func() exchange
}

// Process implements the service: it is called for each request.
func (p *processor) Process(srv extproc.ExternalProcessor_ProcessServer) error {
	x, ctx := p.begin(), srv.Context()
	for {
		msg, err := srv.Recv()
		if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
			return nil // a reservation without an answer holds until its TTL ends: the outcome is unknown
		}
		if err != nil {
			return err
		}
		var answers []*extproc.ProcessingResponse
		var done bool
		switch m := msg.GetRequest().(type) {
		case *extproc.ProcessingRequest_RequestHeaders:
			answers, done, err = x.requestHeaders(ctx, m.RequestHeaders.GetHeaders().GetHeaders())
		case *extproc.ProcessingRequest_ResponseHeaders:
			answers, done, err = x.responseHeaders(ctx, m.ResponseHeaders.GetHeaders().GetHeaders(), m.ResponseHeaders.GetEndOfStream())
		case *extproc.ProcessingRequest_ResponseBody:
			answers, done, err = x.responseBody(ctx, m.ResponseBody.GetBody(), m.ResponseBody.GetEndOfStream())
		default:
			return status.Errorf(codes.InvalidArgument, "%T was not asked for", m)
		}
		if err != nil {
			return err
		}
		for _, a := range answers {
			if err := srv.Send(a); err != nil {
				return err
			}
		}
		if done {
			return nil
		}
	}
}

var (
	goOn          = &extproc.CommonResponse{}
	requestGoesOn = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{Response: goOn}}}
	headersGoOn   = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extproc.HeadersResponse{Response: goOn}}}
	bodyGoesOn    = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseBody{ResponseBody: &extproc.BodyResponse{Response: goOn}}}
)

// problem is an answer of the processor's own; headers have names and values by turns.
func problem(code uint32, title string, headers ...string) []*extproc.ProcessingResponse {
	set := []*core.HeaderValueOption{option("content-type", []byte("application/problem+json"))}
	for i := 0; i < len(headers); i += 2 {
		set = append(set, option(headers[i], []byte(headers[i+1])))
	}
	return one(immediate(code, set, []byte(`{"title":"`+title+`"}`)))
}

func one(answer *extproc.ProcessingResponse) []*extproc.ProcessingResponse {
	return []*extproc.ProcessingResponse{answer}
}

func immediate(code uint32, set []*core.HeaderValueOption, body []byte) *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extproc.ImmediateResponse{
		Status: &types.HttpStatus{Code: types.StatusCode(code)}, Headers: &extproc.HeaderMutation{SetHeaders: set}, Body: body,
	}}}
}

func option(name string, value []byte) *core.HeaderValueOption {
	action := core.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD
	if name == "content-type" { // Envoy's own answers have one
		action = core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD
	}
	return &core.HeaderValueOption{Header: &core.HeaderValue{Key: name, RawValue: value}, AppendAction: action}
}

// perConnection are headers that Envoy rebuilds for each answer.
func perConnection(name string) bool {
	switch name {
	case "date", "server", "connection", "keep-alive", "transfer-encoding", "content-length", "x-envoy-upstream-service-time":
		return true
	}
	return strings.HasPrefix(name, ":")
}

// asksToRetry reports whether upstream asks with a status to be called again.
func asksToRetry(status string) bool {
	return slices.Contains([]string{"408", "425", "429", "503"}, status)
}

// keyOf returns a request's key in Redis and its fingerprint, if it has a key. The key in Redis holds host, path and caller,
// as the gate's scope does.
func keyOf(headers []*core.HeaderValue) (key string, mark [16]byte, keyed bool) {
	var method, host, path, caller, length, given []byte
	for _, h := range headers {
		switch h.GetKey() {
		case ":method":
			method = h.GetRawValue()
		case ":authority":
			host = h.GetRawValue()
		case ":path":
			path = h.GetRawValue()
		case "authorization":
			caller = h.GetRawValue()
		case "content-length":
			length = h.GetRawValue()
		case "idempotency-key":
			given = h.GetRawValue()
		}
	}
	if len(given) == 0 || string(method) != "POST" && string(method) != "PATCH" {
		return "", mark, false
	}
	scope := digest(host, path, caller)
	return string(append(scope[:], given...)), digest(method, path, length), true
}

// digest is 128 bits of the SHA-256 of parts, each after its length.
func digest(parts ...[]byte) [16]byte {
	b := make([]byte, 0, 256)
	for _, p := range parts {
		b = append(binary.AppendUvarint(b, uint64(len(p))), p...)
	}
	sum := sha256.Sum256(b)
	return [16]byte(sum[:16])
}
