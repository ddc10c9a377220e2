// Command demo is `make demo`: a retry storm against the real processes, and a table of the results.
//
//	demo [--bin DIR] [--proxy envoy|gateway] [--keys N] [--clients N] [--seed N] [--timeout D]
//
// It starts manager, payments and Envoy, or the gateway, on free ports with data in its own folder. Then, for
// every key, many clients send the same payment at the same time and retry until they have the answer, while
//
//   - clients close their connection in the middle of the request, while they wait, or as the answer arrives;
//   - the upstream closes the connection without an answer, before or after the work;
//   - the manager is killed with SIGKILL once and started again on its data.
//
// It exits 0 when the upstream executed each key exactly once and all clients of a key got the same answer, and 1 when a
// key ran twice, ran never, or a client was left without an answer.
//
// Keys whose upstream closed the connection are the hard part: only the upstream knows whether the work was done.
// The gate remembers such a key as unknown, and no retry runs it. So the demo sends the keys whose work was not done
// (x-demo-drop: before) to a path on which nothing is remembered of them (unknown_ttl_seconds: 0) once their reservation has
// run out, and sees them executed in the end. It sends those whose work was done (x-demo-drop: after) to a path that is left
// as it is: there the clients get a 409 for as long as the storm lasts, and the work is not done again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/oncegate/oncegate/examples/internal/stack"
)

// pluginConfig is what the storm changes in the gate's configuration. The waits are short because the storm is. The
// pending TTL of the first path is longer than the manager's restart, so that no retry overtakes an answer that waits
// for its commit.
var pluginConfig = map[string]any{
	"pending_wait_timeout": 5,
	"pending_ttl_seconds":  15,
	"unknown_ttl_seconds":  0,
	"match": []any{
		map[string]any{"methods": []string{"POST"}, "path_prefix": "/payments/held", "unknown_ttl_seconds": 600},
		map[string]any{"methods": []string{"POST"}, "path_prefix": "/payments"},
	},
}

// managerDown is how long the manager stays dead: long enough for clients to notice.
const managerDown = 500 * time.Millisecond

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// options are the options of the command line.
type options struct {
	bin           string
	proxy         stack.Proxy
	keys, clients int
	seed          uint64
	timeout       time.Duration
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opts, err := parse(ctx, args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return 2
	}
	r, err := rage(ctx, opts, stdout)
	if err != nil {
		fmt.Fprintf(stderr, "demo: %v\n", err)
		return 1
	}
	if err := r.write(stdout); err != nil || !r.ok() {
		return 1
	}
	return 0
}

func parse(ctx context.Context, args []string, stderr io.Writer) (options, error) {
	opts := options{}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&opts.bin, "bin", "build", "`folder` with what make build made")
	proxy := flags.String("proxy", "envoy", "`what` the gate runs in, envoy or gateway; the gateway also where there is no Envoy")
	flags.IntVar(&opts.keys, "keys", 100, "`number` of keys, 1 to 10000")
	flags.IntVar(&opts.clients, "clients", 20, "`number` of clients for each key, 1 to 100")
	flags.Uint64Var(&opts.seed, "seed", rand.Uint64(), "`number` from which all chances are drawn")
	flags.DurationVar(&opts.timeout, "timeout", 3*time.Minute, "longest `time` the storm may take, 1s to 1h")
	if err := flags.Parse(args); err != nil {
		return opts, err
	}
	var err error
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q: it takes flags only", flags.Arg(0))
	case opts.keys < 1 || opts.keys > 10000:
		err = fmt.Errorf("--keys is %d, it must be from 1 to 10000", opts.keys)
	case opts.clients < 1 || opts.clients > 100:
		err = fmt.Errorf("--clients is %d, it must be from 1 to 100", opts.clients)
	case opts.timeout < time.Second || opts.timeout > time.Hour:
		err = fmt.Errorf("--timeout is %v, it must be from 1s to 1h", opts.timeout)
	default:
		opts.proxy, err = stack.ChooseProxy(ctx, *proxy, opts.bin)
	}
	if err != nil {
		fmt.Fprintf(stderr, "demo: %v\n", err)
	}
	return opts, err
}

// rage starts the processes, runs the storm, and stops the processes. It keeps their folder, with the logs, if
// something went wrong, and removes it otherwise.
func rage(interrupt context.Context, opts options, stdout io.Writer) (r report, err error) {
	dir, err := os.MkdirTemp("", "oncegate-demo-")
	if err != nil {
		return report{}, err
	}
	defer func() {
		if interrupt.Err() != nil || err == nil && r.ok() {
			err = errors.Join(err, os.RemoveAll(dir))
		} else {
			fmt.Fprintf(stdout, "data and logs are kept in %s\n", dir)
		}
	}()
	fmt.Fprintf(stdout, "proxy: %v\n", opts.proxy)
	st, err := stack.Start(interrupt, stack.Config{BinDir: opts.bin, Dir: dir, Proxy: opts.proxy, Plugin: pluginConfig})
	if err != nil {
		return report{}, err
	}
	defer func() { err = errors.Join(err, st.Stop()) }()

	fmt.Fprintf(stdout, "retry storm: %d keys, %d clients each, seed %d\n", opts.keys, opts.clients, opts.seed)
	ctx, cancel := context.WithTimeout(interrupt, opts.timeout)
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)

	s := newStorm(st.ProxyURL(), st.PaymentsURL(), opts)
	s.crash = func(ctx context.Context) error {
		st.KillManager()
		s.progress(stdout, "manager killed with SIGKILL")
		// The result does not matter: after an interrupt the restart is unnecessary but harmless.
		sleep(ctx, managerDown)
		if err := st.StartManager(ctx); err != nil {
			fail(err)
			return err
		}
		s.progress(stdout, "manager restarted on its data")
		return nil
	}

	type result struct {
		report report
		err    error
	}
	done := make(chan result, 1)
	go func() {
		r, err := s.run(ctx)
		done <- result{r, err}
	}()
	progress := time.NewTicker(time.Second)
	defer progress.Stop()
	for {
		select {
		case res := <-done:
			s.progress(stdout, "done")
			if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
				return report{}, cause // interrupted, or a process ended: the report would only show the consequences
			}
			return res.report, res.err
		case err := <-st.Failed():
			fail(err)
		case <-progress.C:
			s.progress(stdout, "")
		}
	}
}
