package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// entryBytes is the size of an entry's payload.
const entryBytes = 256

// compareLogs measures durable appends to a log in rounds, in which all systems take turns for a
// moment each. The best round of each counts, as what else the machine does disturbs some rounds
// and not others.
func compareLogs(ctx context.Context, s settings) error {
	dir, err := os.MkdirTemp(s.out, "logs")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l := logRounds{settings: s, dir: dir}
	defer l.stop()
	if err := l.prepare(ctx); err != nil {
		return err
	}
	for range s.rounds {
		for _, st := range l.steps {
			if err := st.round(ctx, s.duration/10); err != nil {
				return fmt.Errorf("%s: %w", st.name, err)
			}
		}
	}
	text := l.table() + fmt.Sprintf("\n%d rounds of %s each. %s; nats-server %s; %s.\n", s.rounds, s.duration/10,
		version(ctx, s.manager, "version"), moduleVersion("github.com/nats-io/nats-server/v2"), version(ctx, "redis-server", "--version"))
	fmt.Println(text)
	return os.WriteFile(filepath.Join(s.out, "logs.md"), []byte(text), 0o644)
}

// logStep is one way to append to a log.
type logStep struct {
	name    string
	group   string // what it is comparable with
	callers int
	batch   int
	pid     int // of the server
	// run appends for a time, and returns batches per second.
	run func(ctx context.Context, d time.Duration) (float64, error)

	rates []float64       // entries per second of each round
	cpus  []time.Duration // per entry of each round, that of the client and of the server
}

func (st *logStep) round(ctx context.Context, d time.Duration) error {
	before, start := cpuOf(st.pid)+ownCPU(), time.Now()
	rate, err := st.run(ctx, d)
	if err != nil {
		return err
	}
	rate *= float64(st.batch)
	st.rates = append(st.rates, rate)
	entries := rate * time.Since(start).Seconds()
	st.cpus = append(st.cpus, time.Duration(float64(cpuOf(st.pid)+ownCPU()-before)/entries))
	return nil
}

// ownCPU is the processor's time that this program has taken.
func ownCPU() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// logRounds is what takes part, and what has to be stopped.
type logRounds struct {
	settings
	dir   string
	steps []*logStep
	stops []func()
}

func (l *logRounds) stop() {
	for _, f := range slices.Backward(l.stops) {
		f()
	}
}

// The ways to ask.
const (
	groupShared = "Go client, shared by all callers"
	groupLean   = "a connection for each caller"
)

// add adds a system for each number of callers and each size of batches.
func (l *logRounds) add(name, group string, pid int, run func(ctx context.Context, d time.Duration, callers, batch int) (float64, error)) {
	if !strings.Contains(name, l.only) {
		return
	}
	for _, callers := range l.callers {
		for _, batch := range l.batches {
			batch = max(batch, 1)
			l.steps = append(l.steps, &logStep{name: name, group: group, callers: callers, batch: batch, pid: pid,
				run: func(ctx context.Context, d time.Duration) (float64, error) { return run(ctx, d, callers, batch) }})
		}
	}
}

func (l *logRounds) prepare(ctx context.Context) error {
	if err := l.addManager(ctx); err != nil {
		return err
	}
	if err := l.addJetStream(ctx); err != nil {
		return err
	}
	return l.addStreams(ctx)
}

func (l *logRounds) table() string {
	var b strings.Builder
	for _, group := range []string{groupShared, groupLean} {
		for _, callers := range l.callers {
			for _, batch := range l.batches {
				batch = max(batch, 1)
				var best float64
				var steps []*logStep
				for _, st := range l.steps {
					if st.group == group && st.callers == callers && st.batch == batch {
						steps = append(steps, st)
						best = max(best, slices.Max(st.rates))
					}
				}
				if len(steps) == 0 {
					continue
				}
				fmt.Fprintf(&b, "\n### %s: callers %d, batches of %d\n\n", group, callers, batch)
				b.WriteString("| entries/s, durable | best round | median | of the best | CPU us an entry, least | median |\n|---|---:|---:|---:|---:|---:|\n")
				for _, st := range steps {
					rate := slices.Max(st.rates)
					fmt.Fprintf(&b, "| %s | %.0f | %.0f | %.2f | %.1f | %.1f |\n", st.name, rate, median(st.rates), rate/best,
						slices.Min(st.cpus).Seconds()*1e6, median(st.cpus).Seconds()*1e6)
				}
			}
		}
	}
	return strings.TrimPrefix(b.String(), "\n")
}

func median[T float64 | time.Duration](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
