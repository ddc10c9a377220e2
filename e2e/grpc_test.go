package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// rpcServer is a stock gRPC server. A call's metadata says what it does: x-code is the status that it ends with, x-hold
// makes it wait until release.
type rpcServer struct {
	grpc_testing.UnimplementedTestServiceServer
	address string
	arrived chan struct{} // gets one value for each call with x-hold
	release chan struct{}

	mu   sync.Mutex
	runs map[string]int // by key
}

func newRPCServer(t *testing.T) *rpcServer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &rpcServer{address: l.Addr().String(), arrived: make(chan struct{}, 16), release: make(chan struct{}), runs: map[string]int{}}
	server := grpc.NewServer()
	grpc_testing.RegisterTestServiceServer(server, u)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return u
}

func (u *rpcServer) ran(key string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.runs[key]
}

// UnaryCall implements the service.
func (u *rpcServer) UnaryCall(ctx context.Context, in *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	key := strings.Join(md.Get("idempotency-key"), ",")
	u.mu.Lock()
	u.runs[key]++
	n := u.runs[key]
	u.mu.Unlock()
	if len(md.Get("x-hold")) > 0 {
		u.arrived <- struct{}{}
		select {
		case <-u.release:
		case <-ctx.Done():
		}
	}
	_ = grpc.SetHeader(ctx, metadata.Pairs("x-first", "a", "x-first", "b"))
	_ = grpc.SetTrailer(ctx, metadata.Pairs("x-sum", fmt.Sprint(n), "x-sum", "again", "x-raw-bin", "\x00\xff"))
	if code := md.Get("x-code"); len(code) > 0 {
		var c codes.Code
		if err := c.UnmarshalJSON([]byte(code[0])); err != nil {
			return nil, err
		}
		if len(md.Get("x-pushback")) > 0 {
			_ = grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", "5"))
		}
		return nil, status.Errorf(c, "run %d: 100%% no\n", n)
	}
	return &grpc_testing.SimpleResponse{Username: fmt.Sprintf("run %d of %.20s", n, in.GetPayload().GetBody()), Payload: &grpc_testing.Payload{Body: make([]byte, in.GetResponseSize())}}, nil
}

// StreamingOutputCall implements the service.
func (u *rpcServer) StreamingOutputCall(_ *grpc_testing.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[grpc_testing.StreamingOutputCallResponse]) error {
	for i := range 3 {
		if err := stream.Send(&grpc_testing.StreamingOutputCallResponse{Payload: &grpc_testing.Payload{Body: []byte{byte(i)}}}); err != nil {
			return err
		}
	}
	return nil
}

// StreamingInputCall implements the service.
func (u *rpcServer) StreamingInputCall(stream grpc.ClientStreamingServer[grpc_testing.StreamingInputCallRequest, grpc_testing.StreamingInputCallResponse]) error {
	for {
		if _, err := stream.Recv(); err == io.EOF {
			return stream.SendAndClose(&grpc_testing.StreamingInputCallResponse{})
		} else if err != nil {
			return err
		}
	}
}

// rpcAnswer is all that a client sees of a call.
type rpcAnswer struct {
	message         *grpc_testing.SimpleResponse
	err             error
	header, trailer metadata.MD
}

// state is what became of the call.
func (a rpcAnswer) state() string {
	return strings.Join(append(a.header.Get("idempotency-status"), a.trailer.Get("idempotency-status")...), ",")
}

// String leaves out what differs between two answers that are the same to a client.
func (a rpcAnswer) String() string {
	all := metadata.Join(a.header, a.trailer)
	for _, name := range []string{"idempotency-status", "idempotent-replayed", "original-date", "date", "server", "x-envoy-upstream-service-time", "content-type"} {
		all.Delete(name)
	}
	return fmt.Sprintf("%s %v %v %v", a.message.GetUsername(), len(a.message.GetPayload().GetBody()), status.Convert(a.err).Proto(), all)
}

type rpcRig struct {
	*stack
	server *rpcServer
	client grpc_testing.TestServiceClient
}

func newRPCRig(t *testing.T, target envoyTarget, plugin map[string]any) *rpcRig {
	t.Helper()
	u := newRPCServer(t)
	s := &stack{dir: t.TempDir(), target: target, mode: "body", plugin: plugin, paymentsAddr: u.address, bootstrap: upstreamHTTP2}
	s.stopAtEnd(t)
	s.startManager(t)
	s.startProxy(t)
	return &rpcRig{s, u, grpc_testing.NewTestServiceClient(dialRPC(t, s.proxies[0]))}
}

func dialRPC(t *testing.T, p *proxy) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+p.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("pay.test"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func (r *rpcRig) call(t *testing.T, key, body string, more ...string) (a rpcAnswer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return r.callWith(ctx, key, &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: []byte(body)}}, more...)
}

