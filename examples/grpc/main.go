// Command grpc is a gRPC server whose call must not run twice, and a client that repeats it. Both
// are plain grpc-go, without interceptors; only the key in the metadata is about Oncegate.
//
//	go run ./examples/grpc serve 127.0.0.1:9000
//	go run ./examples/grpc call 127.0.0.1:10000 KEY MESSAGE
//
// README.md says how to put Envoy between them.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const usage = "usage: grpc serve ADDRESS | grpc call ADDRESS KEY MESSAGE"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var err error
	switch {
	case len(args) == 2 && args[0] == "serve":
		err = serve(ctx, args[1], stdout)
	case len(args) == 4 && args[0] == "call":
		err = call(ctx, args[1], args[2], args[3], stdout)
	default:
		fmt.Fprintln(stderr, usage)
		return 2
	}
	if err != nil {
		fmt.Fprintln(stderr, "grpc:", err)
		return 1
	}
	return 0
}

// server counts its calls, so that each answer shows how often the work ran.
type server struct {
	grpc_testing.UnimplementedTestServiceServer
	runs atomic.Int64
}

// UnaryCall implements the service.
func (s *server) UnaryCall(ctx context.Context, in *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	n := s.runs.Add(1)
	if err := grpc.SetTrailer(ctx, metadata.Pairs("x-run", fmt.Sprint(n))); err != nil {
		return nil, err
	}
	return &grpc_testing.SimpleResponse{Username: fmt.Sprintf("run %d of %q", n, in.GetPayload().GetBody())}, nil
}

// serve serves until ctx ends.
func serve(ctx context.Context, address string, stdout io.Writer) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	g := grpc.NewServer()
	grpc_testing.RegisterTestServiceServer(g, new(server))
	defer context.AfterFunc(ctx, g.Stop)()
	fmt.Fprintln(stdout, "listening on", l.Addr())
	return g.Serve(l)
}

// retries makes the client repeat a call that got UNAVAILABLE. The gate answers so while the first
// call still runs, and the answer's pushback says how long to wait.
const retries = `{"methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "2s", "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`

// call makes one call and prints its answer.
func call(ctx context.Context, address, key, message string, stdout io.Writer) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(retries))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "idempotency-key", key)
	var header, trailer metadata.MD
	answer, err := grpc_testing.NewTestServiceClient(conn).UnaryCall(ctx, &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: []byte(message)}},
		grpc.Header(&header), grpc.Trailer(&trailer))
	if err != nil {
		return fmt.Errorf("%v: %v %v", status.Code(err), status.Convert(err).Message(), status.Convert(err).Details())
	}
	fmt.Fprintln(stdout, answer.GetUsername(), header.Get("idempotency-status"), "trailer x-run:", trailer.Get("x-run"))
	return nil
}
