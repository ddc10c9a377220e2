package ledger

import (
	"cmp"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Commit is Ledger.Commit inside the transaction.
func (tx *Tx) Commit(req *FinishRequest) error { return tx.checkedFinish(OpCommit, req) }

// Reject is Ledger.Reject inside the transaction.
func (tx *Tx) Reject(req *FinishRequest) error { return tx.checkedFinish(OpReject, req) }

func (tx *Tx) checkedFinish(op Op, req *FinishRequest) error {
	if err := tx.l.checkFinish(req); err != nil {
		tx.key = ""
		tx.count(op, outcomeOf(err))
		return err
	}
	_, err := tx.finish(EntryKey(req.Scope, req.Key), op, req, nil, false)
	return err
}

// finish records an outcome. If its bytes need room, and more entries have to be removed than one transaction should
// delete, then with mayStop it only removes entries and returns more. Without mayStop it leaves the excess to the next
// sweep.
func (tx *Tx) finish(key string, op Op, req *FinishRequest, away *HomeError, mayStop bool) (more bool, err error) {
	outcome := outcomeState(op)
	ttl := tx.l.OutcomeTTL(outcome, req.TTL)
	var r record
	e, at, err := tx.begin(op, key, req.Token, away, &r)
	if err != nil {
		return false, err
	}
	now := at.UnixMilli()
	v := decideFinish(e, now, outcome, req.Token, req.Fingerprint)
	final := record{
		state: outcome, created: now, expires: deadline(at, ttl), touched: now,
		token: []byte(req.Token), fingerprint: []byte(req.Fingerprint), ref: []byte(req.Ref), result: req.Result,
	}
	// All ledgers are one for a global key: a token is one attempt there, and its first outcome stands.
	global := away != nil || req.Durability == api.DurabilityGlobal
	clash := v != verdictLate && e.imported && e.state.Terminal() && (v == verdictFenced || !global && !final.endsAs(e))
	if clash {
		v = verdictLate // not a refusal: the work ran here
	}
	if err := tx.refuse(op, v, e, req.Fingerprint); err != nil {
		return false, err
	}
	if v == verdictSame {
		tx.count(op, OutcomeRepeated)
		return false, nil
	}
	if clash {
		return false, tx.finishClash(op, key, e, &final)
	}
	if v == verdictRecord {
		final.inherit(e)
	}
	return tx.recordEnd(op, key, v, e, &final, mayStop)
}

// outcomeState is the state that a commit or reject leads to.
func outcomeState(op Op) api.State {
	if op == OpReject {
		return api.StateRejected
	}
	return api.StateCommitted
}

// OutcomeTTL is how long an outcome is remembered, given what the request asked for; 0: nothing.
func (l *Ledger) OutcomeTTL(outcome api.State, asked time.Duration) time.Duration {
	own := l.opts.CommittedTTL
	if outcome == api.StateRejected {
		own = l.opts.RejectedTTL
	}
	return cmp.Or(asked, own)
}

// recordEnd records how the reservation e ended. e may be gone. See finish.
func (tx *Tx) recordEnd(op Op, key string, v verdict, e, final *record, mayStop bool) (more bool, err error) {
	tx.stamp(final)
	left := tx.supersede(key, e, final.touched)
	if more, err := tx.fitOutcome(op, key, left, final); err != nil || more && mayStop {
		tx.restore(key, e, final.touched)
		return more, err
	}
	if err := tx.write(key, final); err != nil {
		return false, err
	}
	tx.publish(key, final)
	tx.Notify(key)
	if v == verdictLate {
		tx.count(op, OutcomeLate)
	} else {
		tx.count(op, OutcomeDone)
	}
	return false, nil
}

func (tx *Tx) release(key string, req *api.ReleaseRequest, away *HomeError) error {
	var r record
	e, at, err := tx.begin(OpRelease, key, req.Token, away, &r)
	if err != nil {
		return err
	}
	switch v := decideRelease(e, at.UnixMilli(), req.Token); v {
	case verdictDelete:
		tx.fx.releases = true
		if err := tx.remove(key, e); err != nil {
			return err
		}
		tx.fx.releases = false
		tx.count(OpRelease, OutcomeDone)
		return nil
	case verdictGone:
		tx.count(OpRelease, OutcomeRepeated)
		return nil
	default:
		return tx.refuse(OpRelease, v, e, "")
	}
}
