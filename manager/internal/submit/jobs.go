package submit

import (
	"context"
	"errors"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Item is one submission of a batch, and its answer.
type Item struct {
	Call
	Job *jobs.Prepared

	// Answer and Err are what Job returns for the submission. An item whose Err is set already is left alone.
	Answer Answer
	Err    error

	attempt *attempt // nil without a key
	out     jobs.Outcome
}

// Jobs makes all submissions, in one transaction where possible. Each is judged by itself: one that is refused changes
// nothing for the others. They are judged in their order, so that of two with the same key the second is a repetition.
// If the transaction cannot hold all of them, it is split. A failure of the store is the answer to every
// submission of that transaction; repeating the call settles those that have keys.
func (s *Submitter) Jobs(ctx context.Context, items []Item) {
	var open []*Item
	for i := range items {
		it := &items[i]
		if it.Err != nil {
			continue
		}
		if it.Key != "" {
			it.attempt = s.newAttempt(&it.Call, it.Job)
		}
		open = append(open, it)
	}
	// A store without space refuses each alone as well.
	ofOne := func(err error) bool { return !store.Unknown(err) && !errors.Is(err, store.ErrNoSpace) }
	batch.Split(open, func(items []*Item) error { return s.transact(ctx, items) }, ofOne, s.answer)
}

// transact makes submissions in one transaction.
func (s *Submitter) transact(ctx context.Context, items []*Item) error {
	return s.ledger.Update(ctx, func(tx *ledger.Tx) error {
		if err := s.prefetch(tx, items); err != nil {
			return err
		}
		for _, it := range items {
			var judged bool
			if judged, it.Err = s.try(tx, it); !judged {
				return it.Err
			}
		}
		return nil
	})
}

// answer answers the submissions of a transaction, whose error is that of all of them.
func (s *Submitter) answer(items []*Item, err error) {
	for _, it := range items {
		switch {
		case err != nil:
			it.Err = err
		case it.Err != nil:
		case it.attempt != nil:
			it.Answer, it.Err = it.attempt.answer()
		default:
			s.queue.Committed(it.out)
			it.Answer = s.made(&it.Call, &it.out)
		}
		s.queue.Refused(it.Err)
	}
}

// try makes one submission in the transaction. It is judged if it succeeds, or is refused and has written nothing. After
// any other error the transaction must be undone: a full window, for example, may have removed expired entries before it refused.
func (s *Submitter) try(tx *ledger.Tx, it *Item) (judged bool, err error) {
	if it.attempt == nil {
		it.out, err = s.queue.EnqueueTx(tx, it.Job)
		return err == nil || jobs.IsRefusal(err), err
	}
	err = it.attempt.run(tx)
	var field *api.FieldError
	return err == nil || it.attempt.reply.State != api.StateReserved &&
		(errors.As(err, &field) || errors.Is(err, ledger.ErrFingerprintMismatch) || errors.Is(err, ledger.ErrOutcomeUnknown)), err
}

// prefetch reads what the submissions depend on, on engines for which that is faster.
func (s *Submitter) prefetch(tx *ledger.Tx, items []*Item) error {
	if len(items) < 2 {
		return nil
	}
	keys := make([]*api.ReserveRequest, 0, len(items))
	prepared := make([]*jobs.Prepared, len(items))
	for i, it := range items {
		if it.attempt != nil {
			keys = append(keys, it.attempt.reserve)
		}
		prepared[i] = it.Job
	}
	if err := tx.PrefetchReserves(keys); err != nil {
		return err
	}
	return jobs.PrefetchTx(tx.Tx, prepared)
}
