package ledger

import (
	"cmp"
	"context"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger/window"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Tx is a transaction of the store in which ledger calls and the caller's own writes happen together or not at all. See
// Ledger.Update.
type Tx struct {
	store.Tx
	l *Ledger
	// entryCount is about how many entries there are, on engines without store.Capabilities.Sizes, or uncounted.
	entryCount int64
	fx         effects
	// changes are those of what scopes hold, and growths by how much outcomes were larger than their reservations. tallies
	// are the transaction's calls.
	changes []window.Change
	growths []int64
	tallies []Event
	// blocks are those of what scopes hold that the transaction writes.
	blocks window.Writes
	// key is that of the record that the current call is about.
	key string
	// entries and values are the buffers of its records and their index entries. An engine may read them until the call
	// returns.
	entries []store.Entry
	values  []byte
	// outcomes are keys for the outbox, see post.
	outcomes []string
}

// effects are applied to the ledger's own counters once the transaction is known to have happened. Each run resets
// them.
type effects struct {
	wrote         bool
	bytes         int64
	entries       int64
	pending       int64 // of the entries
	expired       uint64
	lapsed        uint64
	deleted       uint64
	withoutAnswer uint64
	releases      bool // the removals are part of a release
	recorded      bool // there is something new for the feed
	clashes       []Clash
	losers        window.Level // that were added
	imports       importTally
}

// reset discards the effects of the previous run of the function.
func (tx *Tx) reset() {
	tx.fx, tx.key = effects{}, ""
	tx.entries, tx.values, tx.outcomes = tx.entries[:0], tx.values[:0], tx.outcomes[:0]
	tx.changes, tx.growths, tx.tallies = tx.changes[:0], tx.growths[:0], tx.tallies[:0]
}

func (tx *Tx) count(op Op, o Outcome) {
	tx.tallies = append(tx.tallies, Event{Op: op, Outcome: o, Key: tx.key})
}

// change adds a change to the journal that no call asked for.
func (tx *Tx) change(op Op, key string) { tx.tallies = append(tx.tallies, Event{Op: op, Key: key}) }

// refuses reports whether the error is the ledger's own answer.
func refuses(err error) bool {
	o := outcomeOf(err)
	return o != OutcomeDone && o != OutcomeError
}

// apply applies the effects of a transaction that happened, or only the refusals of one that was aborted.
func (l *Ledger) apply(ctx context.Context, tx *Tx, happened bool) {
	fx := &tx.fx
	for _, t := range tx.tallies {
		if happened || t.Outcome >= OutcomeFenced {
			l.tell(ctx, t)
		}
	}
	if !happened {
		return
	}
	if !l.sizes && fx.entries != 0 {
		l.length.adjust(fx.entries)
	}
	l.account(tx)
	if fx.expired != 0 {
		l.counters.expired.Add(fx.expired)
	}
	if fx.lapsed != 0 {
		l.counters.lapsed.Add(fx.lapsed)
	}
	if fx.deleted != 0 {
		l.counters.deleted.Add(fx.deleted)
	}
	if l.opts.Origin != "" {
		l.applyOrigins(fx)
	}
}

// Put and Delete note that this transaction writes. Notify writes nothing.

// Put is store.Tx.Put.
func (tx *Tx) Put(c store.Collection, key string, value []byte, entries ...store.Entry) error {
	tx.fx.wrote = true
	return tx.Tx.Put(c, key, value, entries...)
}

// Delete is store.Tx.Delete.
func (tx *Tx) Delete(c store.Collection, key string) error {
	tx.fx.wrote = true
	return tx.Tx.Delete(c, key)
}

// Reserve is Ledger.Reserve inside the transaction. It never waits, and it reserves a key whichever ledger owns it: the
// caller chose this ledger together with its other writes. If the request has a fingerprint, an outcome without one is of
// another request, because the caller records its outcomes with their fingerprints.
func (tx *Tx) Reserve(req *api.ReserveRequest) (Reply, error) {
	if err := req.Validate(); err != nil {
		tx.key = ""
		tx.count(OpReserve, OutcomeInvalid)
		return Reply{}, err
	}
	key := EntryKey(req.Scope, req.Key)
	if ids := tx.quarantineRecord(nil); ids != nil {
		if err := tx.Tx.Prefetch(append(ids, store.ID{Collection: Collection, Key: key})); err != nil {
			return Reply{}, err
		}
	}
	reply, err := tx.reserve(key, req, nil, req.Fingerprint != "")
	tx.countReserve(reply, err)
	return reply, err
}

// countReserve counts what reserve leaves to its caller.
func (tx *Tx) countReserve(reply Reply, err error) {
	switch {
	case err != nil:
	case reply.State == api.StatePending:
		tx.count(OpReserve, OutcomePending)
	case reply.State.Terminal():
		tx.count(OpReserve, OutcomeReplayed)
	}
}

// load begins a call that is about the key.
func (tx *Tx) load(key string, r *record) (*record, error) {
	tx.key = key
	return tx.l.load(tx.Tx, key, r)
}

// reserve makes a reservation. owners says which keys may not begin here; nil: none. strict: an outcome without a fingerprint
// is a mismatch.
func (tx *Tx) reserve(key string, req *api.ReserveRequest, owners Owners, strict bool) (Reply, error) {
	var r record
	e, err := tx.load(key, &r)
	if err != nil {
		return Reply{}, err
	}
	at := tx.Now()
	now := at.UnixMilli()
	owner, elsewhere := "", false
	if owners != nil && !live(e, now) {
		if owner, elsewhere, err = owners.Owner(tx.Tx, req.Scope, req.Key); err != nil {
			return Reply{}, err
		}
	}
	v := decideReserve(e, now, req.Token, req.Fingerprint, elsewhere)
	if strict && v == verdictFinal && len(e.fingerprint) == 0 {
		v = verdictMismatch
	}
	// A key without an entry may be one that the restore forgot. Then it must not run at its new shard either.
	if v == verdictInsert || v == verdictMoved {
		if err := tx.l.quarantined(tx.Tx); err != nil {
			if refuses(err) {
				tx.count(OpReserve, OutcomeQuarantine)
			}
			return Reply{}, err
		}
	}
	switch v {
	case verdictInsert:
		fresh := tx.reservation(req, at, []byte(req.Token), []byte(req.Fingerprint))
		if e != nil && tx.l.opts.Origin != "" {
			fresh.fence = min(e.fence+1, maxFence)
		}
		tx.supersede(key, e, now)
		if err := tx.admit(key, &fresh); err != nil {
			tx.restore(key, e, now)
			if refuses(err) {
				tx.count(OpReserve, outcomeOf(err))
			}
			return Reply{}, err
		}
		if err := tx.write(key, &fresh); err != nil {
			return Reply{}, err
		}
		tx.count(OpReserve, OutcomeDone)
		return Reply{State: api.StateReserved, ExpiresIn: tx.pendingTTL(req)}, nil
	case verdictOwn:
		tx.count(OpReserve, OutcomeRepeated)
		return Reply{State: api.StateReserved, ExpiresIn: remaining(e.expires, at)}, nil
	case verdictPending:
		return Reply{State: api.StatePending, ExpiresIn: remaining(e.expires, at)}, nil
	case verdictFinal:
		return Reply{State: e.state, ExpiresIn: remaining(e.expires, at), Result: e.result}, nil
	case verdictMoved:
		tx.count(OpReserve, OutcomeMoved)
		return Reply{}, &MovedError{Owner: owner}
	default:
		return Reply{}, tx.refuse(OpReserve, v, e, req.Fingerprint)
	}
}

// quarantined returns a *QuarantineError while keys without an entry are refused.
func (l *Ledger) quarantined(tx store.Tx) error {
	if l.opts.Quarantine == nil {
		return nil
	}
	left, err := l.opts.Quarantine.Left(tx)
	if err == nil && left > 0 {
		err = &QuarantineError{left}
	}
	return err
}

// policyRecords appends the records that Options.Owners and Options.Quarantine read in a transaction, if any. owners: there is
// one of the first.
func (tx *Tx) policyRecords(ids []store.ID) (_ []store.ID, owners bool) {
	if o := tx.l.opts.Owners; o != nil {
		var id store.ID
		if id, owners = o.Record(); owners {
			ids = append(ids, id)
		}
	}
	return tx.quarantineRecord(ids), owners
}

func (tx *Tx) quarantineRecord(ids []store.ID) []store.ID {
	if q := tx.l.opts.Quarantine; q != nil {
		if id, ok := q.Record(); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

func (tx *Tx) pendingTTL(req *api.ReserveRequest) time.Duration {
	return cmp.Or(req.PendingTTL, tx.l.opts.PendingTTL)
}

// reservation builds the record of a reservation that begins at that time. token and fingerprint are the request's;
// they are parameters so that a caller's copies stay on its stack.
func (tx *Tx) reservation(req *api.ReserveRequest, at time.Time, token, fingerprint []byte) record {
	now := at.UnixMilli()
	r := record{
		state: api.StatePending, created: now, expires: deadline(at, tx.pendingTTL(req)), touched: now,
		token: token, fingerprint: fingerprint,
	}
	r.setUnknown(req.UnknownTTL, tx.l.opts.UnknownTTL)
	return r
}

// refusals are the errors of verdicts.
var refusals = [...]struct {
	outcome Outcome
	err     error
}{
	verdictMismatch: {OutcomeMismatch, ErrFingerprintMismatch},
	verdictFenced:   {OutcomeFenced, ErrFenced},
	verdictConflict: {OutcomeConflict, ErrConflict},
	verdictUnknown:  {OutcomeUnknown, ErrOutcomeUnknown},
	verdictMoved:    {OutcomeMoved, ErrKeyMoved},
}

// refuse counts and returns the error of a verdict, or nil when the verdict is not a refusal.
func (tx *Tx) refuse(op Op, v verdict, e *record, fingerprint string) error {
	if int(v) >= len(refusals) {
		return nil
	}
	tx.count(op, refusals[v].outcome)
	if v == verdictMismatch {
		tx.tallies[len(tx.tallies)-1].Prints = differing(e, fingerprint)
	}
	return refusals[v].err
}

// supersede counts e, which may be nil, as replaced by another record. It returns e if e was still live.
func (tx *Tx) supersede(key string, e *record, now int64) *record {
	if e == nil {
		return nil
	}
	tx.changed(key, e, -1)
	if live(e, now) {
		return e
	}
	tx.fx.expired++
	return nil
}

// restore undoes supersede: e is not replaced after all.
func (tx *Tx) restore(key string, e *record, now int64) {
	if e == nil {
		return
	}
	tx.changed(key, e, 1)
	if !live(e, now) {
		tx.fx.expired--
	}
}

// write puts a record and counts its bytes.
func (tx *Tx) write(key string, r *record) error {
	tx.fx.wrote = true
	if longest := tx.l.opts.Longest; longest != nil { // before the record can be durable
		longest.raise(r.remembered())
	}
	if err := tx.put(key, r); err != nil {
		return err
	}
	tx.changed(key, r, 1)
	return nil
}

// changed counts a record that is added (sign 1) or removed (sign -1).
func (tx *Tx) changed(key string, r *record, sign int64) {
	bytes := sign * (int64(r.size) + EntryOverhead)
	tx.fx.bytes += bytes
	tx.fx.entries += sign
	if r.state == api.StatePending {
		tx.fx.pending += sign
	}
	if !tx.l.boundsScopes() || r.imported {
		return
	}
	change := window.Change{Scope: tx.l.scopeOf(key), Level: window.Level{Entries: sign, Bytes: bytes}, Released: tx.fx.releases}
	if n := len(tx.changes); n > 0 && tx.changes[n-1].Scope == change.Scope && tx.changes[n-1].Released == change.Released {
		tx.changes[n-1].Level = tx.changes[n-1].Plus(change.Level)
		return
	}
	tx.changes = append(tx.changes, change)
}

// remove deletes a record and wakes the callers that wait for it.
func (tx *Tx) remove(key string, r *record) error {
	tx.fx.wrote = true
	if err := tx.Tx.Delete(Collection, key); err != nil {
		return err
	}
	tx.changed(key, r, -1)
	tx.Notify(key)
	return nil
}

// minTimer keeps timers from firing in a tight loop when two clocks disagree.
const minTimer = 5 * time.Millisecond
