package ledger

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Finish is Ledger.Commit or Ledger.Reject inside the transaction; op says which.
func (tx *Tx) Finish(op Op, req *FinishRequest) error {
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

// Calls about unknown outcomes: a holder renews its reservation so that it does not become UNKNOWN, or reports that the
// outcome is unknown, or an operator resolves an UNKNOWN entry.

// Renew extends the reservation of the request's token to PendingTTL from now. It never shortens it. UnknownTTL, if
// given, replaces the reservation's; Wait must be 0. If the entry is UNKNOWN with this token, or gone, it becomes
// PENDING again: the work is still running, and the key was not reserved since.
//
// The reply's State is api.StateReserved. Errors: *api.FieldError, ErrFenced, ErrConflict, ErrElsewhere,
// ErrFingerprintMismatch, ErrFull (only when the entry was gone), the store's. After a store error or a cancelled context, repeating the call
// settles the outcome.
func (l *Ledger) Renew(ctx context.Context, req *api.ReserveRequest) (Reply, error) {
	it := Item{Op: OpRenew, Reserve: *req}
	l.Make(ctx, &it)
	return it.Reply, it.Err
}

// Unknown ends the reservation of the request's token as UNKNOWN: the work may have run, and its outcome is not known.
// That is remembered for UnknownTTL; 0 means the reservation's own unknown TTL, or the manager's default when the
// reservation is gone. PendingTTL and Wait must be 0, and UnknownTTL must not be api.NoUnknown. If the default is to
// remember nothing, the reservation is left to run out, and the reply's State is what the key is: api.StatePending or
// api.StateNone. Otherwise it is api.StateUnknown.
//
// Errors: as for Renew.
func (l *Ledger) Unknown(ctx context.Context, req *api.ReserveRequest) (Reply, error) {
	it := Item{Op: OpUnknown, Reserve: *req}
	l.Make(ctx, &it)
	return it.Reply, it.Err
}

// checkReserve rejects fields that a call does not use.
func checkReserve(op Op, req *api.ReserveRequest) error {
	if err := req.Validate(); err != nil {
		return err
	}
	extra := func(field string, v time.Duration) error {
		return &api.FieldError{Field: field, Value: fmt.Sprint(max(v, 0).Milliseconds()), Allowed: "this call does not take it"}
	}
	switch {
	case req.Wait != 0:
		return extra("wait_ms", req.Wait)
	case op == OpUnknown && req.PendingTTL != 0:
		return extra("pending_ttl_ms", req.PendingTTL)
	case op == OpUnknown && req.UnknownTTL == api.NoUnknown:
		return &api.FieldError{Field: "unknown_ttl_ms", Value: "0", Allowed: "must be at least 1: there is nothing to remember"}
	}
	return nil
}

func (tx *Tx) renew(key string, req *api.ReserveRequest, away *HomeError) (Reply, error) {
	var r record
	e, at, err := tx.begin(OpRenew, key, req.Token, away, &r)
	if err != nil {
		return Reply{}, err
	}
	v := decideRenew(e, at.UnixMilli(), req.Token, req.Fingerprint)
	if err := tx.refuse(OpRenew, v, e, req.Fingerprint); err != nil {
		return Reply{}, err
	}
	next, outcome := tx.reservation(req, at, []byte(req.Token), []byte(req.Fingerprint)), OutcomeLate
	if v == verdictExtend {
		outcome = OutcomeDone
		next.extend(e, req)
	}
	if err := tx.writeReservation(key, e, &next); err != nil {
		return Reply{}, err
	}
	tx.count(OpRenew, outcome)
	return Reply{State: api.StateReserved, ExpiresIn: remaining(next.expires, at)}, nil
}

// extend makes a reservation the continuation of that of the same attempt. It never shortens it.
func (r *record) extend(e *record, req *api.ReserveRequest) {
	r.inherit(e)
	if e.state == api.StatePending {
		r.expires = max(r.expires, e.expires)
	}
	if req.UnknownTTL == 0 {
		r.unknown, r.explicit = e.unknown, e.explicit
	}
}

// writeReservation writes a reservation that no limit for new keys refuses. It replaces e. If e is gone, the reservation needs
// room in the window.
func (tx *Tx) writeReservation(key string, e, next *record) error {
	if tx.supersede(key, e, next.touched) == nil {
		if _, err := tx.fitOutcome(OpRenew, key, nil, next); err != nil {
			tx.restore(key, e, next.touched)
			return err
		}
	}
	return tx.write(key, next)
}

// unknown records that an outcome is not known. more is as for finish.
func (tx *Tx) unknown(key string, req *api.ReserveRequest, away *HomeError, mayStop bool) (reply Reply, more bool, err error) {
	var r record
	e, at, err := tx.begin(OpUnknown, key, req.Token, away, &r)
	if err != nil {
		return Reply{}, false, err
	}
	now := at.UnixMilli()
	v := decideFinish(e, now, api.StateUnknown, req.Token, req.Fingerprint)
	if err := tx.refuse(OpUnknown, v, e, req.Fingerprint); err != nil {
		return Reply{}, false, err
	}
	state, expires := standing(e, now)
	if v == verdictSame {
		tx.count(OpUnknown, OutcomeRepeated)
		return Reply{State: state, ExpiresIn: remaining(expires, at)}, false, nil
	}
	next := tx.reservation(req, at, []byte(req.Token), []byte(req.Fingerprint))
	next.state = api.StateUnknown
	if v == verdictRecord {
		next.inherit(e)
		if req.UnknownTTL == 0 {
			next.unknown, next.explicit = e.unknown, e.explicit
		}
	}
	if next.unknown == 0 {
		tx.count(OpUnknown, OutcomePending)
		if state == api.StateNone {
			return Reply{}, false, nil
		}
		return Reply{State: state, ExpiresIn: remaining(expires, at)}, false, nil
	}
	next.expires = deadline(at, time.Duration(next.unknown)*time.Millisecond)
	if more, err := tx.recordEnd(OpUnknown, key, v, e, &next, mayStop); err != nil || more {
		return Reply{}, more, err
	}
	return Reply{State: api.StateUnknown, ExpiresIn: remaining(next.expires, at)}, false, nil
}

// Resolution is an operator's decision about an unknown outcome.
type Resolution struct {
	// As is api.StateCommitted, api.StateRejected, or api.StateReleased: nothing ran, and the key is free.
	As api.State
	// TTL is how long the outcome is remembered; 0 means the default of its state.
	TTL time.Duration
	// Result is the answer for duplicates in the API's raw form; empty for api.StateReleased.
	Result []byte
}

// StateError is returned by Resolve for an entry that is not UNKNOWN. It is an ErrConflict.
type StateError struct {
	// State is the entry's state.
	State api.State
}

func (e *StateError) Error() string {
	return "ledger: the entry is " + e.State.String() + ", only one that is unknown can be resolved"
}

// Is makes errors.Is(err, ErrConflict) true.
func (e *StateError) Is(target error) bool { return target == ErrConflict }

// Resolve replaces an UNKNOWN entry by an operator's decision and returns the new entry. Its State is api.StateReleased
// when the entry is removed. The attempt's token stays with the outcome: if the attempt's own outcome arrives after
// all, it is answered like any second outcome.
//
// Errors: *api.FieldError, *api.RawError, ErrNotFound, ErrElsewhere, *StateError, ErrTooLarge,
// the store's.
func (l *Ledger) Resolve(ctx context.Context, scope, key string, res Resolution) (Entry, error) {
	if err := l.checkResolve(scope, key, res); err != nil {
		l.counters.add(Event{Op: OpResolve, Outcome: outcomeOf(err)})
		return Entry{}, err
	}
	rk := EntryKey(scope, key)
	var entry Entry
	r := l.startRun(OpResolve, func(r *run) (err error) {
		entry, r.more, err = r.tx.resolve(rk, res)
		return err
	})
	err := l.update(ctx, r)
	r.recycle()
	if err != nil {
		return Entry{}, err
	}
	return entry, nil
}

func (l *Ledger) checkResolve(scope, key string, res Resolution) error {
	if err := api.ValidateScope(scope); err != nil {
		return err
	}
	switch res.As {
	case api.StateReleased:
		return api.ValidateKey(key)
	case api.StateCommitted, api.StateRejected:
		// The entry keeps its own token; this one only passes the check.
		return l.checkFinish(&FinishRequest{Key: key, Scope: scope, Token: "-", TTL: res.TTL, Result: res.Result})
	default:
		return &api.FieldError{Field: "as", Value: res.As.String(), Allowed: "must be committed, rejected or released"}
	}
}

// resolve is Ledger.Resolve inside the transaction. more is as for finish.
func (tx *Tx) resolve(key string, res Resolution) (entry Entry, more bool, err error) {
	var r record
	e, at, err := tx.begin(OpResolve, key, "", nil, &r)
	if err != nil {
		return Entry{}, false, err
	}
	now := at.UnixMilli()
	v := decideResolve(e, now)
	switch v {
	case verdictGone:
		tx.count(OpResolve, OutcomeNotFound)
		return Entry{}, false, ErrNotFound
	case verdictConflict:
		state, _ := standing(e, now)
		tx.count(OpResolve, OutcomeConflict)
		return Entry{}, false, &StateError{State: state}
	}
	if res.As == api.StateReleased {
		if entry, err = entryOf(key, e, at); err != nil {
			return Entry{}, false, err
		}
		entry.State, entry.ExpiresIn = api.StateReleased, 0
		tx.count(OpResolve, OutcomeDone)
		return entry, false, tx.remove(key, e)
	}
	ttl := tx.l.OutcomeTTL(res.As, res.TTL)
	final := record{
		state: res.As, expires: deadline(at, ttl), touched: now,
		token: e.token, result: res.Result,
	}
	final.inherit(e)
	if more, err = tx.recordEnd(OpResolve, key, v, e, &final, true); err != nil || more {
		return Entry{}, more, err
	}
	entry, err = entryOf(key, &final, at)
	return entry, false, err
}
