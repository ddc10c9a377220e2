package ship

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/vfs"
)

// PartialDir is where a restore collects its files in the new data directory. While it
// exists the restore was not finished, and the directory is of no use.
const PartialDir = "restore.partial"

// ErrNothing says that a destination has nothing to restore, or nothing as old as asked for.
var ErrNothing = errors.New("ship: nothing to restore")

// DirError says that a directory cannot take a restored log.
type DirError struct{ Dir, Reason string }

func (e *DirError) Error() string { return fmt.Sprintf("%q: %s", e.Dir, e.Reason) }

// RestoreOptions are for Restore.
type RestoreOptions struct {
	// Store is the destination.
	Store object.Store
	// Dir is the new data directory: it must be absent, empty, or left by a restore that was cut off.
	Dir string
	// At asks for everything that was durable at that time, by the clock of the manager that shipped. What became durable
	// within the ship interval after it may be there as well. Zero means the newest state.
	At time.Time
	// Check, when set, is called with each record of the new directory. An error means that the record cannot be used.
	Check func(wal.Entry) error
	// Prepare, when set, is called with the report before the directory becomes
	// one that a manager would open. It may add files to dir, whose names end with .json:
	// they move to Dir with the log's.
	Prepare func(dir string, r *Report) error

	// nothing says that no file is written: see Verify.
	nothing bool
}

// Report is the result of Restore and Verify.
type Report struct {
	// Log is the id of the log that was shipped.
	Log string
	// Sequence is the last record's, Snapshot what the snapshot covers, 0 without.
	Sequence, Snapshot uint64
	// At is the newest time of which it has everything that was durable, by the clock of the manager that shipped.
	At time.Time
	// LongestTTL is how long the managers that shipped remembered a key at most.
	LongestTTL time.Duration
	// LongestWindow is how long a named log of theirs remembered an id at most; 0 when they had none.
	LongestWindow time.Duration
	// EpochFloor is the highest of the managers that shipped.
	EpochFloor uint64
	// Records that were written, the snapshot's included, from Objects of Bytes.
	Records uint64
	Objects int
	Bytes   int64
	Took    time.Duration
}

// Restore makes a data directory from the copies in a destination.
//
// Errors: a *DirError before anything is done; ErrNothing; one or more *DamageError,
// joined, for all objects of it that are missing or damaged; or one of the store or the file
// system. After a *DamageError the directory has an empty PartialDir. After another
// error it may have a PartialDir and files that were moved already. No manager opens such a directory, and Restore takes it
// for empty.
func Restore(ctx context.Context, o RestoreOptions) (_ *Report, err error) {
	start := time.Now()
	if err := makeEmpty(o.Dir); err != nil {
		return nil, err
	}
	partial := filepath.Join(o.Dir, PartialDir)
	defer func() {
		if err != nil {
			removeContent(partial)
		}
	}()
	report, err := restoreLog(ctx, &o, partial)
	if isDamage(err) { // perhaps before anything was written
		return nil, errors.Join(err, os.MkdirAll(partial, 0o700))
	}
	if err != nil {
		return nil, err
	}
	if o.Prepare != nil {
		if err := o.Prepare(partial, report); err != nil {
			return nil, err
		}
	}
	report.Took = time.Since(start)
	return report, install(o.Dir, partial)
}

// Verify reads and checks all that Restore would, and writes nothing. If Verify succeeds, Restore fails only for its
// directory, or when the destination changes. Dir and Prepare have no effect. Errors: those of Restore but *DirError.
func Verify(ctx context.Context, o RestoreOptions) (*Report, error) {
	start := time.Now()
	o.nothing = true
	report, err := restoreLog(ctx, &o, "")
	if err != nil {
		return nil, err
	}
	report.Took = time.Since(start)
	return report, nil
}

// removeContent removes what it can from a directory. The empty directory still keeps managers away.
func removeContent(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		_ = os.RemoveAll(filepath.Join(dir, e.Name()))
	}
}

