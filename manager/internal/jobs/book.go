package jobs

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"math"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// Where one process uses the store, each transaction that changes what jobs take changes the sums with them. So the sums
// are exact after every call, every crash and every call whose outcome is unknown, and no start counts jobs. On a store that
// managers share, all of them would change the same records. There each queue counts all jobs from time to time, see usage.
//
// A job that was deleted because its record could not be read stays in its sums: nothing says what it was. A sum that cannot
// be read is counted again when an operator deletes it.

// Keys of colUsage. The value of each is a number greater than 0; a sum of 0 has no record.
const (
	// retainedKey: the bytes of terminal jobs.
	retainedKey = "retained"
	// ownerPrefix and a digest of an owner: the bytes of its live jobs.
	ownerPrefix = 'o'
	// deadPrefix and a function: how many dead letters it has.
	deadPrefix = 'd'
)

func ownerKey(owner string) string {
	sum := sha256.Sum256([]byte(owner)) // names of callers are not stored in clear text
	return string(ownerPrefix) + string(sum[:16])
}

func deadKey(function string) string { return string(deadPrefix) + function }

// usageEntries returns the index entries of a sum: those of dead letters are in idxMost, the largest first.
func usageEntries(key string, n int64) []store.Entry {
	if key[0] != deadPrefix {
		return nil
	}
	return []store.Entry{{Index: idxMost, SortKey: string(binary.BigEndian.AppendUint64(nil, math.MaxInt64-uint64(n)))}}
}

// bookedStore is a store that one process uses. Its transactions are bookedTx.
type bookedStore struct {
	store.Store
	unreadable *unread.Tracker
}

func (s *bookedStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error { return fn(bookedTx{tx, s.unreadable}) })
}

// bookedTx is a transaction that changes the sums with the jobs.
type bookedTx struct {
	store.Tx
	unreadable *unread.Tracker
}

// booked returns the transaction as one that changes the sums, unless managers share the store.
func (q *Queue) booked(tx store.Tx) store.Tx {
	if _, ok := tx.(bookedTx); ok || q.shared {
		return tx
	}
	return bookedTx{tx, q.opt.Unreadable}
}

// sum reads a sum. known is false if it cannot be read: then it stays as it is and bounds nothing.
func sum(tx store.Tx, t *unread.Tracker, key string) (n int64, known bool, err error) {
	n, err = store.Read(tx, colUsage, key, decodeSum)
	if t.Met(err) {
		return 0, false, nil
	}
	return n, err == nil, err
}

func decodeSum(key string, b []byte) (int64, error) {
	n, w := binary.Uvarint(b)
	if key == "" || w != len(b) || n == 0 || n > math.MaxInt64 {
		return 0, unreadable(colUsage, key, "it is malformed")
	}
	return int64(n), nil
}

func (tx bookedTx) add(key string, n int64) error {
	have, known, err := sum(tx.Tx, tx.unreadable, key)
	if err != nil || !known || n == 0 {
		return err
	}
	return putSum(tx.Tx, key, have+n)
}

func putSum(tx store.Tx, key string, n int64) error {
	if n <= 0 {
		return tx.Delete(colUsage, key)
	}
	return tx.Put(colUsage, key, binary.AppendUvarint(nil, uint64(n)), usageEntries(key, n)...)
}

// book changes the sums by what the job counts for now, instead of what it counted for when it was read or last booked.
func (r *record) book(stx store.Tx) error {
	tx, ok := stx.(bookedTx)
	before, after := r.booked, r.charge()
	if r.booked = after; !ok || before == after {
		return nil
	}
	retained, owner, dead := int64(0), int64(0), int64(0)
	for _, c := range []struct {
		charge
		sign int64
	}{{before, -1}, {after, 1}} {
		switch c.part {
		case partLive:
			owner += c.sign * c.bytes
		case partDead:
			dead += c.sign
			retained += c.sign * c.bytes
		case partDone:
			retained += c.sign * c.bytes
		}
	}
	if retained != 0 {
		if err := tx.add(retainedKey, retained); err != nil {
			return err
		}
	}
	if dead != 0 {
		if err := tx.add(deadKey(r.Function), dead); err != nil {
			return err
		}
	}
	if owner == 0 || r.Owner == "" {
		return nil
	}
	return tx.add(ownerKey(r.Owner), owner)
}

// recountSum replaces a sum that cannot be read by a count of all jobs. It leaves out jobs that cannot be read either.
func recountSum(tx store.Tx, t *unread.Tracker, key string) error {
	n := int64(0)
	for _, index := range allIndexes {
		for r := (store.Range{Limit: store.MaxScan}); ; {
			hits, err := tx.Scan(colJobs, index, r)
			if err != nil {
				return err
			}
			for _, h := range hits {
				job, err := load(tx, h.Key)
				if err != nil && !t.Met(err) {
					return err
				}
				if err != nil || job == nil {
					continue
				}
				switch c := job.stored; {
				case c.part == partDead && key == deadKey(job.Function):
					n++
				case c.part != partLive && key == retainedKey, c.part == partLive && c.owner != "" && key == ownerKey(c.owner):
					n += c.bytes
				}
			}
			if len(hits) < r.Limit {
				break
			}
			r.After = &hits[len(hits)-1]
		}
	}
	return putSum(tx, key, n)
}

// retainDeadMost removes the oldest dead letters of every function that has too many, by the sums.
func (q *Queue) retainDeadMost(ctx context.Context) (removed int, err error) {
	const page = 64
	for more := true; more; {
		surplus := make(map[string]int)
		err := q.store.View(ctx, func(tx store.Tx) error {
			clear(surplus)
			hits, err := tx.Scan(colUsage, idxMost, store.Range{Limit: page})
			if err != nil {
				return err
			}
			for _, h := range hits {
				n, _, err := sum(tx, q.opt.Unreadable, h.Key)
				if err != nil {
					return err
				}
				if over := n - int64(q.opt.DeadCount); over > 0 {
					surplus[h.Key[1:]] = int(over)
				}
			}
			return nil
		})
		if err != nil {
			return removed, err
		}
		before := removed
		for f, n := range surplus {
			gone, err := q.removeDead(ctx, f, n)
			removed += gone
			if err != nil {
				return removed, err
			}
		}
		more = len(surplus) == page && removed > before
	}
	return removed, nil
}
