// Command payments is an upstream to try Oncegate with: a service whose work must not be done twice.
//
//	payments [--listen 127.0.0.1:9000]
//
// POST /payments or /payments/ACCOUNT with a JSON object does the work: it takes the next execution number, counts it under the request's
// Idempotency-Key (under "" when there is none) and answers 201 with that number, an id and the amount. It remembers no
// answers and looks for no duplicates: that is the gate's job, and GET /executions shows whether the gate did it.
//
// Request headers make trouble on demand:
//
//	x-demo-delay-ms: N      the work takes N ms, at most 60000
//	x-demo-status: N        answer with this status, 200 to 599; the work is still done
//	x-demo-body-bytes: N    pad the answer to N bytes, at most 16777216; no effect when it is longer already
//	x-demo-drop: before     close the connection without an answer, the work not done
//	x-demo-drop: after      close the connection without an answer, the work done
//
// Any other value is a 400 problem that names header, value and what is allowed; then nothing is executed. A body that
// is not a JSON object is a 400 too, and one over 1 MiB a 413.
//
// GET /executions answers {"total": N, "keys": {KEY: N}, "untracked": N}: executions in all, by key, and those of keys
// that were not recorded, because they are longer than 255 bytes or came after the first 100,000 different keys. With
// ?key=KEY only that key is listed.
// GET /healthz answers 200 as soon as the service accepts requests.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// shutdownTimeout bounds how long running requests may take to finish after SIGINT or SIGTERM. Those that are left lose
// their connection.
const shutdownTimeout = 5 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stderr, nil))
}

// run serves until ctx ends and returns the exit code. It calls listening, unless nil, with the address once it listens.
func run(ctx context.Context, args []string, stderr io.Writer, listening func(net.Addr)) int {
	flags := flag.NewFlagSet("payments", flag.ContinueOnError)
	flags.SetOutput(stderr)
	listen := flags.String("listen", "127.0.0.1:9000", "`address` to listen on, host:port; port 0 picks a free one")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "payments: unexpected argument %q: it takes flags only\n", flags.Arg(0))
		return 2
	}

	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", *listen)
	if err != nil {
		fmt.Fprintf(stderr, "payments: --listen %q: %v\n", *listen, err)
		return 2
	}
	log := slog.New(slog.NewJSONHandler(stderr, nil))
	log.Info("payments is listening", "address", l.Addr().String())
	if listening != nil {
		listening(l.Addr())
	}
	if err := serve(ctx, l); err != nil {
		log.Error("payments stopped", "error", err)
		return 1
	}
	return 0
}

// serve answers requests on l until ctx ends, and then waits up to shutdownTimeout for the running ones.
func serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler: newService().handler(),
		// Both also count the time for which a new connection waits for its first request. A proxy keeps unused ones for 30 s,
		// and a request on one that is just being closed has an unknown outcome.
		ReadHeaderTimeout: time.Minute,
		ReadTimeout:       90 * time.Second,
		WriteTimeout:      maxDelay + 60*time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()

	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	// ctx has ended, which caused the shutdown, so it cannot bound it.
	timeout, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	err := srv.Shutdown(timeout)
	if errors.Is(err, context.DeadlineExceeded) {
		err = srv.Close()
	}
	<-served
	return err
}
