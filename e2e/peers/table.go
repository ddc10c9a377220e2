package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// table is a comparison: a row for each system, a column for each load.
type table struct {
	settings
	name     string   // of the result
	unit     string   // of the rates
	programs []string // whose CPU time is measured, in the order of row.cpu
	columns  []column
	notes    string // on what the systems are
	dir      string // for what the programs write, on the disk of the results: /tmp may be memory
	rows     []*row
	stops    []func() // run backwards at the end
}

// row is one system.
type row struct {
	name string
	own  bool                 // Oncegate itself
	cpu  []cpuTime            // nil where it has no such program
	load func(c column) *load // nil: not measured
	best []result             // of each column
}

// cpuTime returns the CPU time that a program has taken so far.
type cpuTime func() time.Duration

// load is what a row does in a column.
type load struct {
	prepare func(ctx context.Context) error // not measured; may be nil
	run     func(ctx context.Context) (operations int, err error)
	// median is how long an operation took in the last run; nil where nobody asks for it.
	median func() time.Duration
}

// result is that of the best round, which has the highest rate.
type result struct {
	rate   float64
	median time.Duration
	cpu    []time.Duration // of an operation
}

// newTable makes a table without columns and rows. The caller must call stop.
func (s settings) newTable(name, unit string, programs ...string) (*table, error) {
	dir, err := os.MkdirTemp(s.out, name)
	if err != nil {
		return nil, err
	}
	t := &table{settings: s, name: name, unit: unit, programs: programs, dir: dir}
	t.onStop(func() { _ = os.RemoveAll(dir) })
	return t, nil
}

// add adds a row that does something in a column, if the user wants it.
func (t *table) add(r *row) {
	r.best = make([]result, len(t.columns))
	if t.wants(r.name) && slices.ContainsFunc(t.columns, func(c column) bool { return r.load(c) != nil }) {
		t.rows = append(t.rows, r)
	}
}

func (t *table) wants(name string) bool {
	return strings.Contains(strings.ToLower(name), strings.ToLower(t.only))
}

func (t *table) onStop(f func()) { t.stops = append(t.stops, f) }

func (t *table) stop() {
	for _, f := range slices.Backward(t.stops) {
		f()
	}
}

