// Command peers measures Oncegate beside the systems that teams use for the
// same thing today, all of them real servers on this machine, started by the
// program itself, with the same durability, the same number of callers and each
// with a Go client. It is a separate module, so that nobody who builds
// Oncegate downloads the peers.
//
// `peers gate` does so for the whole request, in a real Envoy; `peers engines` for
// ledger and queue on every engine; `peers logs` for logs. `peers adapter` serves a benchmark of others.
//
// The numbers of one run are comparable with each other and with nothing else:
// clients and servers share the same cores.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// settings are the flags.
type settings struct {
	build, out   string // directories
	doc          string // document whose result is replaced
	only         string
	duration     time.Duration // of one measurement
	rounds, jobs int
}

// comparisons are the commands.
var comparisons = map[string]func(context.Context, settings) error{"gate": compareGates, "engines": compareEngines, "logs": compareLogs}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		var usage usageError
		if errors.As(err, &usage) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

type usageError string

func (e usageError) Error() string { return string(e) }

func run(ctx context.Context, args []string) error {
	if len(args) == 3 && args[0] == "nats" { // a child process of `logs`
		return serveNATS(ctx, args[1], args[2])
	}
	if slices.Equal(args, []string{"adapter"}) {
		return serveAdapter(ctx)
	}
	if len(args) == 0 || comparisons[args[0]] == nil {
		return usageError("usage: peers gate|engines|logs [flags], or peers adapter")
	}
	s, err := parseSettings(args)
	if err != nil {
		return err
	}
	return comparisons[args[0]](ctx, s)
}

func parseSettings(args []string) (s settings, err error) {
	fs := flag.NewFlagSet("peers "+args[0], flag.ContinueOnError)
	fs.StringVar(&s.build, "build", "build", "`directory` of what make has built")
	fs.StringVar(&s.out, "out", "build/peers", "`directory` for the table")
	fs.StringVar(&s.doc, "doc", "", "gate, engines: `file` in which the table is replaced as well, between its marks")
	fs.StringVar(&s.only, "only", "", "measure only rows whose name contains this")
	fs.DurationVar(&s.duration, "duration", 2*time.Second, "length of one measurement")
	fs.IntVar(&s.rounds, "rounds", 4, "rounds, in which all rows take turns; the best one of each counts")
	fs.IntVar(&s.jobs, "jobs", 5000, "engines: jobs to claim and to work in a round")
	if err := fs.Parse(args[1:]); err != nil {
		return s, usageError(err.Error())
	}
	if s.rounds < 1 || s.rounds > 10000 {
		return s, usageError(fmt.Sprintf("-rounds %d: must be from 1 to 10000", s.rounds))
	}
	if s.build, err = filepath.Abs(s.build); err != nil {
		return s, err
	}
	if s.out, err = filepath.Abs(s.out); err != nil {
		return s, err
	}
	return s, os.MkdirAll(s.out, 0o755)
}

func (s settings) manager() string { return filepath.Join(s.build, "oncegate") }