func (r *rpcRig) callWith(ctx context.Context, key string, in *grpc_testing.SimpleRequest, more ...string) (a rpcAnswer) {
	if key != "" {
		more = append(more, "idempotency-key", key)
	}
	ctx = metadata.AppendToOutgoingContext(ctx, more...)
	a.message, a.err = r.client.UnaryCall(ctx, in, grpc.Header(&a.header), grpc.Trailer(&a.trailer))
	return a
}

// eachRPC runs a scenario on each Envoy.
func eachRPC(t *testing.T, scenario func(t *testing.T, target envoyTarget)) {
	t.Helper()
	eachVersion(t, scenario)
}

var unary = map[string]any{"grpc": "unary", "pending_wait_timeout": 60, "pending_ttl_seconds": 3600, "client_abort": "continue"}

// A unary call runs once; a retry gets the same message, metadata, status and trailers.
func TestUnaryCallsRunOnce(t *testing.T) {
	eachRPC(t, func(t *testing.T, target envoyTarget) {
		r := newRPCRig(t, target, unary)
		same := func(what, key string, first rpcAnswer, retry func() rpcAnswer) {
			t.Helper()
			if first.state() != "executed" {
				t.Errorf("%s: the first call is %q: %v", what, first.state(), first)
			}
			for range 3 {
				a := retry()
				if a.String() != first.String() || a.state() != "replayed" {
					t.Errorf("%s: retry (%s)\n%v\nfirst\n%v", what, a.state(), a, first)
				}
			}
			if n := r.server.ran(key); n != 1 {
				t.Errorf("%s ran %d times", what, n)
			}
		}
		key := newKey()
		first := r.call(t, key, "pay")
		if first.err != nil || first.message.GetUsername() != "run 1 of pay" || !slices.Equal(first.trailer.Get("x-sum"), []string{"1", "again"}) || first.trailer.Get("x-raw-bin")[0] != "\x00\xff" {
			t.Fatalf("first: %v %v", first, first.err)
		}
		same("a call", key, first, func() rpcAnswer {
			a := r.call(t, key, "pay")
			if !slices.Equal(a.header.Get("x-first"), []string{"a", "b"}) || !slices.Equal(a.trailer.Get("x-sum"), []string{"1", "again"}) {
				t.Errorf("headers %v, trailers %v", a.header, a.trailer)
			}
			return a
		})
		large := &grpc_testing.SimpleRequest{ResponseSize: 300_000, Payload: &grpc_testing.Payload{Body: make([]byte, 200_000)}}
		// Upstream's part of it is longer than what the gate digests, and the retry's is on its way when the answer comes.
		long := &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: make([]byte, 700_000)}}
		key = newKey()
		same("a long call", key, r.callWith(t.Context(), key, long), func() rpcAnswer { return r.callWith(t.Context(), key, long) })
		key = newKey()
		same("a large call", key, r.callWith(t.Context(), key, large), func() rpcAnswer { return r.callWith(t.Context(), key, large) })
		// What a status means for the key.
		for code, kept := range map[codes.Code]bool{
			codes.Canceled: true, codes.Unknown: true, codes.InvalidArgument: true, codes.DeadlineExceeded: true, codes.NotFound: true,
			codes.AlreadyExists: true, codes.PermissionDenied: true, codes.ResourceExhausted: false, codes.FailedPrecondition: true,
			codes.Aborted: true, codes.OutOfRange: true, codes.Unimplemented: true, codes.Internal: true, codes.Unavailable: true,
			codes.DataLoss: true, codes.Unauthenticated: true,
		} {
			key := newKey()
			number := fmt.Sprint(uint32(code))
			call := func() rpcAnswer { return r.call(t, key, "pay", "x-code", number) }
			first := call()
			if got := status.Code(first.err); got != code {
				t.Errorf("%v came as %v", code, first.err)
			}
			if kept {
				same(code.String(), key, first, call)
			} else if call(); r.server.ran(key) != 2 {
				t.Errorf("%v: the call ran %d times, want 2", code, r.server.ran(key))
			}
		}
		// Upstream asks for a retry.
		key = newKey()
		for range 2 {
			r.call(t, key, "pay", "x-code", fmt.Sprint(uint32(codes.Unavailable)), "x-pushback", "1")
		}
		if n := r.server.ran(key); n != 2 {
			t.Errorf("a call with pushback ran %d times, want 2", n)
		}
		// A crowd gets one answer.
		key = newKey()
		crowd := make(chan rpcAnswer, 30)
		for range cap(crowd) {
			go func() {
				crowd <- r.callWith(t.Context(), key, &grpc_testing.SimpleRequest{ResponseSize: 10_000})
			}()
		}
		executed := 0
		for range cap(crowd) {
			switch a := <-crowd; a.state() {
			case "executed":
				executed++
			case "replayed":
				if a.message.GetUsername() != "run 1 of " || len(a.message.GetPayload().GetBody()) != 10_000 || a.err != nil {
					t.Errorf("one of the crowd: %v %v", a, a.err)
				}
			default:
				t.Errorf("one of the crowd: %q %v", a.state(), a.err)
			}
		}
		if n := r.server.ran(key); n != 1 || executed != 1 {
			t.Errorf("the crowd's call ran %d times, %d times executed", n, executed)
		}
		// A stream of answers on this route comes at its end, whole, and so does each retry.
		key = newKey()
		for range 2 {
			down, err := r.client.StreamingOutputCall(metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", key), &grpc_testing.StreamingOutputCallRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				if m, err := down.Recv(); err != nil || m.GetPayload().GetBody()[0] != byte(i) {
					t.Errorf("message %d: %v, %v", i, m, err)
				}
			}
			if _, err := down.Recv(); err != io.EOF {
				t.Errorf("after the last message: %v", err)
			}
		}
		// Without a key a call is not protected.
		for range 2 {
			if a := r.call(t, "", "pay"); a.err != nil || a.state() != "" {
				t.Errorf("without a key: %v %q", a.err, a.state())
			}
		}
	})
}