// restoreLog makes the directory of the log. The error has all damage that it found.
func restoreLog(ctx context.Context, o *RestoreOptions, dir string) (*Report, error) {
	o.Store = &retrying{Store: o.Store, tries: restoreTries, timeout: tryTimeout}
	var stale error
	for range staleTries {
		p, err := makePlan(ctx, o.Store, o.At)
		if p == nil {
			return nil, err
		}
		var report *Report
		if err != nil {
			err = errors.Join(err, p.fetch(ctx, o, func(*run, fetched) error { return nil })) // all of the damage
		} else if report, err = p.restore(ctx, o, dir); err == nil {
			return report, nil
		}
		if !errors.Is(err, errMissing) {
			return nil, err
		}
		// The manager may have replaced what the plan names.
		if m, _, readErr := readManifest(ctx, o.Store); readErr != nil || m.sameAs(p.manifest) {
			return nil, errors.Join(err, readErr)
		}
		stale = err
	}
	return nil, stale
}

// staleTries bounds how often a plan that the manager made stale is made again without progress.
const staleTries = 5

// errMissing is in the chain of damage by missing objects.
var errMissing = errors.New("it is missing")

// noManifest names the missing object, because it may have been lost.
func noManifest(s object.Store) error {
	return fmt.Errorf("%w: %s has no shipped log: its object %s/%s is missing", ErrNothing, s, logPrefix, manifestObject)
}

func missing(name string) *DamageError {
	return &DamageError{Object: name, Reason: errMissing.Error(), cause: errMissing}
}

