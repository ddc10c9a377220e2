package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// gateSettings are those of the comparison in Envoy.
type gateSettings struct {
	manager, module, noop string // files
	plain, tuned          string // the external processors
	toolchain, out        string // directories
	doc                   string // file to refresh
	rounds                int
	duration              time.Duration
	connections           []int
	only                  *regexp.Regexp
}

// A case is one row of the table: a load on a setup.
type gateCase struct {
	name  string
	setup string // key of setups
	kind  string // of load: none, new, replay
}

// The rows.
var gateCases = []gateCase{
	{"no filter", "plain", "none"},
	{"no-op Wasm", "noop", "none"},
	{"gate, no key", "body", "none"},
	{"gate, new key", "body", "new"},
	{"gate, new key, direct route", "direct", "new"},
	{"gate, new key, client_abort cancel", "cancel", "new"},
	{"gate, new key, headers mode", "headers", "new"},
	{"gate, new key, on Postgres", "on postgres", "new"},
	{"gate, new key, on Redis", "on redis", "new"},
	{"gate, new key, on etcd", "on etcd", "new"},
	{"gate, replay", "body", "replay"},
	{"gate, replay, headers mode", "headers", "replay"},
	{"ext_proc + Redis, plain, no key", "plain ext_proc", "none"},
	{"ext_proc + Redis, plain, new key", "plain ext_proc", "new"},
	{"ext_proc + Redis, plain, replay", "plain ext_proc", "replay"},
	{"ext_proc + Redis, tuned, no key", "tuned ext_proc", "none"},
	{"ext_proc + Redis, tuned, new key", "tuned ext_proc", "new"},
	{"ext_proc + Redis, tuned, replay", "tuned ext_proc", "replay"},
}

// compareGates measures what a request costs in Envoy: without a filter, with the
// gate, and with an external processor and Redis.
func compareGates(ctx context.Context, args []string) error {
	s, err := parseGateSettings(args)
	if err != nil {
		return err
	}
	var cases []gateCase
	for _, c := range gateCases {
		if s.only.MatchString(c.name) {
			cases = append(cases, c)
		}
	}
	if len(cases) == 0 {
		return usageError(fmt.Sprintf("-only %q: no row has such a name", s.only))
	}
	bench, err := newGateBench(ctx, s)
	if err != nil {
		return err
	}
	defer bench.stop()
	results := make([]*gateResult, len(cases))
	for i, c := range cases {
		if results[i], err = bench.prepare(ctx, c, s.connections); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	// All rows take turns, so that what else the machine does meets all of them; the
	// first round warms up.
	for round := range s.rounds + 1 {
		for i := range cases {
			r := results[(i+round)%len(cases)]
			for n, connections := range s.connections {
				duration := s.duration
				if round == 0 {
					duration = min(duration, time.Second)
				}
				m, err := bench.measure(ctx, r, connections, duration)
				if err != nil {
					return fmt.Errorf("%s, %d connections: %w", r.name, connections, err)
				}
				if round > 0 {
					r.loads[n].add(m)
				}
				fmt.Fprintf(os.Stderr, "round %d: %s, %d connections: %s\n", round, r.name, connections, m)
			}
		}
	}
	return writeGates(ctx, s, bench.envoy, results)
}

func parseGateSettings(args []string) (gateSettings, error) {
	var s gateSettings
	var connections, only string
	fs := flag.NewFlagSet("peers gate", flag.ContinueOnError)
	fs.StringVar(&s.manager, "manager", "build/oncegate", "the manager `binary`")
	fs.StringVar(&s.module, "module", "build/oncegate.wasm", "the gate's `file`")
	fs.StringVar(&s.noop, "noop", "build/bench/noop.wasm", "`file` of a filter that does nothing")
	fs.StringVar(&s.plain, "plain", "build/peers-extproc-plain", "the plain external processor's `binary`")
	fs.StringVar(&s.tuned, "tuned", "build/peers-extproc", "the tuned external processor's `binary`")
	fs.StringVar(&s.toolchain, "toolchain", "build/toolchain", "`directory` of the pinned Envoy")
	fs.StringVar(&s.out, "out", "build/peers", "`directory` for table and plot")
	fs.StringVar(&s.doc, "doc", "", "write the result into this `file` as well, between its marks, and the plot beside it")
	fs.IntVar(&s.rounds, "rounds", 4, "rounds; of each row the least counts")
	fs.DurationVar(&s.duration, "duration", 4*time.Second, "length of one measurement")
	fs.StringVar(&connections, "connections", "64,1", "concurrent clients, comma separated")
	fs.StringVar(&only, "only", "", "measure only rows whose name matches this `expression`")
	if err := fs.Parse(args); err != nil {
		return s, usageError(err.Error())
	}
	for _, c := range strings.Split(connections, ",") {
		n, err := strconv.Atoi(c)
		if err != nil || n < 1 || n > 1024 {
			return s, usageError(fmt.Sprintf("-connections %q: must be numbers from 1 to 1024, comma separated", connections))
		}
		s.connections = append(s.connections, n)
	}
	var err error
	if s.only, err = regexp.Compile(only); err != nil {
		return s, usageError(fmt.Sprintf("-only %q: %v", only, err))
	}
	if s.rounds < 1 || s.rounds > 1000 {
		return s, usageError(fmt.Sprintf("-rounds %d: must be from 1 to 1000", s.rounds))
	}
	if s.duration < time.Second {
		return s, usageError(fmt.Sprintf("-duration %s: must be at least 1s", s.duration))
	}
	for name, file := range map[string]*string{"manager": &s.manager, "module": &s.module, "noop": &s.noop, "plain": &s.plain, "tuned": &s.tuned} {
		if _, err := os.Stat(*file); err != nil {
			return s, usageError(fmt.Sprintf("-%s %s: %v", name, *file, err))
		}
		if *file, err = filepath.Abs(*file); err != nil {
			return s, err
		}
	}
	return s, os.MkdirAll(s.out, 0o755)
}