// wantRefusal checks a refusal of the gate: its code, its reason, and when to try again.
func wantRefusal(t *testing.T, what string, a rpcAnswer, code codes.Code, reason string) {
	t.Helper()
	st := status.Convert(a.err)
	var info *errdetails.ErrorInfo
	var retry *errdetails.RetryInfo
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.RetryInfo:
			retry = d
		}
	}
	if st.Code() != code || info.GetReason() != reason || info.GetDomain() != "oncegate" || !strings.HasPrefix(st.Message(), reason+": ") || a.state() != reason {
		t.Errorf("%s: %v, %v, %v", what, a.err, st.Details(), a.trailer)
	}
	if wants := code == codes.Unavailable; wants != (retry.GetRetryDelay().AsDuration() >= time.Second) || wants != (len(a.trailer.Get("grpc-retry-pushback-ms")) == 1) {
		t.Errorf("%s: retry info %v, trailers %v", what, retry, a.trailer)
	}
}

// What a gRPC client sees when the gate does not run its call.
func TestUnaryRefusals(t *testing.T) {
	eachRPC(t, func(t *testing.T, target envoyTarget) {
		impatient := maps.Clone(unary)
		impatient["pending_wait_timeout"] = 0.2
		r := newRPCRig(t, target, with(impatient, refusing()))
		key := newKey()
		r.call(t, key, "pay")
		wantRefusal(t, "another message", r.call(t, key, "PAY"), codes.InvalidArgument, "fingerprint-mismatch")
		wantRefusal(t, "a bad key", r.call(t, "a,b", "pay"), codes.InvalidArgument, "invalid-key")

		key = newKey()
		held := make(chan rpcAnswer, 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			held <- r.callWith(ctx, key, &grpc_testing.SimpleRequest{}, "x-hold", "1")
		}()
		<-r.server.arrived
		wantRefusal(t, "a pending call", r.callWith(t.Context(), key, &grpc_testing.SimpleRequest{}), codes.Unavailable, "request-pending")
		cancel()
		<-held
		eventually(t, "the outcome is not unknown", func() error {
			a := r.callWith(t.Context(), key, &grpc_testing.SimpleRequest{})
			if status.Code(a.err) != codes.Aborted {
				return a.err
			}
			wantRefusal(t, "an unknown outcome", a, codes.Aborted, "outcome-unknown")
			return nil
		})
		if n := r.server.ran(key); n != 1 {
			t.Errorf("ran %d times", n)
		}
		large := &grpc_testing.SimpleRequest{ResponseSize: 600_000}
		key = newKey()
		if a := r.callWith(t.Context(), key, large); a.err != nil {
			t.Errorf("a large answer: %v", a.err)
		}
		wantRefusal(t, "an answer that is too large", r.callWith(t.Context(), key, large), codes.AlreadyExists, "answer-not-recorded")

		// A stream of requests is refused at its second message.
		up, err := r.client.StreamingInputCall(metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", newKey()))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			_ = up.Send(&grpc_testing.StreamingInputCallRequest{})
		}
		if _, err := up.CloseAndRecv(); status.Code(err) != codes.Unimplemented {
			t.Errorf("two messages: %v", err)
		}
		r.manager.kill()
		wantRefusal(t, "the manager is away", r.call(t, newKey(), "pay"), codes.Unavailable, "manager-unavailable")
	})
}

