// Command peers measures Oncegate beside the systems that teams use for the
// same thing today, all of them real servers on this machine, started by the
// program itself, with the same durability, the same number of callers and each
// with its best client. It is a separate module, so that nobody who builds
// Oncegate downloads the peers.
//
// `peers gate` does so for the whole request, in a real Envoy; `peers ledger` for
// the manager's ledger alone, `peers jobs` for its queue, `peers engines` for both on every engine, `peers logs` for its logs; `peers ship` measures
// what shipping to object storage costs it.
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
	"strconv"
	"strings"
	"syscall"
	"time"
)

// settings are what all comparisons share.
type settings struct {
	manager  string        // path of the manager binary
	out      string        // directory for tables and plots
	duration time.Duration // of one measurement
	callers  []int
	jobs     int
	only     string
	batches  []int // operations at a time, 0: single calls
	rounds   int
	shipDir  string // directory for the directory that is shipped to; "": in out
	doc      string // document whose result is replaced
}

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
	if len(args) == 0 {
		return usageError("usage: peers gate|engines|ledger|rounds|jobs|logs|ship [flags]; peers gate -h lists those of gate")
	}
	if args[0] == "echo" { // the child process that `ledger` starts
		return serveEcho(ctx, args[1:])
	}
	if args[0] == "nats" { // the child process that `logs` starts
		return serveNATS(ctx, args[1:])
	}
	if args[0] == "s3" { // the child process that `ship` starts
		return serveS3(ctx, args[1])
	}
	if args[0] == "gate" {
		return compareGates(ctx, args[1:])
	}
	fs := flag.NewFlagSet("peers "+args[0], flag.ContinueOnError)
	var s settings
	var callers, batches string
	fs.StringVar(&s.manager, "manager", "build/oncegate", "the manager `binary`")
	fs.StringVar(&s.out, "out", "build/peers", "`directory` for tables and plots")
	fs.DurationVar(&s.duration, "duration", 5*time.Second, "length of one measurement")
	fs.StringVar(&callers, "callers", "1,16,64,256", "concurrent callers, comma separated")
	fs.StringVar(&batches, "batches", "0", "operations at a time, on a stream of the ledger or in a batch, comma separated; 0: single calls (rounds, logs and ship)")
	fs.IntVar(&s.rounds, "rounds", 30, "rounds, of a tenth of -duration each (rounds, logs and ship) or of -duration (engines)")
	fs.IntVar(&s.jobs, "jobs", 100000, "jobs per measurement (jobs and engines)")
	fs.StringVar(&s.doc, "doc", "", "`file` whose result is replaced (engines only)")
	fs.StringVar(&s.shipDir, "ship-dir", "", "`directory` on another disk than -out, in which the shipped-to directory is made; in -out by default (ship only)")
	fs.StringVar(&s.only, "only", "", "measure only systems whose name contains this")
	if err := fs.Parse(args[1:]); err != nil {
		return usageError(err.Error())
	}
	for _, c := range strings.Split(callers, ",") {
		n, err := strconv.Atoi(c)
		if err != nil || n < 1 || n > 1024 {
			return usageError(fmt.Sprintf("-callers %q: must be numbers from 1 to 1024, comma separated", callers))
		}
		s.callers = append(s.callers, n)
	}
	for _, b := range strings.Split(batches, ",") {
		n, err := strconv.Atoi(b)
		if err != nil || n < 0 || n > 128 {
			return usageError(fmt.Sprintf("-batches %q: must be numbers from 0 to 128, comma separated", batches))
		}
		s.batches = append(s.batches, n)
	}
	if s.rounds < 1 || s.rounds > 10000 {
		return usageError(fmt.Sprintf("-rounds %d: must be from 1 to 10000", s.rounds))
	}
	if s.duration < time.Second {
		return usageError(fmt.Sprintf("-duration %s: must be at least 1s", s.duration))
	}
	if _, err := os.Stat(s.manager); err != nil {
		return usageError(fmt.Sprintf("-manager %s: %v", s.manager, err))
	}
	var err error
	if s.manager, err = filepath.Abs(s.manager); err != nil {
		return err
	}
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return err
	}
	switch args[0] {
	case "ledger":
		return compareLedgers(ctx, s)
	case "rounds":
		return compareRounds(ctx, s)
	case "logs":
		return compareLogs(ctx, s)
	case "ship":
		if s.only != "" {
			return usageError("-only is not for ship: each row is compared with the first")
		}
		return compareShipping(ctx, s)
	case "jobs":
		return compareJobs(ctx, s)
	case "engines":
		return compareEngines(ctx, s)
	default:
		return usageError(fmt.Sprintf("unknown comparison %q: must be gate, engines, ledger, rounds, jobs, logs or ship", args[0]))
	}
}
