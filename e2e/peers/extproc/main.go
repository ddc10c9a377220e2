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
	"crypto/tls"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"google.golang.org/grpc"
)

func main() {
	redis := flag.String("redis", "127.0.0.1:6379", "`address` of Redis")
	plain := flag.Bool("plain", false, "be the plain processor")
	flag.Parse()
	if err := serve(*redis, *plain); err != nil {
		log.Fatal(err)
	}
}

func serve(redis string, plain bool) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := newServer()
	if plain {
		srv = grpc.NewServer()
		extproc.RegisterExternalProcessorServer(srv, &plainProcessor{redis: goredis.NewClient(&goredis.Options{Addr: redis})})
	} else {
		client, err := connect(redis)
		if err != nil {
			return err
		}
		defer client.Close()
		extproc.RegisterExternalProcessorServer(srv, &processor{redis: client, ttl: answerTTL, pending: pendingTTL})
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, srv.Stop)
	fmt.Printf(`{"msg":"listening","listener":"api","addr":%q}`+"\n", l.Addr())
	return srv.Serve(l)
}

// How long a reservation holds, and how long an answer is remembered.
const (
	pendingTTL = time.Minute
	answerTTL  = 5 * time.Minute
)

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
