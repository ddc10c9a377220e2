package ledger

import (
	"context"
	"errors"
	"sync"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// run is one transaction of the ledger with everything its function needs. Runs of frequent calls are reused, so that a
// reserve or a commit allocates little beyond its record. That is possible because a store no longer uses a function
// once the call that passed it returns.
type run struct {
	tx Tx
	// do is what the transaction does. It works on the fields below.
	do func(*run) error
	// refusal is the ledger's own answer (see write and lookupIn).
	refusal error
	// more: entries were removed to make room, and more must be removed before anything else.
	more bool

	op      Op
	key     string
	reserve *api.ReserveRequest
	finish  *FinishRequest
	release *api.ReleaseRequest
	away    *HomeError // of Held
	fn      func(*Tx) error

	// Of a batch; see doBatch.
	items         []Item
	anySeparate   bool // an item is separate
	replyInBuffer bool // a reply may lie in the transaction's buffer of values

	// What a reserve found.
	reply Reply
	found bool // lookup: the reply is final
	own   bool // lookup: the token holds the entry
	// prints are those of a mismatch that lookup found.
	prints *prints

	inUpdate, inView func(store.Tx) error // methods of this run, bound once
}

// keepValues is the largest buffer for values that is kept for reuse.
const keepValues = 64 << 10

var runs = sync.Pool{New: func() any { return newRun() }}

func newRun() *run {
	r := new(run)
	r.inUpdate, r.inView = r.write, r.lookupIn
	return r
}

func (l *Ledger) startRun(op Op, key string) *run {
	r := runs.Get().(*run)
	r.tx.l, r.op, r.key = l, op, key
	return r
}

// recycle makes the run available for reuse, unless it had a caller's function, which may have kept a reference.
func (r *run) recycle() {
	if r.fn != nil {
		return
	}
	tx := Tx{entries: r.tx.entries, values: r.tx.values, deltas: r.tx.deltas, tallies: r.tx.tallies, growths: r.tx.growths, outcomes: r.tx.outcomes}
	clear(tx.entries)
	clear(tx.outcomes)
	clear(tx.tallies)
	if r.replyInBuffer || cap(tx.values) > keepValues {
		tx.values = nil
	}
	tx.reset()
	*r = run{tx: tx, inUpdate: r.inUpdate, inView: r.inView}
	runs.Put(r)
}

// Update runs fn in a read-write transaction of the ledger's store. As with store.Store.Update, fn may run several
// times and must be pure. An error of fn aborts the transaction and is returned.
func (l *Ledger) Update(ctx context.Context, fn func(*Tx) error) error {
	r := newRun()
	r.tx.l, r.fn, r.do = l, fn, (*run).call
	if l.sizes {
		return l.execute(ctx, r)
	}
	return l.estimated(ctx, r)
}

// transact is Update for functions that insert no entry.
func (l *Ledger) transact(ctx context.Context, fn func(*Tx) error) error {
	r := newRun()
	r.tx.l, r.tx.entryCount, r.fn, r.do = l, uncounted, fn, (*run).call
	return l.execute(ctx, r)
}

func (r *run) call() error { return r.fn(&r.tx) }

// update runs one call and counts its failure to reach the store. If the number of entries has to be queried, only a
// reserve is expected to insert an entry. Any other call that turns out to insert one runs again with that number.
func (l *Ledger) update(ctx context.Context, r *run) error {
	var err error
	switch {
	case l.sizes:
		for r.more = true; r.more && err == nil; {
			err = l.execute(ctx, r)
		}
	case r.op == OpReserve:
		err = l.estimated(ctx, r)
	default:
		r.tx.entryCount = uncounted
		if err = l.execute(ctx, r); errors.Is(err, errUncounted) {
			err = l.estimated(ctx, r)
		}
	}
	if err != nil && outcomeOf(err) == OutcomeError {
		l.counters.add(tally{op: r.op, outcome: OutcomeError})
	}
	return err
}

// uncounted stands for a number of entries that was not queried.
const uncounted = -1

// errUncounted ends a run that turns out to need the number of entries.
var errUncounted = errors.New("ledger: insertion without a count")

func (l *Ledger) execute(ctx context.Context, r *run) error {
	happened := false
	defer func() { l.writtenUsage(&r.tx, happened) }()
	err := l.store.Update(ctx, r.inUpdate)
	r.tx.Tx = nil
	switch {
	case err == nil && r.refusal == nil:
		happened = true
		l.apply(ctx, &r.tx, true)
		return nil
	case errors.Is(err, store.ErrUnconfirmed) && r.refusal == nil:
		happened = true
		l.account(&r.tx)
		return err
	case err == nil:
		l.apply(ctx, &r.tx, false)
		return r.refusal
	case refuses(err):
		l.apply(ctx, &r.tx, false)
		return err
	default:
		return err
	}
}

// write is the function of a read-write transaction.
func (r *run) write(stx store.Tx) error {
	r.tx.Tx, r.refusal, r.more = stx, nil, false
	r.tx.reset()
	err := r.do(r)
	if err == nil && len(r.tx.outcomes) > 0 {
		err = r.tx.post()
	}
	if err == nil && r.tx.l.usage.kept {
		err = r.tx.keepUsage()
	}
	if err != nil && !r.tx.fx.wrote && refuses(err) {
		// A refusal reveals state. Committing the transaction makes the engine delay the answer until that state is
		// durable.
		r.refusal = err
		return nil
	}
	return err
}

// The functions of the calls.

func (r *run) doReserve() (err error) {
	if err := r.tx.prefetch([]string{r.key}, true); err != nil {
		return err
	}
	r.reply, err = r.tx.reserve(r.key, r.reserve)
	return err
}

func (r *run) doFinish() (err error) {
	if err := r.tx.prefetch([]string{r.key}, false); err != nil {
		return err
	}
	r.more, err = r.tx.finish(r.key, r.op, r.finish, true)
	return err
}

func (r *run) doRenew() (err error) {
	r.reply, err = r.tx.renew(r.key, r.reserve, r.away)
	return err
}

func (r *run) doUnknown() (err error) {
	r.reply, r.more, err = r.tx.unknown(r.key, r.reserve, r.away, true)
	return err
}

func (r *run) doRelease() error { return r.tx.release(r.key, r.release, r.away) }

// lookupIn is the function of lookup's read-only transaction.
func (r *run) lookupIn(stx store.Tx) error {
	r.reply, r.found, r.own, r.refusal, r.prints = Reply{}, false, false, nil, nil
	var rec record
	e, err := r.tx.l.load(stx, r.key, &rec)
	if err != nil {
		return err
	}
	at := stx.Now()
	now := at.UnixMilli()
	// Whether an absent key may be inserted is decided in the transaction that would insert it.
	switch v := decideReserve(e, now, r.reserve.Token, r.reserve.Fingerprint, false); v {
	case verdictMismatch, verdictUnknown:
		r.refusal = refusals[v].err
		if v == verdictMismatch {
			r.prints = differing(e, r.reserve.Fingerprint)
		}
	case verdictFinal:
		r.found = true
		r.reply = Reply{State: e.state, ExpiresIn: remaining(e.expires, at), Result: e.result}
	case verdictPending:
		r.found = true
		r.reply = Reply{State: api.StatePending, ExpiresIn: remaining(e.expires, at)}
	case verdictOwn:
		r.found, r.own = true, true
		r.reply = Reply{State: api.StateReserved, ExpiresIn: remaining(e.expires, at)}
	}
	return nil
}

// opContext bounds a transaction that the ledger runs by itself.
func (l *Ledger) opContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, l.opts.OpTimeout)
}
