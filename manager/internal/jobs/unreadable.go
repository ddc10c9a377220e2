package jobs

import (
	"context"
	"errors"
	"strings"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// Places are the indexes in which each record with index entries appears once.
func Places() []unread.Place {
	out := []unread.Place{{Collection: colLocks, Index: idxExpiry}, {Collection: colEvents, Index: idxName}, {Collection: colBatches, Index: idxCreated}}
	for _, index := range []string{idxReady, idxBlocked} {
		out = append(out, unread.Place{Collection: colSlots, Index: index})
	}
	for _, index := range []string{idxActive, idxQueued, idxKeyed, idxScheduled, idxDead, idxDone} {
		out = append(out, unread.Place{Collection: colJobs, Index: index})
	}
	return out
}

// Owns reports whether the queue keeps its records in the collection.
func Owns(c store.Collection) bool {
	switch c {
	case colJobs, colBlobs, colKeys, colLocks, colUsage, colEvents, colSlots, colBatches, colControl:
		return true
	}
	return false
}

// StoredRecord describes what a record of the queue depends on.
type StoredRecord struct {
	// Entries are its index entries.
	Entries []store.Entry
	// Blobs are the values with records of their own, by their keys in the collection BlobCollection, with their sizes
	// in bytes.
	Blobs map[string]int
}

// Collection has the jobs, BlobCollection their payloads and results over 512 bytes; for tools that read a store from
// outside.
const (
	Collection     = colJobs
	BlobCollection = colBlobs
)

// ReadRecord reads a record of a collection that the queue Owns. Its error is a
// *store.UnreadableError.
func ReadRecord(c store.Collection, key string, value []byte) (StoredRecord, error) {
	var s StoredRecord
	var err error
	switch c {
	case colJobs:
		r, err := decodeRecord(key, value)
		if err != nil {
			return s, err
		}
		s.Entries, s.Blobs = r.entries(), make(map[string]int)
		if r.PayloadBlob > 0 {
			s.Blobs[payloadKey(key)] = r.PayloadBlob
		} else if !validJSON(r.Payload) {
			return s, unreadable(c, key, "its payload is not JSON")
		}
		if r.ResultBlob > 0 {
			s.Blobs[resultKey(key)] = r.ResultBlob
		} else if r.Result != nil && !validJSON(r.Result) {
			return s, unreadable(c, key, "its result is not JSON")
		}
		return s, nil
	case colBlobs:
		if !validJSON(value) {
			err = unreadable(c, key, "it is not JSON")
		}
	case colKeys:
		_, err = decodeKey(key, value)
	case colLocks:
		var l *lock
		if l, err = decodeLock(key, value); err == nil {
			s.Entries = []store.Entry{{Index: idxExpiry, SortKey: timeKey(l.until)}}
		}
	case colUsage:
		var n int64
		if n, err = decodeSum(key, value); err == nil {
			s.Entries = usageEntries(key, n)
		}
	case colEvents:
		if _, err = decodeSubscriptions(key, value); err == nil {
			s.Entries = eventEntries(key)
		}
	case colBatches:
		var b *Batch
		if b, err = decodeBatch(key, value); err == nil {
			s.Entries = b.entries()
		}
	case colSlots:
		if !strings.Contains(key, "\x00") {
			_, err = decodeFunctionSlots(key, value)
			break
		}
		var k keySlots
		if k, err = decodeKeySlots(key, value); err == nil {
			s.Entries = k.entries(key)
		}
	case colControl:
		if key == settingsVersionKey {
			break // any bytes are a version
		}
		_, err = decodeSettings(key, value)
	}
	return s, err
}

// CheckStored reads a record and what it depends on. It returns nil, store.ErrNotFound, a *store.UnreadableError, or
// the store's error.
func CheckStored(tx store.Tx, c store.Collection, key string) error {
	value, err := tx.Get(c, key)
	if err != nil {
		return err
	}
	if c == colJobs {
		r, err := decodeRecord(key, value)
		if err != nil {
			return err
		}
		return r.fetch(tx)
	}
	_, err = ReadRecord(c, key, value)
	return err
}

// DeleteUnreadable deletes a record of a collection that the queue Owns if it cannot be read, and returns why it could
// not be read. With a job it deletes the payload and result. Whatever its key and lock blocked is free then, and so is its
// place among the running jobs. In its batch it has failed, unless it had ended before. A sum of bytes is counted again.
// What is left of settings is which functions have jobs with concurrency keys. Errors:
// ErrNotFound, unread.ErrReadable, the store's.
func (q *Queue) DeleteUnreadable(ctx context.Context, c store.Collection, key string) (*store.UnreadableError, error) {
	var u *store.UnreadableError
	var job *record
	var active, batch string // sort keys of its index entries, which do not change while it cannot be read
	if c == colJobs {
		var err error
		if active, err = q.entryOf(ctx, idxActive, key); err != nil {
			return nil, err
		}
		if batch, err = q.entryOf(ctx, idxBatch, key); err != nil {
			return nil, err
		}
	}
	err := q.store.Update(ctx, func(tx store.Tx) error {
		job = nil
		var err error
		if u, err = unread.Reason(CheckStored(tx, c, key), NotFound("record", key)); err != nil {
			return err
		}
		switch {
		case c == colSlots && strings.Contains(key, "\x00"):
			notifyQueued(tx, functionOf(key))
			return recountKey(tx, key)
		case c == colSlots:
			notifyQueued(tx, key)
			return tx.Delete(c, key)
		case c == colControl && key == settingsKey:
			if err := notifyAllQueued(tx); err != nil {
				return err
			}
			return restoreSettings(tx)
		case c == colUsage:
			return recountSum(tx, q.opt.Unreadable, key)
		case c != colJobs:
			return tx.Delete(c, key)
		}
		if job, err = remains(tx, key, active, batch); err != nil {
			return err
		}
		if err := errors.Join(job.hold(tx), job.book(tx), job.settle(tx, Failed)); err != nil {
			return err
		}
		for _, blob := range []string{payloadKey(key), resultKey(key)} {
			if len(blob) <= store.MaxKeyBytes {
				if err := tx.Delete(colBlobs, blob); err != nil {
					return err
				}
			}
		}
		tx.Notify(topicDone + key)
		return tx.Delete(colJobs, key)
	})
	if err != nil {
		return nil, err
	}
	if job != nil {
		q.account(job)
	}
	q.opt.Unreadable.Forget(c, key)
	return u, nil
}

// remains returns what a job that cannot be read still counts for, as one that is removed. If only its payload or result
// cannot be read, that is all. Else its index entries say what it counts for while it runs, and in which batch it has not
// ended.
func remains(tx store.Tx, id, active, batch string) (*record, error) {
	r, err := load(tx, id)
	if err == nil && r != nil {
		r.removed = true
		return r, nil
	}
	r = &record{removed: true}
	if _, counts, _ := strings.Cut(active[min(len(active), 8):], "\x00"); counts != "" {
		r.Function, r.ConcurrencyKey, r.held = activeFunction(active), counts[1:], held{slots: counts[0]}
	}
	if r.Batch = batch; batch != "" {
		r.was = Queued
	}
	return r, nil
}

// entryOf returns the sort key of a job in an index of colJobs, empty if it has none. It reads the index in pages.
func (q *Queue) entryOf(ctx context.Context, index, id string) (sortKey string, err error) {
	for hits, err := range q.pages(ctx, index, store.Range{Limit: store.MaxScan}) {
		if err != nil {
			return "", err
		}
		for _, h := range hits {
			if h.Key == id {
				return h.SortKey, nil
			}
		}
	}
	return "", nil
}