// measure measures and writes the table. All rows take turns in each round, so what else the machine does disturbs all
// alike, and some rounds only.
func (t *table) measure(ctx context.Context) error {
	if len(t.rows) == 0 {
		return usageError(fmt.Sprintf("-only %q: no row has that in its name", t.only))
	}
	for round := range t.rounds {
		for i, column := range t.columns {
			for _, r := range t.rows {
				l := r.load(column)
				if l == nil {
					continue
				}
				if err := r.measure(ctx, l, &r.best[i]); err != nil {
					return fmt.Errorf("%s: %s: %w", r.name, column.name, err)
				}
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, t.rounds)
	}
	return t.write(ctx)
}

func (r *row) measure(ctx context.Context, l *load, best *result) error {
	if l.prepare != nil {
		if err := l.prepare(ctx); err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
	}
	before, start := r.usage(), time.Now()
	operations, err := l.run(ctx)
	if err == nil && operations == 0 {
		err = errors.New("nothing was done")
	}
	if err != nil {
		return err
	}
	rate, cpu := float64(operations)/time.Since(start).Seconds(), r.usage()
	if rate <= best.rate {
		return nil
	}
	for i := range cpu {
		cpu[i] = (cpu[i] - before[i]) / time.Duration(operations)
	}
	*best = result{rate: rate, cpu: cpu}
	if l.median != nil {
		best.median = l.median()
	}
	return nil
}

func (r *row) usage() []time.Duration {
	all := make([]time.Duration, len(r.cpu))
	for i, cpu := range r.cpu {
		if cpu != nil {
			all[i] = cpu()
		}
	}
	return all
}

// write prints the table, stores it, and puts it into the document.
func (t *table) write(ctx context.Context) error {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s (CPU us each: %s) |", t.unit, strings.Join(t.programs, "+"))
	for _, c := range t.columns {
		fmt.Fprintf(&b, " %s |", c.name)
	}
	fmt.Fprintf(&b, "\n|---|%s\n", strings.Repeat("---:|", len(t.columns)))
	for _, r := range t.rows {
		name := r.name
		if r.own {
			name = "**" + name + "**"
		}
		fmt.Fprintf(&b, "| %s |", name)
		for _, best := range r.best {
			if best.rate == 0 {
				b.WriteString(" – |")
				continue
			}
			fmt.Fprintf(&b, " %.0f", best.rate)
			if best.median != 0 {
				fmt.Fprintf(&b, ", p50 %.2f ms", best.median.Seconds()*1e3)
			}
			parts := make([]string, len(r.cpu))
			for i, d := range best.cpu {
				if parts[i] = "–"; r.cpu[i] != nil {
					parts[i] = fmt.Sprintf("%.0f", d.Seconds()*1e6)
				}
			}
			fmt.Fprintf(&b, " (%s) |", strings.Join(parts, "+"))
		}
		b.WriteByte('\n')
	}
	machine, err := describeHost(t.out)
	if err != nil {
		return err
	}
	fmt.Fprintf(&b, "\n%s: %d rounds in turns, %s for each cell at most. %s. %s. %s\n", time.Now().Format(time.DateOnly), t.rounds, t.duration,
		version(ctx, t.manager(), "version"), t.notes, machine)
	fmt.Print("\n", b.String())
	if err := os.WriteFile(filepath.Join(t.out, t.name+".md"), []byte(b.String()), 0o644); err != nil || t.doc == "" {
		return err
	}
	return refreshDoc(t.doc, t.name, b.String())
}

// refreshDoc replaces the result with a name in a document: what is between the marks "<!-- result: NAME -->" and
// "<!-- end of result -->".
func refreshDoc(file, name, result string) error {
	begin, end := "<!-- result: "+name+" -->\n", "<!-- end of result -->\n"
	text, err := os.ReadFile(file)
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return cmp.Or(err, fmt.Errorf("%s has not the marks %q and %q", file, begin, end))
	}
	return os.WriteFile(file, []byte(before+begin+"\n"+result+"\n"+end+after), 0o644)
}

// timedCalls lets callers goroutines call op until the duration is over, and returns how many calls there were. The
// first error ends all of them.
func timedCalls(ctx context.Context, d time.Duration, callers int, op func(ctx context.Context, caller, n int) error) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var done atomic.Int64
	var wg sync.WaitGroup
	stop := time.Now().Add(d)
	for c := range callers {
		wg.Go(func() {
			for n := 0; time.Now().Before(stop) && ctx.Err() == nil; n++ {
				if err := op(ctx, c, n); errors.Is(err, errNoMore) {
					return
				} else if err != nil {
					cancel(err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return int(done.Load()), context.Cause(ctx)
}

// errNoMore ends the calls of a caller of timedCalls.
var errNoMore = errors.New("nothing is left to do")

// runName makes the keys of a measurement new ones.
func runName() string { return strconv.FormatInt(1e15+time.Now().UnixNano()%1e15, 36) + "-" }

// keysOf are the keys of one call, of 32 bytes.
func keysOf(run string, caller, n, size int) []string {
	keys := make([]string, size)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s%05d-%015d", run, caller, n*size+i)
	}
	return keys
}

// ownCPU is the CPU time of this process.
func ownCPU() time.Duration {
	var own syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &own) != nil {
		return 0
	}
	return time.Duration(own.Utime.Nano() + own.Stime.Nano())
}

// cpuOf is the CPU time of processes and of their children, running and ended, in steps of 10 ms.
func cpuOf(pids ...int) cpuTime {
	return func() time.Duration {
		var ticks int
		stats, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, file := range stats {
			b, err := os.ReadFile(file)
			if err != nil {
				continue // it has ended
			}
			fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
			if len(fields) < 15 {
				continue
			}
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			parent, _ := strconv.Atoi(fields[1])
			if !slices.Contains(pids, pid) && !slices.Contains(pids, parent) {
				continue
			}
			for _, f := range fields[11:15] { // of itself, and of its ended children
				n, _ := strconv.Atoi(f)
				ticks += n
			}
		}
		return time.Duration(ticks) * 10 * time.Millisecond
	}
}
