package jobs

import (
	"context"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// replayed is the answer to a call that would run a replayed job again.
func (r *record) replayed() error {
	return r.conflict("job " + r.ReplayedAs + " runs in its place")
}

// Replay enqueues a copy of a failed job, which is Replayed from then on, in one transaction. It stays Failed if the
// copy is not enqueued: because another job holds its key (ErrDuplicateKey), or because it is a duplicate of a
// live job (see the outcome). A job that was replayed before is ErrConflict, a missing letter ErrNotFound.
func (q *Queue) Replay(ctx context.Context, function, id string) (Outcome, error) {
	if err := CheckName("function", function); err != nil {
		return Outcome{}, err
	}
	return q.replay(ctx, function, id)
}

// replay is Replay for a job of the function, or of any if it is empty.
func (q *Queue) replay(ctx context.Context, function, id string) (Outcome, error) {
	if err := CheckID("id", id); err != nil {
		return Outcome{}, err
	}
	fresh := q.ids.next()
	var out Outcome
	var r *record
	err := q.store.Update(ctx, func(tx store.Tx) (err error) {
		out = Outcome{}
		r, err = load(tx, id)
		if err != nil {
			return err
		}
		of := r != nil && (function == "" || r.Function == function)
		if of && r.State == Replayed {
			return r.replayed()
		}
		if !of || r.State != Failed {
			return NotFound("dead letter", id)
		}
		if err := r.fetch(tx); err != nil {
			return err
		}
		p := r.again(fresh)
		p.replay = true
		if out, err = q.EnqueueTx(tx, p); err != nil || !out.Created() {
			return err
		}
		r.State, r.ReplayedAs, r.FinishedAt = Replayed, fresh, now(tx)
		return r.save(tx)
	})
	if err != nil {
		return Outcome{}, err
	}
	q.account(r)
	q.Committed(out)
	return out, nil
}
