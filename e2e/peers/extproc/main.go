// Command extproc is what a team could write instead of Oncegate: an
// external processor for Envoy that keeps idempotency keys in Redis. It is the
// peer that `make bench-envoy` measures the gate beside, so it is written to be
// cheap:
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
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/redis/rueidis"
	"google.golang.org/grpc"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "extproc:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("extproc", flag.ContinueOnError)
	listen := fs.String("listen", "127.0.0.1:0", "`address` to listen on: host:port or unix:path")
	redis := fs.String("redis", "127.0.0.1:6379", "`address` of Redis")
	ttl := fs.Duration("ttl", 5*time.Minute, "how long an answer is remembered")
	pending := fs.Duration("pending-ttl", time.Minute, "how long a reservation holds")
	if err := fs.Parse(args); err != nil {
		return err
	}
	client, err := connect(*redis)
	if err != nil {
		return err
	}
	defer client.Close()
	l, err := net.Listen(network(*listen))
	if err != nil {
		return err
	}
	srv := newServer()
	extproc.RegisterExternalProcessorServer(srv, &processor{redis: client, ttl: *ttl, pending: *pending})
	line, err := json.Marshal(map[string]string{"msg": "listening", "listener": "api", "addr": l.Addr().String()})
	if err != nil {
		return err
	}
	fmt.Println(string(line))
	errs := make(chan error, 1)
	go func() { errs <- srv.Serve(l) }()
	select {
	case <-ctx.Done():
		srv.Stop()
		return <-errs
	case err := <-errs:
		return err
	}
}

// network splits an address as net.Listen and net.Dial want it.
func network(addr string) (string, string) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		return "unix", path
	}
	return "tcp", addr
}

// connect opens the one connection that all streams share.
func connect(addr string) (rueidis.Client, error) {
	network, address := network(addr)
	option := rueidis.ClientOption{
		InitAddress: []string{address}, DisableCache: true, AlwaysPipelining: true, PipelineMultiplex: -1, ForceSingleClient: true,
	}
	if network == "unix" {
		option.DialCtxFn = func(ctx context.Context, _ string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", address)
		}
	}
	return rueidis.NewClient(option)
}

// newServer is tuned for many short streams on one connection.
func newServer() *grpc.Server {
	return grpc.NewServer(
		grpc.NumStreamWorkers(uint32(max(64, 4*runtime.GOMAXPROCS(0)))),
		grpc.MaxConcurrentStreams(1<<16),
	)
}
