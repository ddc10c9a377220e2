package jobs

import (
	"errors"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// load reads a job. It returns nil when there is none.
func load(tx store.Tx, id string) (*record, error) {
	r, err := store.Read(tx, colJobs, id, decodeRecord)
	if r != nil && err == nil {
		r.stored = r.charge()
		r.booked = r.stored
	}
	return r, err
}

// find is load for a job that a caller named: a missing job is an error.
func find(tx store.Tx, id string) (*record, error) {
	r, err := load(tx, id)
	if err == nil && r == nil {
		err = NotFound("job", id)
	}
	return r, err
}

// save writes the job, without its blobs.
func (r *record) save(tx store.Tx) error {
	if err := r.hold(tx); err != nil {
		return err
	}
	if err := r.book(tx); err != nil {
		return err
	}
	if err := r.settle(tx, r.State); err != nil {
		return err
	}
	return tx.Put(colJobs, r.ID, r.encode(), r.entries()...)
}

// Keys in colBlobs.
func payloadKey(id string) string { return id + "/p" }
func resultKey(id string) string  { return id + "/r" }

// create writes a new job with its payload.
func (r *record) create(tx store.Tx) error {
	if len(r.Payload) > inlineBytes {
		r.PayloadBlob = len(r.Payload)
		if err := tx.Put(colBlobs, payloadKey(r.ID), r.Payload); err != nil {
			return err
		}
	}
	return r.save(tx)
}

// setResult stores the result; a save of the job must follow.
func (r *record) setResult(tx store.Tx, result []byte) error {
	if r.ResultBlob > 0 {
		if err := tx.Delete(colBlobs, resultKey(r.ID)); err != nil {
			return err
		}
	}
	r.Result, r.ResultBlob = result, 0
	if len(result) <= inlineBytes {
		return nil
	}
	r.ResultBlob = len(result)
	return tx.Put(colBlobs, resultKey(r.ID), result)
}

// fetch reads the blobs, so that Payload and Result are complete. It rejects values that are no longer JSON, because
// they would make whole answers invalid.
func (r *record) fetch(tx store.Tx) error {
	var err error
	if r.PayloadBlob > 0 && r.Payload == nil {
		if r.Payload, err = r.blob(tx, "payload", payloadKey(r.ID), r.PayloadBlob); err != nil {
			return err
		}
	}
	if r.ResultBlob > 0 && r.Result == nil {
		if r.Result, err = r.blob(tx, "result", resultKey(r.ID), r.ResultBlob); err != nil {
			return err
		}
	}
	if !validJSON(r.Payload) {
		return unreadable(colJobs, r.ID, "its payload is not JSON")
	}
	if r.Result != nil && !validJSON(r.Result) {
		return unreadable(colJobs, r.ID, "its result is not JSON")
	}
	return nil
}

// blob reads a value with a record of its own. If it cannot be read, the error names the job, because that is what an
// operator can act on.
func (r *record) blob(tx store.Tx, what, key string, size int) ([]byte, error) {
	b, err := tx.Get(colBlobs, key)
	var u *store.UnreadableError
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, unreadable(colJobs, r.ID, "its %s is missing", what)
	case errors.As(err, &u):
		return nil, unreadable(colJobs, r.ID, "its %s cannot be read: %s", what, u.Reason)
	case err != nil:
		return nil, err
	case len(b) != size:
		return nil, unreadable(colJobs, r.ID, "its %s has %d bytes instead of %d", what, len(b), size)
	}
	return b, nil
}

// remove deletes a job and its blobs.
func (r *record) remove(tx store.Tx) error {
	if r.PayloadBlob > 0 {
		if err := tx.Delete(colBlobs, payloadKey(r.ID)); err != nil {
			return err
		}
	}
	if r.ResultBlob > 0 {
		if err := tx.Delete(colBlobs, resultKey(r.ID)); err != nil {
			return err
		}
	}
	r.removed = true
	if err := r.hold(tx); err != nil {
		return err
	}
	if err := r.book(tx); err != nil {
		return err
	}
	end := r.State
	if !end.Terminal() {
		end = Cancelled
	}
	if err := r.settle(tx, end); err != nil {
		return err
	}
	return tx.Delete(colJobs, r.ID)
}

// job returns a copy for a caller.
func (r *record) job() Job {
	j := r.Job
	if j.Lease != nil {
		l := *j.Lease
		j.Lease = &l
	}
	if j.Dedup != nil {
		d := *j.Dedup
		j.Dedup = &d
	}
	j.WALLocations = slices.Clone(j.WALLocations)
	j.Errors = slices.Clone(j.Errors)
	return j
}

// jobNow is job with the time that its lease has left.
func (r *record) jobNow(tx store.Tx) Job {
	j := r.job()
	if j.Lease != nil {
		j.Lease.ExpiresIn = j.Lease.left(tx)
	}
	return j
}

// left is the time that the lease has left, 0 if it is over.
func (l *Lease) left(tx store.Tx) time.Duration { return max(l.Until.Sub(tx.Now()), 0) }
