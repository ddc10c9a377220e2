// Command worker is a worker to try Oncegate's job queue with.
//
//	worker [--manager http://127.0.0.1:8090] [--outbox outbox.jsonl] [--concurrency 4]
//
// It handles three functions until Ctrl-C:
//
//	mail.send     {"to": ..., "text": ...}: writes the mail to the outbox file, once per job however often the job is
//	              delivered; the result is the mail's line number
//	math.double   a number: the result is twice the number
//	demo.flaky    {"failures": N}: fails N times before it succeeds, so that retries can be seen
//
// Stop it with kill -9 in the middle of its work and start it again: its jobs are delivered again when their leases run
// out, and no mail is sent twice. Jobs come from the command submit next door, or from curl:
//
//	curl -d '{"function":"math.double","payload":21}' -H 'content-type: application/json' -H 'idempotency-key: k1' http://127.0.0.1:8090/v1/jobs
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/oncegate/oncegate/manager/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the process immediately
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

// run works until ctx ends and returns the exit code.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	url := flags.String("manager", "http://127.0.0.1:8090", "`URL` of the manager")
	outboxFile := flags.String("outbox", "outbox.jsonl", "`file` that takes the mails")
	concurrency := flags.Int("concurrency", 4, "jobs at once, 1 to 1000")
	lease := flags.Duration("lease", 10*time.Second, "lease of the jobs, 100ms to 24h; after a crash they come back this late")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(stderr, "usage: worker [flags]")
			flags.SetOutput(stderr)
			flags.PrintDefaults()
			return 0
		}
		fmt.Fprintf(stderr, "worker: %v\n", err)
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "worker: unexpected argument %q\n", flags.Arg(0))
		return 2
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	c, err := client.New(client.Options{URL: *url})
	if err != nil {
		fmt.Fprintf(stderr, "worker: --manager: %v\n", err)
		return 2
	}
	box, err := openOutbox(*outboxFile)
	if err != nil {
		fmt.Fprintf(stderr, "worker: --outbox: %v\n", err)
		return 1
	}
	defer box.close()
	w, err := c.NewWorker(client.WorkerOptions{
		Handlers:    logged(log, handlers(box)),
		Concurrency: *concurrency, Lease: *lease, Logger: log,
	})
	if err != nil {
		fmt.Fprintf(stderr, "worker: %v\n", err)
		return 2
	}
	log.Info("working", "worker", w.Name(), "manager", *url, "outbox", *outboxFile)
	if err := w.Run(ctx); err != nil {
		log.Error("stopped", "error", err)
		return 1
	}
	log.Info("stopped")
	return 0
}

func handlers(box *outbox) map[string]client.Handler {
	return map[string]client.Handler{
		"mail.send":   box.send,
		"math.double": double,
		"demo.flaky":  flaky,
	}
}

// logged logs what the handlers do.
func logged(log *slog.Logger, hs map[string]client.Handler) map[string]client.Handler {
	out := make(map[string]client.Handler, len(hs))
	for f, h := range hs {
		out[f] = func(ctx context.Context, j *client.Job) (any, error) {
			result, err := h(ctx, j)
			log.Info("job", "id", j.ID, "function", f, "attempt", j.Attempt, "result", result, "error", err)
			return result, err
		}
	}
	return out
}

func double(_ context.Context, j *client.Job) (any, error) {
	var n float64
	if err := json.Unmarshal(j.Payload, &n); err != nil {
		// No attempt will accept it.
		return nil, client.Permanent(fmt.Errorf("payload: must be a number: %w", err))
	}
	return 2 * n, nil
}

func flaky(_ context.Context, j *client.Job) (any, error) {
	var p struct{ Failures int }
	if err := json.Unmarshal(j.Payload, &p); err != nil {
		return nil, client.Permanent(fmt.Errorf("payload: must be {\"failures\": N}: %w", err))
	}
	if j.Attempt <= p.Failures {
		return nil, fmt.Errorf("failure %d of %d", j.Attempt, p.Failures)
	}
	return "at last", nil
}
