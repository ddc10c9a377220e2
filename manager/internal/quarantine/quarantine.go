// Package quarantine keeps, for a ledger that forgot something, how long unknown keys must still be refused: what was
// forgotten may have run. That is so after a restore to an older point, and when somebody remembers more of the ledger than
// it knows itself (see package shard). The same holds for the ids of named logs.
//
// The time counts while a manager serves, by a clock that nobody sets. So neither a clock
// that jumps nor a manager that is stopped makes it shorter.
//
// The file also says above which number the epochs of writers continue. That holds forever.
package quarantine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal/vfs"
)

// File is the name of the file in the data directory. Once the time is over, the file is gone, or
// has only EpochFloor.
const File = "quarantine.json"

// saveEvery is how much time a crash may add.
const saveEvery = 5 * time.Second

// Write begins a quarantine in a directory.
func Write(dir string, r Record) error { return write(vfs.OS(), dir, r) }

func write(disk vfs.FS, dir string, r Record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	name := filepath.Join(dir, File)
	if err := remove(disk, name+".tmp"); err != nil { // a crash left it
		return err
	}
	f, err := disk.Create(name + ".tmp")
	if err != nil {
		return err
	}
	_, err = f.WriteAt(append(b, '\n'), 0)
	if err == nil {
		err = f.Datasync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = disk.Rename(name+".tmp", name)
	}
	if err != nil {
		return errors.Join(err, remove(disk, name+".tmp"))
	}
	return disk.SyncDir(dir)
}

func remove(disk vfs.FS, name string) error {
	if err := disk.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// readFile returns nil when there is no such file.
func readFile(disk vfs.FS, name string) ([]byte, error) {
	f, err := disk.Open(name, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	b := make([]byte, size)
	if err == nil {
		_, err = f.ReadAt(b, 0)
	}
	return b, errors.Join(err, f.Close())
}

// BeginDir begins a quarantine of a directory and all of its logs. No manager may have it open. One that is under way is not
// made shorter, and the floor of epochs goes up each time.
func BeginDir(dir string, d time.Duration, restoredTo time.Time, why string) (State, error) {
	q, err := Open(dir)
	if err != nil {
		return State{}, err
	}
	r := q.now.Load().rest()
	r.begin(d, d, restoredTo, why)
	return r.state(), Write(dir, r)
}

// EndDir ends the quarantine of a directory and of its logs. No manager may have it open. The floor of epochs stays. The
// state is that before the end, without remaining time.
func EndDir(dir string) (State, error) {
	q, err := Open(dir)
	if err != nil {
		return State{}, err
	}
	r := q.now.Load().record
	why := r.Why
	r.end()
	ended := r.state()
	ended.Why = why
	if q.Longest() == 0 {
		return ended, nil
	}
	return ended, Write(dir, r)
}

// ReadDir returns the quarantine that a directory's file describes. A manager that runs may be some seconds ahead of it.
func ReadDir(dir string) (State, error) {
	q, err := Open(dir)
	if err != nil {
		return State{}, err
	}
	return q.State(), nil
}

// Quarantine counts the time down, for a store that only one manager uses. It is safe for concurrent use.
type Quarantine struct {
	controls
	disk    vfs.FS
	dir     string // "" when nothing is kept
	now     atomic.Pointer[count]
	writing chan struct{} // holds an element while a goroutine writes the file and now
	begun   chan struct{} // has an element after a quarantine began
}

// count is a record, and since when it is counted down.
type count struct {
	record Record
	began  time.Time
}

// Open reads the quarantine of a directory; one that is over when there is none. It begins to count at once. With
// the directory "", nothing is read or kept.
func Open(dir string) (*Quarantine, error) { return OpenOn(vfs.OS(), dir) }

// OpenOn is Open on a file system.
func OpenOn(disk vfs.FS, dir string) (*Quarantine, error) {
	q := &Quarantine{disk: disk, dir: dir, writing: make(chan struct{}, 1), begun: make(chan struct{}, 1)}
	q.keeper = q
	c := &count{began: time.Now()}
	q.now.Store(c)
	if dir == "" {
		return q, nil
	}
	b, err := readFile(disk, filepath.Join(dir, File))
	if err != nil {
		return nil, err
	}
	if b == nil {
		return q, nil
	}
	err = json.Unmarshal(b, &c.record)
	if ms := min(c.record.Remaining, c.record.Logs); err == nil && ms < 0 {
		err = fmt.Errorf("remaining_ms or logs_ms is %d, it must not be negative", ms)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, File), err)
	}
	return q, nil
}

