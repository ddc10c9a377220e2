package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// compareRounds measures durable operations in rounds, in which all systems take turns for a moment
// each: what else the machine does disturbs some rounds and not others, so the best one is
// comparable with that of the others, and the quartile shows how sure that is. With one caller and single calls the disk alone
// takes part as well.
func compareRounds(ctx context.Context, s settings) error {
	dir, err := os.MkdirTemp(s.out, "rounds")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r := rounds{settings: s, dir: dir}
	defer r.stop()
	if err := r.prepare(ctx); err != nil {
		return err
	}
	for range s.rounds {
		for i := range r.steps {
			st := &r.steps[i]
			before, start := cpuOf(st.pid), time.Now()
			rate, took, err := st.run(s.duration / 10)
			st.took = append(st.took, took...)
			if err != nil {
				return fmt.Errorf("%s: %w", st.name, err)
			}
			st.cpu += cpuOf(st.pid) - before
			st.operations += rate * float64(max(st.batch, 1)) * time.Since(start).Seconds()
			st.rates = append(st.rates, rate*float64(max(st.batch, 1)))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| durable operations/s | callers | best round | upper quartile | of Redis | CPU us each | a tenth within, us |\n|---|---:|---:|---:|---:|---:|---:|\n")
	for _, st := range r.steps {
		best, quartile := st.best(), st.rates[len(st.rates)*3/4]
		fmt.Fprintf(&b, "| %s | %d | %.0f | %.0f | %.2f |", st.name, st.callers, best, quartile, best/r.redis(&st))
		if st.pid != 0 {
			fmt.Fprintf(&b, " %.1f", st.cpu.Seconds()*1e6/st.operations)
		}
		b.WriteString(" |")
		if slices.Sort(st.took); len(st.took) > 0 {
			fmt.Fprintf(&b, " %.1f", float64(st.took[len(st.took)/10].Nanoseconds())/1e3)
		}
		b.WriteString(" |\n")
	}
	text := b.String() + fmt.Sprintf("\n%d rounds of %s each; %s.\n", s.rounds, s.duration/10, version(ctx, "redis-server", "--version"))
	fmt.Println(text)
	name := fmt.Sprintf("rounds-%s-%s.md", strings.Trim(fmt.Sprint(s.callers), "[]"), strings.Trim(fmt.Sprint(s.batches), "[]"))
	return os.WriteFile(filepath.Join(s.out, strings.ReplaceAll(name, " ", "-")), []byte(text), 0o644)
}

// redis is the best that Redis did with the same callers, and as many operations at a time.
func (r *rounds) redis(like *step) (best float64) {
	for i := range r.steps {
		if st := &r.steps[i]; st.peer && st.callers == like.callers && st.batch == like.batch {
			best = max(best, st.best())
		}
	}
	return best
}

// step is one way to make operations durable.
type step struct {
	name    string
	callers int
	batch   int                                                                       // operations at a time; 0: one
	peer    bool                                                                      // Redis
	pid     int                                                                       // of the server, 0 where there is none
	run     func(d time.Duration) (requests float64, took []time.Duration, err error) // per second, and of one caller each

	rates      []float64
	took       []time.Duration
	cpu        time.Duration // that the server took in all rounds
	operations float64       // in all rounds
}

// cpuOf is the processor's time that a process has taken, in steps of 10 ms.
func cpuOf(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

func (st *step) best() float64 {
	slices.Sort(st.rates)
	return st.rates[len(st.rates)-1]
}

// rounds is what takes part, and what has to be stopped.
type rounds struct {
	settings
	dir   string
	steps []step
	stops []func()
}

func (r *rounds) stop() {
	for _, f := range slices.Backward(r.stops) {
		f()
	}
}

func (r *rounds) add(name string, callers, batch int, run func(d time.Duration) (float64, []time.Duration, error)) *step {
	r.steps = append(r.steps, step{name: name, callers: callers, batch: batch, run: run})
	return &r.steps[len(r.steps)-1]
}

func (r *rounds) prepare(ctx context.Context) error {
	if slices.Contains(r.callers, 1) && slices.Contains(r.batches, 0) {
		if err := r.addDisk(); err != nil {
			return err
		}
	}
	if err := r.addManagers(ctx); err != nil {
		return err
	}
	return r.addRedis(ctx)
}

// addDisk adds the disk alone. BenchmarkLayers of the manager's server measures what lies between.
func (r *rounds) addDisk() error {
	f, err := bareFile(filepath.Join(r.dir, "bare"))
	if err != nil {
		return err
	}
	r.stops = append(r.stops, func() { _ = f.Close() })
	r.add("write + fdatasync", 1, 0, func(d time.Duration) (float64, []time.Duration, error) { return bareWrites(f, d, false) })
	r.add("pwritev2 with RWF_DSYNC", 1, 0, func(d time.Duration) (float64, []time.Duration, error) { return bareWrites(f, d, true) })

	return nil
}

// addManagers adds a manager over TCP, and one over a Unix socket.
func (r *rounds) addManagers(ctx context.Context) error {
	for where, listen := range map[string]string{"TCP": "127.0.0.1:0", "a Unix socket": "unix:" + filepath.Join(r.dir, "socket")} {
		p, err := startManager(r.dir, r.manager, listen)
		if err != nil {
			return err
		}
		r.stops = append(r.stops, p.stop)
		for _, callers := range r.callers {
			for _, batch := range r.batches {
				name := "reserve, commit at oncegate over " + where
				if batch > 0 {
					name += fmt.Sprintf(", %d calls at a time on a stream", batch)
				}
				r.add(name, callers, batch, func(d time.Duration) (float64, []time.Duration, error) {
					return leanClients(ctx, d, callers, p.addr, newLedgerCalls(batch))
				}).pid = p.cmd.Process.Pid
			}
		}
	}
	return nil
}

// addRedis adds Redis, asked by the same client as the manager and by its own.
func (r *rounds) addRedis(ctx context.Context) error {
	addr, err := freeAddr()
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	srv, err := servers.StartRedis(ctx, "--bind", host, "--port", port)
	if err != nil {
		return err
	}
	r.stops = append(r.stops, srv.Close)
	value := strings.Repeat("x", 256)
	for _, callers := range r.callers {
		for _, batch := range r.batches {
			pipelines := ""
			if batch > 0 {
				pipelines = fmt.Sprintf(", pipelines of %d", batch)
			}
			st := r.add("SET NX at Redis, appendfsync always, the same client"+pipelines, callers, batch, func(d time.Duration) (float64, []time.Duration, error) {
				return leanClients(ctx, d, callers, addr, &redisSets{run: runName(), pipeline: max(batch, 1), value: value})
			})
			st.peer, st.pid = true, srv.PID()
			last := 20000.0
			r.add("SET NX at Redis, appendfsync always, redis-benchmark"+pipelines, callers, batch, func(d time.Duration) (float64, []time.Duration, error) {
				rate, err := redisBenchmark(ctx, addr, callers, max(batch, 1), max(1000, int(last*d.Seconds())), 1_000_000_000,
					"SET", "once:__rand_int__", value, "NX", "PX", "300000")
				last = rate
				return rate / float64(max(batch, 1)), nil, err
			}).peer = true
		}
	}
	return nil
}

// runName makes the keys of a measurement new ones.
func runName() string { return strconv.FormatInt(time.Now().UnixNano()%1e15, 36) + "-" }

// oneCaller calls op until the time is over, and returns calls per second and what each took.
func oneCaller(d time.Duration, op func(n int) error) (rate float64, took []time.Duration, err error) {
	start := time.Now()
	for last := start; ; {
		if err := op(len(took)); err != nil {
			return 0, nil, err
		}
		now := time.Now()
		took = append(took, now.Sub(last))
		if last = now; now.Sub(start) >= d {
			return float64(len(took)) / now.Sub(start).Seconds(), took, nil
		}
	}
}

// bareSize is what the bare writes have to themselves, written before.
const bareSize = 64 << 20

func bareFile(name string) (*os.File, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	chunk := make([]byte, 1<<20)
	for off := int64(0); off < bareSize; off += int64(len(chunk)) {
		if _, err := f.WriteAt(chunk, off); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return f, f.Sync()
}

// bareWrites is what the disk can do: records one after another into space that was written before,
// by a thread that does nothing else.
func bareWrites(f *os.File, d time.Duration, dsync bool) (float64, []time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, rec, off := int(f.Fd()), make([]byte, 520), int64(0)
	return oneCaller(d, func(int) error {
		if off+int64(len(rec)) > bareSize {
			off = 0
		}
		err := bareWrite(fd, rec, off, dsync)
		off += int64(len(rec))
		return err
	})
}

func bareWrite(fd int, b []byte, off int64, dsync bool) error {
	if dsync {
		_, err := unix.Pwritev2(fd, [][]byte{b}, off, unix.RWF_DSYNC)
		return err
	}
	if _, err := unix.Pwrite(fd, b, off); err != nil {
		return err
	}
	return unix.Fdatasync(fd)
}
