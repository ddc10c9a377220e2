// Command capacity says what a load of new keys takes: cores, shards, memory, disk and network.
//
//	capacity [--rate N] [--retries F] [--ttl D] [--answer-bytes N] [--client-abort continue|cancel]
//	         [--regions N] [--workers N] [--shard-cores N] [--shard-memory BYTES] [--shard-disk BYTES]
//	         [--cache-bytes BYTES] [--job-bytes BYTES] [--fsync D] [--feed]
//	capacity --measure [--keys N] [--bin DIR] [--answer-bytes N] [--retries F] [--client-abort continue|cancel]
//
// Without --measure it calculates. The constants are measurements; model.go names each. With --measure it also runs manager, payments and the gate in a real Envoy on this machine, sends keys new
// keys, and prints what the model predicts for them beside what they took. It fails if a key did not run exactly once.
//
// Exit code 0: done. 1: the measured run failed. 2: the command line is wrong.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/oncegate/oncegate/examples/internal/stack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

type options struct {
	load    Load
	site    Site
	measure bool
	keys    int
	bin     string
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "capacity: %v\n", err)
		return 2
	}
	if !o.measure {
		Calculate(o.load, o.site).print(stdout)
		return 0
	}
	if err := compare(ctx, o, stdout); err != nil {
		fmt.Fprintf(stderr, "capacity: %v\n", err)
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{load: DefaultLoad, site: DefaultSite}
	f := flag.NewFlagSet("capacity", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	l, s := &o.load, &o.site
	f.Float64Var(&l.Rate, "rate", l.Rate, "new keys per second, of all regions together")
	f.Float64Var(&l.Retries, "retries", l.Retries, "retries per new key, on average")
	f.DurationVar(&l.TTL, "ttl", l.TTL, "how long an answer is remembered (committed_ttl_seconds)")
	f.IntVar(&l.AnswerBytes, "answer-bytes", l.AnswerBytes, "size of an answer, with its headers")
	f.StringVar(&l.ClientAbort, "client-abort", l.ClientAbort, "client_abort of the routes: continue or cancel")
	f.IntVar(&s.Regions, "regions", s.Regions, "data centres that share the load evenly, each with its own ledger")
	f.BoolVar(&s.Feed, "feed", s.Feed, "every region also keeps the answers of all others")
	f.IntVar(&s.Workers, "workers", s.Workers, "Envoy workers in a region; 0: as many as the CPU time needs")
	f.Float64Var(&s.ShardCores, "shard-cores", s.ShardCores, "cores of a manager")
	f.Float64Var(&s.ShardMemory, "shard-memory", s.ShardMemory, "memory of a manager in bytes")
	f.Float64Var(&s.ShardDisk, "shard-disk", s.ShardDisk, "disk of a manager in bytes")
	f.Float64Var(&s.CacheBytes, "cache-bytes", s.CacheBytes, "memory of a manager for records (--cache-bytes)")
	f.Float64Var(&s.JobBytes, "job-bytes", s.JobBytes, "what the jobs of a manager take at most (--job-max-bytes); 0 without jobs")
	f.DurationVar(&s.Fsync, "fsync", s.Fsync, "time of an fdatasync on a manager's disk")
	f.BoolVar(&o.measure, "measure", false, "run it on this machine, and compare")
	f.IntVar(&o.keys, "keys", 20000, "with --measure: new keys to send, 100 to 50000")
	f.StringVar(&o.bin, "bin", "build", "with --measure: the `folder` of what make build makes")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			f.SetOutput(stderr)
			f.Usage()
		}
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.keys < 100 || o.keys > 50000 {
		return o, fmt.Errorf("--keys=%d: must be 100 to 50000", o.keys)
	}
	return o, errors.Join(l.check(), s.check())
}

// compare prints the model's prediction for this machine beside a measured run.
func compare(ctx context.Context, o options, stdout io.Writer) error {
	proxy, err := stack.ChooseProxy(ctx, "envoy", o.bin)
	if err != nil {
		return err
	}
	if proxy.Name() != "envoy" {
		return fmt.Errorf("the measured run needs Envoy: %s", proxy)
	}
	dir, err := os.MkdirTemp("", "capacity-")
	if err != nil {
		return err
	}
	m, err := measure(ctx, o.bin, dir, proxy, o.load, o.keys)
	if err != nil {
		return fmt.Errorf("%w (logs are in %s)", err, dir)
	}
	p := predict(o.load, callersGrouping)
	fmt.Fprintf(stdout, "%d new keys and %d retries in %s, %d callers, %s\n\n", m.keys, m.retries,
		m.took.Round(time.Millisecond), callers, strings.Fields(proxy.String())[0])
	fmt.Fprintf(stdout, "for one new key            predicted   measured\n")
	row := func(name string, predicted, measured float64) {
		fmt.Fprintf(stdout, "%-26s %9.0f  %9.0f\n", name, predicted, measured)
	}
	row("Envoy, us of CPU", p.proxyMicros, m.proxyMicros)
	row("manager, us of CPU", p.managerMicros, m.managerMicros)
	row("log, bytes", p.logBytes, m.logBytes)
	row("window, bytes", p.windowBytes, m.windowBytes)
	row("Envoy to manager, bytes", p.networkBytes, m.networkBytes)
	fmt.Fprintf(stdout, "\nThe manager has %d MiB in memory. CPU times hold for the machine of docs/scale.md; a busy or slower\nmachine takes more.\n",
		int(m.managerResident)>>20)
	return os.RemoveAll(dir)
}