// makeEmpty removes the files of a restore that was cut off, and refuses a directory with anything else. It removes
// PartialDir last: without it a manager would open the rest.
func makeEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &DirError{dir, err.Error()}
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.Name() == "lost+found" && e.IsDir() }) // of an ext4 volume
	isPartial := func(e fs.DirEntry) bool { return e.Name() == PartialDir && e.IsDir() }
	partial := slices.ContainsFunc(entries, isPartial)
	for _, e := range entries {
		moved := e.Type().IsRegular() && slices.Contains(restored, filepath.Ext(e.Name()))
		if !isPartial(e) && !(partial && moved) {
			return &DirError{dir, fmt.Sprintf("must be absent or empty, it has %s", e.Name())}
		}
	}
	for _, e := range entries {
		if !isPartial(e) {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(filepath.Join(dir, PartialDir))
}

// restored are how the names of the files end that install moves.
var restored = []string{".wal", ".snap", ".json"}

// restore writes the directory of the log.
func (p *plan) restore(ctx context.Context, o *RestoreOptions, dir string) (_ *Report, err error) {
	fs := vfs.Discard()
	if !o.nothing {
		fs = vfs.OS()
		if err := os.RemoveAll(dir); err != nil { // of a plan that became stale
			return nil, err
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	im, err := wal.NewImporter(fs, dir)
	if err != nil {
		return nil, err
	}
	defer im.Abort()
	report := &Report{Log: p.history.Log, At: time.UnixMilli(p.history.Began), EpochFloor: p.manifest.EpochFloor,
		LongestTTL: time.Duration(p.manifest.LongestTTL) * time.Millisecond, LongestWindow: time.Duration(p.manifest.LongestWindow) * time.Millisecond}
	w := writer{plan: p, im: im, report: report}
	if o.nothing {
		w.check = o.Check
	}
	if err := w.write(ctx, o); err != nil || o.nothing {
		return report, err
	}
	found, err := wal.Verify(ctx, dir, wal.InspectOptions{Check: firstOf(o.Check)})
	if err != nil {
		return nil, err
	}
	for _, c := range found.Complaints {
		if c.Severity == wal.Damage {
			return nil, fmt.Errorf("ship: the restored log cannot be used: %s", c)
		}
	}
	return report, nil
}

// firstOf makes a check that fails for the first record which cannot be used, and for no other: wal.Verify remembers each
// failure, and a snapshot may have millions of records.
func firstOf(check func(wal.Entry) error) func(wal.Entry) error {
	if check == nil {
		return nil
	}
	failed := false
	return func(e wal.Entry) error {
		if failed {
			return nil
		}
		err := check(e)
		if e.Replaced {
			return nil
		}
		failed = err != nil
		return err
	}
}

// install moves the files to where a manager looks for them. No manager opens the directory before install
// has finished: the oldest segment and the snapshot, without which the rest cannot be opened,
// come last, and PartialDir is removed after them.
func install(dir, partial string) error {
	entries, err := os.ReadDir(partial)
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int {
		if x, y := filepath.Ext(a.Name()), filepath.Ext(b.Name()); x != y {
			return strings.Compare(y, x) // .wal before .snap
		}
		return strings.Compare(b.Name(), a.Name())
	})
	for _, e := range entries {
		if err := os.Rename(filepath.Join(partial, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	if err := vfs.OS().SyncDir(dir); err != nil {
		return err
	}
	if err := os.Remove(partial); err != nil {
		return err
	}
	return errors.Join(vfs.OS().SyncDir(dir), vfs.OS().SyncDir(filepath.Dir(filepath.Clean(dir))))
}

// writer turns objects into the files of a log.
type writer struct {
	plan   *plan
	im     *wal.Importer
	report *Report
	// check is called with each record; nil: wal.Verify does that on the files.
	check func(wal.Entry) error

	next    uint64  // sequence number of the record to write next; 0 before the first run
	segment segment // that is being written; zero before the first
	reached bool    // the last point to restore was found
}

func (w *writer) write(ctx context.Context, o *RestoreOptions) error {
	if base := w.plan.base; base != nil {
		if err := w.im.Snapshot(base.Sequence, time.UnixMilli(base.Time)); err != nil {
			return err
		}
		w.report.Sequence, w.report.Snapshot, w.report.At = base.Sequence, base.Sequence, time.UnixMilli(base.Time)
	}
	if err := w.fetch(ctx, o); err != nil {
		return err
	}
	if w.segment.Number == 0 { // the log needs one for its next records
		base := w.plan.base
		if base == nil {
			return fmt.Errorf("%w: there is no record as old as that", ErrNothing)
		}
		if err := w.im.Segment(base.Segment.Number, base.Sequence+1, base.Segment.Capacity); err != nil {
			return err
		}
	}
	return w.im.Finish()
}

// fetch writes the objects of the plan. A manager may merge the runs of the plan while the snapshot is read, which may take
// an hour; then fetch continues with the merged runs.
func (w *writer) fetch(ctx context.Context, o *RestoreOptions) error {
	p := w.plan
	for stuck := 0; ; stuck++ {
		before := w.next
		parts := p.parts()
		err := p.fetch(ctx, o, func(r *run, f fetched) error {
			w.report.Objects++
			if r == nil {
				parts--
				return w.part(f)
			}
			return w.run(r, f)
		})
		if w.next > before {
			stuck = 0
		}
		if parts > 0 || !errors.Is(err, errMissing) || stuck == staleTries {
			return err
		}
		again, readErr := p.again(ctx, o, w.next)
		if again == nil {
			return errors.Join(err, readErr)
		}
		p = again
	}
}

func (w *writer) part(f fetched) error {
	for _, body := range f.bodies {
		if err := w.im.Append(body); err != nil {
			return err
		}
		w.report.Records++
		if err := w.ask(f.name, wal.Entry{Sequence: w.report.Records, Body: body}); err != nil {
			return err
		}
		w.report.Bytes += int64(len(body))
	}
	return nil
}

// ask calls check with a record, as wal.Verify does.
func (w *writer) ask(object string, e wal.Entry) error {
	if w.check == nil {
		return nil
	}
	if err := w.check(e); err != nil && !e.Replaced {
		return fmt.Errorf("ship: the restored log cannot be used: object %s, sequence %d: the record cannot be used: %w", object, e.Sequence, err)
	}
	return nil
}

// run writes the records of a run, up to the first point at which everything of the time was durable.
func (w *writer) run(r *run, f fetched) error {
	last := r.First - 1
	for _, p := range f.header.Points {
		if w.reached {
			break
		}
		last, w.reached = p.Sequence, p.Time >= w.plan.at
		if last >= w.report.Snapshot { // the snapshot's own time is less exact
			w.report.At = time.UnixMilli(p.Time)
		}
	}
	// The records that the snapshot covers are restored, whatever their time is.
	if last = max(last, min(r.Last, w.report.Snapshot)); last < r.First {
		return nil
	}
	w.next = cmp.Or(w.next, r.First)
	if r.Segment.Number != w.segment.Number {
		if err := w.im.Segment(r.Segment.Number, r.First, r.Segment.Capacity); err != nil {
			return err
		}
		w.segment = r.Segment
	}
	for ; w.next <= last; w.next++ {
		seq, body := w.next, f.bodies[w.next-r.First]
		if err := w.im.Append(body); err != nil {
			return err
		}
		if err := w.ask(f.name, wal.Entry{Segment: r.Segment.Number, Sequence: seq, Body: body, Replaced: seq <= w.report.Snapshot}); err != nil {
			return err
		}
		w.report.Sequence = max(w.report.Sequence, seq)
		w.report.Records++
		w.report.Bytes += int64(len(body))
	}
	return nil
}
