package walogs

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/logs/logstest"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is what Options.Elapsed shows; tests move it.
type clock struct{ ns atomic.Int64 }

func (c *clock) elapsed() time.Duration  { return time.Duration(c.ns.Load()) }
func (c *clock) advance(d time.Duration) { c.ns.Add(int64(d)) }

// rig is an engine on a disk that fails on demand.
type rig struct {
	*Engine
	logstest.Caller
	t     *testing.T
	dir   string
	fs    *faultfs.FS
	clock *clock
	opts  Options
}

// newRig makes an engine with one log. Segments are small, duties are done by hand.
func newRig(t *testing.T, ch logs.Change) *rig {
	t.Helper()
	r := newRigWithout(t)
	if _, created, err := r.Put(t.Context(), "log", ch); err != nil || !created {
		t.Fatalf("Put: %v, %v", created, err)
	}
	// The names of logs are those of real directories.
	if err := os.MkdirAll(filepath.Join(r.dir, "log"), 0o700); err != nil {
		t.Fatal(err)
	}
	return r
}

// newRigWithout makes an engine without a log.
func newRigWithout(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), fs: new(faultfs.FS), clock: new(clock)}
	r.Caller = logstest.Caller{T: t, Engine: func() logs.Engine { return r.Engine }}
	r.opts = Options{SegmentBytes: 16 << 10, DutyEvery: 24 * time.Hour, Logger: slog.New(slog.DiscardHandler)}
	r.opts.Log.FillAhead = -1
	r.open()
	t.Cleanup(func() { r.close() })
	return r
}

func (r *rig) open() {
	r.t.Helper()
	if err := r.tryOpen(); err != nil {
		r.t.Fatalf("Open: %v", err)
	}
}

func (r *rig) tryOpen() error {
	opts := r.opts
	opts.Elapsed = r.clock.elapsed
	if r.fs != nil {
		opts.Log.FS = r.fs
	}
	e, err := Open(r.t.Context(), r.dir, opts)
	r.Engine = e
	return err
}

func (r *rig) close() {
	if r.Engine != nil {
		_ = r.Engine.Close()
		r.Engine = nil
	}
}

// restart stops in order, and starts with a clock that begins again.
func (r *rig) restart() {
	r.t.Helper()
	r.close()
	r.clock = new(clock)
	r.open()
}

// crash ends the process as of now, with only what was synced, and starts again.
func (r *rig) crash() {
	r.t.Helper()
	r.crashTo(r.fs.Crash())
}

func (r *rig) crashTo(fs *faultfs.FS) {
	r.t.Helper()
	r.close()
	r.fs, r.clock = fs, new(clock)
	r.open()
}

func (r *rig) log() *walLog {
	r.t.Helper()
	l, err := r.get("log")
	if err != nil {
		r.t.Fatal(err)
	}
	return l
}

func (r *rig) snapshots() {
	for _, l := range r.Engine.all("") {
		if err := l.snapshot(r.t.Context()); err != nil {
			r.t.Errorf("snapshot: %v", err)
		}
	}
}

func (r *rig) snapshot() {
	r.t.Helper()
	if err := r.log().snapshot(r.t.Context()); err != nil {
		r.t.Fatalf("snapshot: %v", err)
	}
}
