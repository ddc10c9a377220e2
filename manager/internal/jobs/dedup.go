package jobs

import (
	"errors"
	"time"

	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// lock is the record of a deduplication identity that a job holds.
type lock struct {
	holder string
	until  time.Time
}

const lockVersion = 1

func (l *lock) put(tx store.Tx, id string) error {
	b := appendStamp([]byte{lockVersion}, l.until)
	b = codec.AppendString(b, l.holder)
	return tx.Put(colLocks, id, b, store.Entry{Index: idxExpiry, SortKey: timeKey(l.until)})
}

// loadLock reads a lock. It returns nil when there is none.
func loadLock(tx store.Tx, id string) (*lock, error) {
	return store.Read(tx, colLocks, id, decodeLock)
}

func decodeLock(id string, b []byte) (*lock, error) {
	d := decoder{codec.NewReader(b)}
	d.version(lockVersion)
	l := &lock{until: d.stamp(), holder: d.String()}
	if d.Err() == nil && (len(d.Rest()) != 0 || CheckID("", l.holder) != nil) {
		d.fail()
	}
	if d.Err() != nil {
		return nil, unreadable(colLocks, id, "%v", d.Err())
	}
	return l, nil
}

// lockHolder returns the live job that holds a lock, nil if none.
func lockHolder(tx store.Tx, at time.Time, id string) (*record, error) {
	l, err := loadLock(tx, id)
	if err != nil || l == nil || !l.until.After(at) {
		return nil, err
	}
	r, err := load(tx, l.holder)
	// A lock whose job is removed or over is void.
	if err != nil || r == nil || r.over(at) || r.LockID != id {
		return nil, err
	}
	return r, nil
}

// absorb keeps a live job in place of a duplicate that was submitted with the given database positions.
func (r *record) absorb(tx store.Tx, positions WALLocations) error {
	merged, changed, err := r.WALLocations.merge(positions)
	if err != nil || !changed && r.Duplicates {
		return err
	}
	r.WALLocations, r.Duplicates = merged, true
	return r.save(tx)
}

// mayHoldLock reports whether the job may hold its lock. A lock of UntilExecuting was released when the job started.
func (r *record) mayHoldLock() bool {
	return r.LockID != "" && !(r.State == Active && r.Dedup != nil && r.Dedup.Strategy == UntilExecuting)
}

// dropLock releases the job's lock, if it still holds it.
func (r *record) dropLock(tx store.Tx) error {
	if !r.mayHoldLock() {
		return nil
	}
	return r.freeLock(tx)
}

// freeLock releases a lock. A lock that cannot be read stays: the job does not depend on it.
func (r *record) freeLock(tx store.Tx) error {
	l, err := loadLock(tx, r.LockID)
	if errors.Is(err, store.ErrUnreadable) {
		return nil
	}
	// After its TTL another job may hold the lock.
	if err != nil || l == nil || l.holder != r.ID {
		return err
	}
	return tx.Delete(colLocks, r.LockID)
}

// holdLock lets the job hold its lock until its TTL after run_at, unless another job holds it. A job that waits must call
// it whenever it starts to wait, or its run_at changes.
func (r *record) holdLock(tx store.Tx, at time.Time) error {
	if r.LockID == "" || r.Dedup == nil || r.Attempt > 0 && r.Dedup.Strategy == UntilExecuting {
		return nil
	}
	l := lock{holder: r.ID, until: r.RunAt.Add(r.Dedup.TTL)}
	if !l.until.After(at) {
		return nil
	}
	other, err := lockHolder(tx, at, r.LockID)
	if errors.Is(err, store.ErrUnreadable) {
		return nil // its holder is unknown
	}
	if err != nil || other != nil && other.ID != r.ID {
		return err
	}
	return l.put(tx, r.LockID)
}

// keyHolder returns the live job that holds a key, nil if none.
func keyHolder(tx store.Tx, at time.Time, key string) (*record, error) {
	id, err := store.Read(tx, colKeys, key, decodeKey)
	if err != nil || id == "" {
		return nil, err
	}
	r, err := load(tx, id)
	if err != nil || r == nil || r.over(at) {
		return nil, err
	}
	return r, nil
}

// decodeKey returns the id of the job that holds the key.
func decodeKey(key string, b []byte) (string, error) {
	if CheckID("", string(b)) != nil {
		return "", unreadable(colKeys, key, "it holds no id of a job")
	}
	return string(b), nil
}

// dropKey releases the job's key, if it still holds it.
func (r *record) dropKey(tx store.Tx) error {
	if r.Key == "" {
		return nil
	}
	b, err := tx.Get(colKeys, r.Key)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrUnreadable) || err == nil && string(b) != r.ID {
		return nil
	}
	if err != nil {
		return err
	}
	return tx.Delete(colKeys, r.Key)
}
