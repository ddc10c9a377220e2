package walogs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is what Options.Elapsed shows; tests move it.
type clock struct{ ns atomic.Int64 }

func (c *clock) elapsed() time.Duration  { return time.Duration(c.ns.Load()) }
func (c *clock) advance(d time.Duration) { c.ns.Add(int64(d)) }

// rig is an engine on a disk that fails when it is told to.
type rig struct {
	*Engine
	t     *testing.T
	dir   string
	fs    *faultfs.FS
	clock *clock
	opts  Options
}

// newRig makes an engine with one log. Segments are small, duties are done by hand.
func newRig(t *testing.T, ch logs.Change) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), fs: new(faultfs.FS), clock: new(clock)}
	r.opts = Options{SegmentBytes: 16 << 10, DutyEvery: 24 * time.Hour, Logger: slog.New(slog.DiscardHandler)}
	r.opts.Log.FillAhead = -1
	r.open()
	if _, created, err := r.Put(t.Context(), "log", ch); err != nil || !created {
		t.Fatalf("Put: %v, %v", created, err)
	}
	// The names of logs are those of real directories.
	if err := os.MkdirAll(filepath.Join(r.dir, "log"), 0o700); err != nil {
		t.Fatal(err)
	}
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
	opts.Log.FS, opts.Elapsed = r.fs, r.clock.elapsed
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

func (r *rig) snapshot() {
	r.t.Helper()
	if err := r.log().snapshot(r.t.Context()); err != nil {
		r.t.Fatalf("snapshot: %v", err)
	}
}

func entry(id, payload string) logs.Item { return logs.Item{ID: id, Payload: []byte(payload)} }

// put appends items and returns the outcomes in brief.
func (r *rig) put(items ...logs.Item) string {
	r.t.Helper()
	return r.putWith(r.t.Context(), false, items...)
}

func (r *rig) putWith(ctx context.Context, atomic bool, items ...logs.Item) string {
	out, err := r.Append(ctx, "log", items, atomic)
	if err != nil {
		return code(err)
	}
	var parts []string
	for _, o := range out {
		switch {
		case o.Err != nil:
			parts = append(parts, code(o.Err))
		case o.Duplicate:
			parts = append(parts, fmt.Sprint(o.Number, " again"))
		default:
			parts = append(parts, fmt.Sprint(o.Number))
		}
	}
	return strings.Join(parts, ", ")
}

func (r *rig) expect(want string, items ...logs.Item) {
	r.t.Helper()
	if got := r.put(items...); got != want {
		r.t.Errorf("the outcomes are %s, want %s", got, want)
	}
}

func code(err error) string {
	var e *logs.Error
	var f *api.FieldError
	switch {
	case errors.As(err, &e):
		return string(e.P.Code)
	case errors.As(err, &f):
		return "field " + f.Field
	}
	return err.Error()
}

// all reads the whole log, page by page, and checks that the numbers have no gaps.
func (r *rig) all() []logs.Entry {
	r.t.Helper()
	var all []logs.Entry
	q := logs.Query{Beginning: true, Limit: 7}
	for {
		page, err := r.Read(r.t.Context(), "log", q)
		if err != nil {
			r.t.Fatalf("Read: %v", err)
		}
		if len(page.Entries) == 0 {
			return all
		}
		for _, e := range page.Entries {
			if n := len(all); n > 0 && e.Number != all[n-1].Number+1 {
				r.t.Fatalf("entry %d follows entry %d", e.Number, all[n-1].Number)
			}
			all = append(all, e)
		}
		q = logs.Query{After: page.Cursor, Limit: 7}
	}
}

// ids are those of the whole log in order.
func (r *rig) ids() string {
	r.t.Helper()
	var ids []string
	for _, e := range r.all() {
		ids = append(ids, e.ID)
	}
	return strings.Join(ids, " ")
}
