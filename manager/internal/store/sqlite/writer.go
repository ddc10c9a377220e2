package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"

	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// request is an Update that was passed to the writer.
type request struct {
	ctx context.Context
	fn  func(store.Tx) error
	ran chan struct{} // closed when the function has returned and its writes are in the batch, or will not be

	applied  bool // the writes are in the batch; set before ran is closed
	err      error
	panicked any
	notify   []string

	decided atomic.Bool
}

// decide reports whether it is the first decision about the request: that of the writer to run it, or that of its caller
// to leave before.
func (r *request) decide() bool { return r.decided.CompareAndSwap(false, true) }

// writer makes all changes, one batch at a time.
type writer struct {
	s    *Store
	turn chan struct{} // has a value while a batch or a scrub uses conn
	conn *sql.Conn
	q    prepared
	// pending sums up what the requests of the present batch have changed so far.
	pending map[countID]int
}

func (w *writer) close() error { return errors.Join(w.q.close(), w.conn.Close()) }

// commit runs the batch in one transaction. The callers get their errors from their requests.
func (w *writer) commit(ctx context.Context, calls []*batch.Call[request]) error {
	w.turn <- struct{}{} // a scrub ends with its context
	defer func() { <-w.turn }()
	requests := batch.Args(calls)
	err := w.s.Err()
	if err == nil {
		err = w.transaction(ctx, requests)
	}
	for _, r := range requests {
		// A function may have returned an error because of another function's write in this batch, which is now undone,
		// so it gets the batch's error. (ErrNoSpace is kept: nothing says more.)
		if err != nil && r.panicked == nil && !errors.Is(r.err, store.ErrNoSpace) {
			r.err = err
		}
		if r.err == nil && r.panicked == nil {
			for _, topic := range r.notify {
				w.s.hub.Notify(topic)
			}
		}
	}
	return nil
}

func (w *writer) transaction(ctx context.Context, requests []*request) error {
	if _, err := w.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return mapError(err)
	}
	clear(w.pending)
	wrote := false
	for _, r := range requests {
		changed, err := w.one(ctx, r)
		if err != nil { // the whole transaction has failed
			_, _ = w.conn.ExecContext(ctx, "ROLLBACK")
			return err
		}
		wrote = wrote || changed
	}
	if !wrote {
		_, err := w.conn.ExecContext(ctx, "ROLLBACK")
		return mapError(err)
	}
	w.s.countMu.Lock() // so that a caller that sees the records also counts them
	defer w.s.countMu.Unlock()
	if _, err := w.conn.ExecContext(ctx, "COMMIT"); err != nil {
		_, _ = w.conn.ExecContext(ctx, "ROLLBACK")
		err = mapError(err)
		if !errors.Is(err, store.ErrNoSpace) {
			// It is unknown what reached the disk (see the package documentation).
			w.s.fail(err)
			return w.s.failErr
		}
		return err
	}
	for id, n := range w.pending {
		w.s.counts[id] += n
	}
	return nil
}

// size adds the batch's changes to what is committed.
func (w *writer) size(c store.Collection) (records int, bytes int64) {
	records, bytes = w.s.size(c)
	return records + w.pending[countID{c: c}], bytes + int64(w.pending[countID{c: c, bytes: true}])
}

// one runs one request under a savepoint. Its error concerns the transaction, not the request.
func (w *writer) one(ctx context.Context, r *request) (changed bool, err error) {
	if !r.decide() {
		r.err = r.ctx.Err()
		return false, nil
	}
	defer close(r.ran)
	if err := w.q.exec(ctx, sqlSavepoint); err != nil {
		return false, mapError(err)
	}
	t := newTx(ctx, w.q, w.s.clock(), w.size, false)
	r.panicked, r.err = call(r.fn, t)
	if r.err == nil && r.panicked == nil {
		r.err = errors.Join(t.Err, r.ctx.Err())
	}
	if r.err == nil && r.panicked == nil {
		r.err = t.flush(w.q)
	}
	failed := r.err != nil || r.panicked != nil
	if failed {
		err = w.q.exec(ctx, sqlRollbackTo)
	}
	if err == nil {
		err = w.q.exec(ctx, sqlRelease)
	}
	if err != nil || failed {
		return false, mapError(err)
	}
	r.applied, r.notify = true, t.Topics()
	for id, n := range t.deltas {
		w.pending[id] += n
	}
	return len(t.Writes()) > 0, nil
}

// call catches a panic of the function, to be raised on the caller's goroutine.
func call(fn func(store.Tx) error, t store.Tx) (panicked any, err error) {
	defer func() { panicked = recover() }()
	return nil, fn(t)
}
