package jobs

import (
	"cmp"
	"context"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// DeadPage is one page of dead letters.
type DeadPage struct {
	DeadLetters []DeadLetter
	// Cursor leads to the next page; empty when this is the last one.
	Cursor string
}

// DeadLetters lists a function's dead letters, oldest failure first, with their
// payloads. limit: 1 to MaxLimit, 100 when 0.
func (q *Queue) DeadLetters(ctx context.Context, function string, limit int, cursor string) (DeadPage, error) {
	limit, err := PageLimit(limit)
	if err := cmp.Or(CheckName("function", function), err); err != nil {
		return DeadPage{}, err
	}
	from, to := functionRange(function, classDead)
	var page DeadPage
	next, err := q.walk(ctx, []segment{{index: idxFunction, from: from, to: to}},
		&ListQuery{Limit: limit, Cursor: cursor, Payloads: true}, func(r *record) error {
			page.DeadLetters = append(page.DeadLetters, DeadLetter{
				ID: r.ID, Job: r.job(), Reason: r.reason(), FailedAt: r.FinishedAt,
			})
			return nil
		})
	page.Cursor = next
	return page, err
}

// reason says why the job failed.
func (r *record) reason() string {
	if r.Error != "" {
		return r.Error
	}
	return "the worker gave no reason"
}

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
