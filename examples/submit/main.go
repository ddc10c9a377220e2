// Command submit submits jobs to a manager, or to a gate in front of it, at most once each.
//
//	submit [--url http://127.0.0.1:8090] [--key KEY] [--count N] [--wait] FUNCTION PAYLOAD
//
// PAYLOAD is JSON; %d in it is replaced by the number of the job, from 1. For example, with the command worker next door:
//
//	submit --wait math.double 21
//	submit --count 100 mail.send '{"to":"ann@example.org","text":"hello %d"}'
//	submit --wait --idempotency-key k1 math.double 21    the same again is answered the same, and runs once
//
// Every submission has an idempotency key, {client_id}:{sequence}:{nonce} unless --idempotency-key sets one. The
// submission is repeated with that key until there is an answer: if the network fails or the manager restarts, it is
// still executed once. The client id is kept in --client-id-file.
//
// It prints one JSON value per job. Exit codes: 0 success, 1 a submission was refused or a job waited for did not
// complete, 2 wrong usage.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/oncegate/oncegate/manager/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

type options struct {
	url, idFile, key, idempotencyKey string
	count                            int
	wait                             bool
	timeout, delay                   time.Duration
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("submit", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	flags.StringVar(&o.url, "url", "http://127.0.0.1:8090", "`URL` of the manager or the gate")
	flags.StringVar(&o.idFile, "client-id-file", defaultIDFile(), "`file` that keeps the client id; made when there is none")
	flags.StringVar(&o.key, "key", "", "the jobs' `key`, held by one live job at a time; %d is replaced")
	flags.StringVar(&o.idempotencyKey, "idempotency-key", "", "idempotency `key` of the submission; only for a single one")
	flags.IntVar(&o.count, "count", 1, "how many jobs to submit, 1 to 1000000")
	flags.BoolVar(&o.wait, "wait", false, "wait for the results")
	flags.DurationVar(&o.timeout, "timeout", time.Minute, "how long to try, for each job")
	flags.DurationVar(&o.delay, "delay", 0, "run the jobs this much later")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(stdout, "usage: submit [flags] FUNCTION PAYLOAD")
			flags.SetOutput(stdout)
			flags.PrintDefaults()
			return 0
		}
		fmt.Fprintf(stderr, "submit: %v\n", err)
		return 2
	}
	function, payload, err := o.check(flags.Args())
	if err != nil {
		fmt.Fprintf(stderr, "submit: %v\n", err)
		return 2
	}
	keys, err := client.OpenKeys(o.idFile)
	if err != nil {
		fmt.Fprintf(stderr, "submit: --client-id-file: %v\n", err)
		return 1
	}
	c, err := client.New(client.Options{URL: o.url, Keys: keys})
	if err != nil {
		fmt.Fprintf(stderr, "submit: --url: %v\n", err)
		return 2
	}
	code := 0
	for i := 1; i <= o.count && ctx.Err() == nil; i++ {
		if err := o.one(ctx, c, i, function, payload, stdout); err != nil {
			fmt.Fprintf(stderr, "submit: job %d: %v\n", i, err)
			code = 1
		}
	}
	if ctx.Err() != nil {
		code = 1
	}
	return code
}

// check checks what the flags by themselves do not.
func (o *options) check(args []string) (function, payload string, err error) {
	if len(args) != 2 {
		return "", "", fmt.Errorf("%d arguments: must be FUNCTION PAYLOAD", len(args))
	}
	function, payload = args[0], args[1]
	if first := number(payload, 1); !json.Valid([]byte(first)) {
		return "", "", fmt.Errorf("PAYLOAD %.60q: must be JSON", first)
	}
	switch {
	case o.count < 1 || o.count > 1_000_000:
		err = fmt.Errorf("--count %d: must be 1 to 1000000", o.count)
	case o.count > 1 && o.idempotencyKey != "":
		err = fmt.Errorf("--idempotency-key %q: several submissions need a key each; leave it out", o.idempotencyKey)
	case o.timeout <= 0:
		err = fmt.Errorf("--timeout %v: must be positive", o.timeout)
	case o.delay < 0:
		err = fmt.Errorf("--delay %v: must not be negative", o.delay)
	}
	return function, payload, err
}

func number(s string, i int) string { return strings.ReplaceAll(s, "%d", strconv.Itoa(i)) }

// one makes one submission and prints its answer.
func (o *options) one(ctx context.Context, c *client.Client, i int, function, payload string, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	body := json.RawMessage(number(payload, i))
	j, err := c.SubmitIdempotent(ctx, client.Submission{
		IdempotencyKey: o.idempotencyKey, Function: function, Payload: body, Key: number(o.key, i), Delay: o.delay,
	})
	if err == nil && o.wait {
		j, err = c.Wait(ctx, j.ID)
	}
	if err != nil {
		return err
	}
	if err := json.NewEncoder(stdout).Encode(j); err != nil {
		return err
	}
	if o.wait && j.State != client.StateComplete {
		return fmt.Errorf("%s is %s: %s", j.ID, j.State, j.Error)
	}
	return nil
}

func defaultIDFile() string {
	dir, err := os.UserConfigDir()
	if err != nil {
		return ".oncegate-client-id"
	}
	return filepath.Join(dir, "oncegate", "client-id")
}