// Without the route for recorded answers a retry is refused, and does not run.
func TestUnaryWithoutAnswerRoute(t *testing.T) {
	eachRPC(t, func(t *testing.T, target envoyTarget) {
		u := newRPCServer(t)
		s := &stack{dir: t.TempDir(), target: target, mode: "body", plugin: unary, paymentsAddr: u.address, bootstrap: upstreamHTTP2}
		s.edit = withoutAnswerRoute
		s.stopAtEnd(t)
		s.startManager(t)
		s.startProxy(t)
		r := &rpcRig{s, u, grpc_testing.NewTestServiceClient(dialRPC(t, s.proxies[0]))}
		key := newKey()
		if a := r.call(t, key, "pay"); a.err != nil {
			t.Fatal(a.err)
		}
		if a := r.call(t, key, "pay"); status.Code(a.err) != codes.Internal || !strings.Contains(a.err.Error(), "/oncegate/answer") {
			t.Errorf("retry: %v", a.err)
		}
		if n := u.ran(key); n != 1 {
			t.Errorf("ran %d times", n)
		}
	})
}

func withoutAnswerRoute(hcm *hcmv3.HttpConnectionManager) error {
	host := hcm.GetRouteConfig().GetVirtualHosts()[0]
	host.Routes = host.Routes[len(host.Routes)-1:]
	return nil
}

// The manager serves the blanks where no inner listener can, as in Istio. It gets nothing of what the caller sent but the
// message, and asks it for no credentials.
func TestUnaryAnswersFromTheManager(t *testing.T) {
	eachRPC(t, func(t *testing.T, target envoyTarget) {
		u := newRPCServer(t)
		tokens := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(tokens, []byte("0123456789abcdef gate\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		plugin := map[string]any{"manager": map[string]any{"cluster": "oncegate_manager", "auth_token": "0123456789abcdef"}}
		maps.Copy(plugin, unary)
		delete(plugin, "client_abort")
		s := &stack{dir: t.TempDir(), target: target, mode: "body", plugin: plugin, paymentsAddr: u.address, bootstrap: upstreamHTTP2}
		s.settings, s.edit = []string{"--auth-token-file", tokens}, answerRouteToManager(t)
		s.stopAtEnd(t)
		s.startManager(t)
		s.startProxy(t)
		r := &rpcRig{s, u, grpc_testing.NewTestServiceClient(dialRPC(t, s.proxies[0]))}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for what, in := range map[string]*grpc_testing.SimpleRequest{
			"a call": {}, "a large answer": {ResponseSize: 300_000}, "a large message": {Payload: &grpc_testing.Payload{Body: make([]byte, 300_000)}},
			"a message that continues while it is answered": {Payload: &grpc_testing.Payload{Body: make([]byte, 3_000_000)}},
		} {
			key := newKey()
			first := r.callWith(ctx, key, in, "authorization", "Bearer a")
			for range 5 {
				if a := r.callWith(ctx, key, in, "authorization", "Bearer a"); a.err != nil || a.state() != "replayed" || a.String() != first.String() {
					t.Errorf("%s: retry (%s)\n%v\nfirst\n%v", what, a.state(), a, first)
				}
			}
			if n := u.ran(key); n != 1 {
				t.Errorf("%s ran %d times", what, n)
			}
		}
		key := newKey()
		crowd := make(chan rpcAnswer, 30)
		for range cap(crowd) {
			go func() { crowd <- r.callWith(ctx, key, &grpc_testing.SimpleRequest{ResponseSize: 10_000}) }()
		}
		for range cap(crowd) {
			if a := <-crowd; a.err != nil || a.message.GetUsername() != "run 1 of " {
				t.Errorf("one of the crowd: %v %v", a, a.err)
			}
		}
		// The gate remembers the answer, but cannot fetch a blank.
		r.manager.kill()
		wantRefusal(t, "the manager is away", r.callWith(ctx, key, &grpc_testing.SimpleRequest{ResponseSize: 10_000}), codes.Unavailable, "unavailable")
		if n := u.ran(key); n != 1 {
			t.Errorf("ran %d times", n)
		}
	})
}

// answerRouteToManager changes the routes into those that envoy/istio/grpc.yaml leads to.
func answerRouteToManager(t *testing.T) func(*hcmv3.HttpConnectionManager) error {
	return func(hcm *hcmv3.HttpConnectionManager) error {
		host := hcm.GetRouteConfig().GetVirtualHosts()[0]
		service := host.GetRoutes()[len(host.GetRoutes())-1]
		answer := proto.CloneOf(host.GetRoutes()[0])
		if answer.GetMatch().GetPath() != "/oncegate/answer" {
			t.Errorf("the first route is %v", answer)
		}
		answer.GetRoute().ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: "oncegate_manager"}
		answer.GetRoute().PrefixRewrite = ""
		host.Routes = []*routev3.Route{answer, service}
		return nil
	}
}