// rest is the record with what is left by now.
func (c *count) rest() Record {
	r := c.record
	r.Remaining, r.Logs = milliseconds(c.left(r.Remaining)), milliseconds(c.left(r.Logs))
	if r.over() {
		r.Why, r.Unsure = nil, false
	}
	return r
}

// change puts another record in force, once it is in the file.
func (q *Quarantine) change(ctx context.Context, do func(r *Record, now time.Time) bool) error {
	select {
	case q.writing <- struct{}{}:
		defer func() { <-q.writing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	r := q.now.Load().rest()
	if !do(&r, time.Now()) {
		return nil
	}
	if q.dir != "" {
		if err := write(q.disk, q.dir, r); err != nil {
			return err
		}
	}
	q.now.Store(&count{record: r, began: time.Now()})
	select {
	case q.begun <- struct{}{}:
	default:
	}
	return nil
}

// Begin begins a quarantine for d at least, and of all logs for window at least if that is longer, for that reason.
func (q *Quarantine) Begin(ctx context.Context, d, window time.Duration, why string) error {
	return q.change(ctx, func(r *Record, now time.Time) bool {
		r.begin(d, window, now, why)
		return true
	})
}

// State is what is known of the quarantine now.
func (q *Quarantine) State() State {
	r := q.now.Load().rest()
	s := r.state()
	s.Remaining = q.Longest() // to the nanosecond
	return s
}

// Remaining is for how much longer unknown keys must be refused; 0 when it is over.
func (q *Quarantine) Remaining() time.Duration {
	c := q.now.Load()
	return c.left(c.record.Remaining)
}

// Longest is for how much longer anything must be refused; 0 when it is over.
func (q *Quarantine) Longest() time.Duration {
	c := q.now.Load()
	return c.left(max(c.record.Remaining, c.record.Logs))
}

func (c *count) left(ms int64) time.Duration {
	if ms == 0 {
		return 0
	}
	return max(0, time.Duration(ms)*time.Millisecond-time.Since(c.began))
}

// Left is Remaining.
func (q *Quarantine) Left(store.Tx) (time.Duration, error) { return q.Remaining(), nil }

// LogsLeft is for how much longer named logs must refuse unknown ids; 0 when it is over.
func (q *Quarantine) LogsLeft(store.Tx) (time.Duration, error) {
	c := q.now.Load()
	return c.left(c.record.Logs), nil
}

// EpochFloor is the number above which epochs of writers continue; 0 when the directory was not restored.
func (q *Quarantine) EpochFloor(store.Tx) (uint64, error) { return q.now.Load().record.EpochFloor, nil }

// Record says that nothing is read in the transaction.
func (q *Quarantine) Record() (store.ID, bool) { return store.ID{}, false }

// Run keeps the file up to date until ctx ends, and tells changed when a quarantine began or ended. An error of the file
// is told to failed: the next start then counts more than it needs.
func (q *Quarantine) Run(ctx context.Context, changed func(before, after State), failed func(error)) {
	before := q.State()
	for {
		var tick <-chan time.Time
		var t *time.Timer
		if left := q.Longest(); left > 0 {
			t = time.NewTimer(min(left, saveEvery))
			tick = t.C
		}
		select {
		case <-tick:
		case <-q.begun:
		case <-ctx.Done():
		}
		if t != nil {
			t.Stop()
		}
		if before.Remaining > 0 || q.Longest() > 0 {
			q.save(failed)
		}
		if after := q.State(); !before.RestoredTo.Equal(after.RestoredTo) || (before.Remaining > 0) != (after.Remaining > 0) {
			changed(before, after)
			before = after
		}
		if ctx.Err() != nil {
			return
		}
	}
}

func (q *Quarantine) save(failed func(error)) {
	if q.dir == "" {
		return
	}
	q.writing <- struct{}{}
	defer func() { <-q.writing }()
	var err error
	if now := q.now.Load().rest(); !now.over() || now.EpochFloor > 0 {
		err = write(q.disk, q.dir, now)
	} else {
		err = remove(q.disk, filepath.Join(q.dir, File))
	}
	if err != nil {
		failed(err)
	}
}
