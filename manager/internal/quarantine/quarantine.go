// Package quarantine keeps, in a data directory that was restored to an older point, how
// long unknown keys must still be refused: what the directory forgot may have run. The same holds
// for the ids of named logs.
//
// The time counts while a manager serves, by a clock that nobody sets. So neither a clock
// that jumps nor a manager that is stopped makes it shorter.
//
// The file also says above which number the epochs of writers go on. That holds forever.
package quarantine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// File is the name of the file in the data directory. Once the time is over, the file is gone, or
// has only EpochFloor.
const File = "quarantine.json"

// saveEvery is how much time a crash may add.
const saveEvery = 5 * time.Second

// Record is what the file holds.
type Record struct {
	// Remaining milliseconds of serving time.
	Remaining int64 `json:"remaining_ms"`
	// Logs are the remaining milliseconds of named logs, by their names.
	Logs map[string]int64 `json:"logs,omitempty"`
	// AllLogs are those of each log at least, whatever its name.
	AllLogs int64 `json:"all_logs_ms,omitempty"`
	// EpochFloor is at least each epoch that was given to a writer before the restore; 0 means that it is not known.
	EpochFloor uint64 `json:"epoch_floor,omitempty"`
	// RestoredTo is the point in time that the directory was restored to.
	RestoredTo time.Time `json:"restored_to"`
}

// Write begins a quarantine in a directory.
func Write(dir string, r Record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	name := filepath.Join(dir, File)
	f, err := os.CreateTemp(dir, File+".*.tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// BeginDir begins a quarantine of a directory and all of its logs. No manager may have it open. One that is under way is not
// made shorter, and the floor of epochs goes up each time.
func BeginDir(dir string, d time.Duration, restoredTo time.Time) (State, error) {
	q, err := Open(dir)
	if err != nil {
		return State{}, err
	}
	r := q.record
	r.Remaining, r.AllLogs = max(r.Remaining, milliseconds(d)), max(r.AllLogs, milliseconds(d))
	r.EpochFloor, r.RestoredTo = NextFloor(time.Now(), r.EpochFloor), restoredTo
	return r.state(), Write(dir, r)
}

// EndDir ends the quarantine of a directory and of its logs. No manager may have it open. The floor of epochs stays.
func EndDir(dir string) (State, error) {
	q, err := Open(dir)
	if err != nil {
		return State{}, err
	}
	r := Record{EpochFloor: q.record.EpochFloor, RestoredTo: q.record.RestoredTo}
	if q.Longest() == 0 {
		return r.state(), nil
	}
	return r.state(), Write(dir, r)
}

// ReadDir tells what the file of a directory says. A manager that runs may be some seconds ahead of it.
func ReadDir(dir string) (State, error) {
	q, err := Open(dir)
	if err != nil {
		return State{}, err
	}
	return State{q.Longest(), q.record.EpochFloor, q.record.RestoredTo}, nil
}

func (r *Record) state() State {
	return State{time.Duration(r.Remaining) * time.Millisecond, r.EpochFloor, r.RestoredTo}
}

// Quarantine counts the time down. The zero value is one that is over.
type Quarantine struct {
	dir    string
	record Record
	began  time.Time
}

// Open reads the quarantine of a directory; one that is over when there is none. It
// begins to count at once.
func Open(dir string) (*Quarantine, error) {
	q := &Quarantine{dir: dir, began: time.Now()}
	b, err := os.ReadFile(filepath.Join(dir, File))
	if errors.Is(err, fs.ErrNotExist) {
		return q, nil
	}
	if err != nil {
		return nil, err
	}
	err = json.Unmarshal(b, &q.record)
	for name, ms := range q.record.Logs {
		if err == nil && ms < 0 {
			err = fmt.Errorf("logs has %q with %d, it must not be negative", name, ms)
		}
	}
	if ms := min(q.record.Remaining, q.record.AllLogs); err == nil && ms < 0 {
		err = fmt.Errorf("remaining_ms or all_logs_ms is %d, it must not be negative", ms)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, File), err)
	}
	return q, nil
}

// Remaining is for how much longer unknown keys must be refused; 0 when it is over.
func (q *Quarantine) Remaining() time.Duration { return q.left(q.record.Remaining) }

// Log is for how much longer a named log must refuse unknown ids; 0 when it is over.
func (q *Quarantine) Log(name string) time.Duration {
	return q.left(max(q.record.Logs[name], q.record.AllLogs))
}

// Longest is for how much longer anything must be refused; 0 when it is over.
func (q *Quarantine) Longest() time.Duration {
	longest := max(q.Remaining(), q.left(q.record.AllLogs))
	for _, ms := range q.record.Logs {
		longest = max(longest, q.left(ms))
	}
	return longest
}

func (q *Quarantine) left(ms int64) time.Duration {
	if ms == 0 {
		return 0
	}
	return max(0, time.Duration(ms)*time.Millisecond-time.Since(q.began))
}

// Local is the quarantine of a store that only one manager uses, asked in a transaction.
type Local struct{ *Quarantine }

// Left is Remaining.
func (l Local) Left(store.Tx) (time.Duration, error) { return l.Remaining(), nil }

// Log is for how much longer a named log must refuse unknown ids; 0 when it is over.
func (l Local) Log(_ store.Tx, name string) (time.Duration, error) {
	return l.Quarantine.Log(name), nil
}

// EpochFloor is the number above which epochs of writers go on.
func (l Local) EpochFloor(store.Tx) (uint64, error) { return l.record.EpochFloor, nil }

// Record says that nothing is read in the transaction.
func (Local) Record() (store.ID, bool) { return store.ID{}, false }

// EpochFloor is the number above which epochs of writers go on; 0 when the directory was not restored.
func (q *Quarantine) EpochFloor() uint64 { return q.record.EpochFloor }

// RestoredTo is the point in time that the directory was restored to.
func (q *Quarantine) RestoredTo() time.Time { return q.record.RestoredTo }

// Run keeps the file up to date until the time is over or ctx ends. An error of the file is
// told to failed: the next start then counts more than it needs.
func (q *Quarantine) Run(ctx context.Context, failed func(error)) {
	for left := q.Longest(); left > 0; left = q.Longest() {
		t := time.NewTimer(min(left, saveEvery))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			q.save(failed)
			return
		}
		q.save(failed)
	}
}

func (q *Quarantine) save(failed func(error)) {
	var err error
	if q.Longest() > 0 || q.record.EpochFloor > 0 {
		now := Record{Remaining: milliseconds(q.Remaining()), RestoredTo: q.record.RestoredTo, EpochFloor: q.record.EpochFloor,
			AllLogs: milliseconds(q.left(q.record.AllLogs)), Logs: make(map[string]int64)}
		for name := range q.record.Logs {
			if ms := milliseconds(q.Log(name)); ms > 0 {
				now.Logs[name] = ms
			}
		}
		err = Write(q.dir, now)
	} else if err = os.Remove(filepath.Join(q.dir, File)); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		failed(err)
	}
}

// milliseconds is a duration in milliseconds, 1 at least when there is any.
func milliseconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return max(1, d.Milliseconds())
}
