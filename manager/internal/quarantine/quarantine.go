// Package quarantine keeps, in a data directory that was restored to an older point, how
// long unknown keys must still be refused: what the directory forgot may have run.
//
// The time counts while a manager serves, by a clock that nobody sets. So neither a clock
// that jumps nor a manager that is stopped makes it shorter.
package quarantine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

// File is the name of the file in the data directory. It is gone once the time is over.
const File = "quarantine.json"

// saveEvery is how much time a crash may add.
const saveEvery = 5 * time.Second

// Record is what the file holds.
type Record struct {
	// Remaining milliseconds of serving time.
	Remaining int64 `json:"remaining_ms"`
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
	return nil
}

// Quarantine counts the time down. The zero value is one that is over.
type Quarantine struct {
	dir    string
	record Record
	until  atomic.Int64 // nanoseconds since began
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
	if err := json.Unmarshal(b, &q.record); err != nil || q.record.Remaining < 0 {
		return nil, fmt.Errorf("%s: not a quarantine's record: %w", filepath.Join(dir, File), errors.Join(err, errors.ErrUnsupported))
	}
	q.until.Store(int64(time.Duration(q.record.Remaining) * time.Millisecond))
	return q, nil
}

// Remaining is for how much longer unknown keys must be refused; 0 when it is over.
func (q *Quarantine) Remaining() time.Duration {
	until := q.until.Load()
	if until == 0 {
		return 0
	}
	return max(0, time.Duration(until)-time.Since(q.began))
}

// RestoredTo is the point in time that the directory was restored to.
func (q *Quarantine) RestoredTo() time.Time { return q.record.RestoredTo }

// Run keeps the file up to date until the time is over or ctx ends. An error of the file is
// told to failed: the next start then counts more than it needs.
func (q *Quarantine) Run(ctx context.Context, failed func(error)) {
	for left := q.Remaining(); left > 0; left = q.Remaining() {
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
	left := q.Remaining()
	var err error
	if left > 0 {
		err = Write(q.dir, Record{max(1, left.Milliseconds()), q.record.RestoredTo})
	} else if err = os.Remove(filepath.Join(q.dir, File)); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		failed(err)
	}
}
