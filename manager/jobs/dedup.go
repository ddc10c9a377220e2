package jobs

import (
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/store"
)

// lock is the record of a deduplication identity that a job holds.
type lock struct {
	holder string
	until  time.Time
	// duplicates: at least one was dropped since the lock was taken.
	duplicates bool
}

const lockVersion = 1

func (l *lock) put(tx store.Tx, id string) error {
	b := []byte{lockVersion, 0}
	if l.duplicates {
		b[1] = 1
	}
	b = appendStamp(b, l.until)
	b = appendString(b, l.holder)
	return tx.Put(colLocks, id, b, store.Entry{Index: idxExpiry, SortKey: timeKey(l.until)})
}

// loadLock reads a lock; nil when there is none.
func loadLock(tx store.Tx, id string) (*lock, error) {
	b, err := tx.Get(colLocks, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	d := decoder{b: b}
	version, flag := d.byte(), d.byte()
	l := &lock{until: d.stamp(), holder: d.string(), duplicates: flag == 1}
	if d.err == nil && (version != lockVersion || len(d.b) != 0) {
		d.fail()
	}
	if d.err != nil {
		return nil, fmt.Errorf("%w: lock %s", d.err, id)
	}
	return l, nil
}

// dropDuplicate returns the job in whose favour the submission is dropped,
// after handing it the submission's database positions; nil when nobody holds
// the lock.
func dropDuplicate(tx store.Tx, at time.Time, p *Prepared) (*record, error) {
	l, err := loadLock(tx, p.lockID)
	if err != nil || l == nil || !l.until.After(at) {
		return nil, err
	}
	kept, err := load(tx, l.holder)
	// A lock whose job is gone or over stands for nothing.
	if err != nil || kept == nil || kept.State.Terminal() || kept.LockID != p.lockID {
		return nil, err
	}
	merged, changed, err := kept.WALLocations.merge(p.sub.WALLocations)
	if err != nil {
		return nil, err
	}
	if err := kept.fetch(tx); err != nil {
		return nil, err
	}
	if changed {
		kept.WALLocations = merged
		if err := kept.save(tx); err != nil {
			return nil, err
		}
	}
	if !l.duplicates {
		l.duplicates = true
		if err := l.put(tx, p.lockID); err != nil {
			return nil, err
		}
	}
	return kept, nil
}

// takeLock makes the new job the holder of the lock.
func (r *record) takeLock(tx store.Tx, id string) error {
	r.LockID = id
	l := lock{holder: r.ID, until: r.RunAt.Add(r.Dedup.TTL)}
	return l.put(tx, id)
}

// dropLock gives up the job's lock, if it still has one, and reports whether
// duplicates were dropped while it was held.
func (r *record) dropLock(tx store.Tx) (duplicates bool, err error) {
	if r.LockID == "" {
		return false, nil
	}
	id := r.LockID
	r.LockID = ""
	l, err := loadLock(tx, id)
	// After its TTL another job may have taken it.
	if err != nil || l == nil || l.holder != r.ID {
		return false, err
	}
	return l.duplicates, tx.Delete(colLocks, id)
}

// keyHolder returns the live job that holds a key, nil if none.
func keyHolder(tx store.Tx, key string) (*record, error) {
	b, err := tx.Get(colKeys, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r, err := load(tx, string(b))
	if err != nil || r == nil || r.State.Terminal() {
		return nil, err
	}
	return r, nil
}

// dropKey frees the job's key, if it still holds it.
func (r *record) dropKey(tx store.Tx) error {
	if r.Key == "" {
		return nil
	}
	b, err := tx.Get(colKeys, r.Key)
	if errors.Is(err, store.ErrNotFound) || err == nil && string(b) != r.ID {
		return nil
	}
	if err != nil {
		return err
	}
	return tx.Delete(colKeys, r.Key)
}
