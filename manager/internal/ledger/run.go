package ledger

import (
	"context"
	"errors"
	"sync"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// run is one transaction of the ledger. Runs of frequent calls are reused, so that a reserve or a commit allocates little
// beyond its record. That is possible because a store no longer uses a function once the call that passed it returns.
type run struct {
	tx Tx
	// do is what the transaction does.
	do func(*run) error
	// item is the call of serveAlone. Its Op is that of every run.
	item Item
	// refusal is the ledger's own answer (see write).
	refusal error
	// more: entries were removed to make room, and more must be removed before anything else.
	more bool
	// replyInBuffer: a reply may lie in the transaction's buffer of values.
	replyInBuffer bool

	inUpdate func(store.Tx) error // write of this run, bound once
}

// keepValues is the largest buffer for values that is kept for reuse.
const keepValues = 64 << 10

var runs = sync.Pool{New: func() any { return newRun() }}

func newRun() *run {
	r := new(run)
	r.inUpdate = r.write
	return r
}

func (l *Ledger) startRun(op Op, do func(*run) error) *run {
	r := runs.Get().(*run)
	r.tx.l, r.item.Op, r.do = l, op, do
	return r
}

// recycle makes the run available for reuse.
func (r *run) recycle() {
	tx := Tx{entries: r.tx.entries, values: r.tx.values, changes: r.tx.changes, tallies: r.tx.tallies, growths: r.tx.growths, outcomes: r.tx.outcomes}
	clear(tx.entries)
	clear(tx.outcomes)
	clear(tx.tallies)
	if r.replyInBuffer || cap(tx.values) > keepValues {
		tx.values = nil
	}
	tx.reset()
	*r = run{tx: tx, inUpdate: r.inUpdate}
	runs.Put(r)
}

// Update runs fn in a read-write transaction of the ledger's store. As with store.Store.Update, fn may run several
// times and must be pure. An error of fn aborts the transaction and is returned.
func (l *Ledger) Update(ctx context.Context, fn func(*Tx) error) error {
	return l.perform(ctx, l.callersRun(fn), true)
}

// transact is Update for functions that insert no entry.
func (l *Ledger) transact(ctx context.Context, fn func(*Tx) error) error {
	r := l.callersRun(fn)
	r.tx.entryCount = uncounted
	return l.execute(ctx, r)
}

// callersRun returns a run that is not reused, because fn may keep a reference to its transaction.
func (l *Ledger) callersRun(fn func(*Tx) error) *run {
	r := newRun()
	r.tx.l, r.do = l, func(r *run) error { return fn(&r.tx) }
	return r
}

// update runs one call and counts its failure to reach the store.
func (l *Ledger) update(ctx context.Context, r *run) error {
	var err error
	for r.more = true; r.more && err == nil; {
		err = l.perform(ctx, r, r.item.Op == OpReserve)
	}
	if err != nil && outcomeOf(err) == OutcomeError {
		l.counters.add(Event{Op: r.item.Op, Outcome: OutcomeError})
	}
	return err
}

// uncounted stands for a number of entries that was not queried.
const uncounted = -1

// errUncounted ends a run that turns out to need the number of entries.
var errUncounted = errors.New("ledger: insertion without a count")

// perform executes r. If the number of entries has to be queried, it is only where r is expected to insert an entry. Any
// other run that turns out to insert one is executed again with that number.
func (l *Ledger) perform(ctx context.Context, r *run, inserts bool) error {
	if l.sizes {
		return l.execute(ctx, r)
	}
	if !inserts {
		r.tx.entryCount = uncounted
		if err := l.execute(ctx, r); !errors.Is(err, errUncounted) {
			return err
		}
	}
	n, err := l.length.get(ctx, l.store)
	if err != nil {
		return err
	}
	// Removals by others may have been subtracted from a count that never included them.
	r.tx.entryCount = max(int64(n), 0)
	return l.execute(ctx, r)
}

func (l *Ledger) execute(ctx context.Context, r *run) error {
	happened := false
	defer func() { l.scopes.Written(&r.tx.blocks, happened) }()
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
	if scopes := r.tx.l.scopes; err == nil && scopes.Kept() {
		r.tx.values, err = scopes.Keep(&r.tx, &r.tx.blocks, r.tx.changes, r.tx.values)
	}
	if err != nil && !r.tx.fx.wrote && refuses(err) {
		// A refusal reveals state. Committing the transaction makes the engine delay the answer until that state is
		// durable.
		r.refusal = err
		return nil
	}
	return err
}

// serveAlone is what the transaction of a single call does.
func (r *run) serveAlone() (err error) {
	switch r.item.Op {
	case OpReserve, OpCommit, OpReject:
		if err := r.tx.prefetch([]string{r.item.key}, r.item.Op == OpReserve); err != nil {
			return err
		}
	}
	r.item.Reply, r.more, err = r.tx.serve(&r.item)
	return err
}

// alone makes a call in a transaction of its own. It leaves the count of replays and pending answers to its caller.
func (l *Ledger) alone(ctx context.Context, it *Item) {
	r := l.startRun(it.Op, (*run).serveAlone)
	r.item = *it
	it.Err = l.update(ctx, r)
	it.Reply = r.item.Reply
	r.recycle()
	if it.Err != nil {
		it.Reply = Reply{}
	}
}

// lookup is a read-only transaction that looks for the answer to a reserve. It is reused as a run is.
type lookup struct {
	l                       *Ledger
	key, token, fingerprint string
	found

	inView func(store.Tx) error // read of this lookup, bound once
}

// found is what a lookup found.
type found struct {
	reply   Reply
	ok      bool // reply is the answer
	own     bool // the token holds the entry
	refusal error
	prints  *Prints // of a mismatch
}

var lookups = sync.Pool{New: func() any {
	q := new(lookup)
	q.inView = q.read
	return q
}}

// look looks for the answer to a reserve, and counts a failure to reach the store.
func (l *Ledger) look(ctx context.Context, key string, req *api.ReserveRequest) (found, error) {
	q := lookups.Get().(*lookup)
	q.l, q.key, q.token, q.fingerprint = l, key, req.Token, req.Fingerprint
	err := l.store.View(ctx, q.inView)
	f := q.found
	*q = lookup{inView: q.inView}
	lookups.Put(q)
	if err != nil && outcomeOf(err) == OutcomeError {
		l.counters.add(Event{Op: OpReserve, Outcome: OutcomeError})
	}
	return f, err
}

// read is the function of the transaction.
func (q *lookup) read(stx store.Tx) error {
	q.found = found{}
	var rec record
	e, err := q.l.load(stx, q.key, &rec)
	if err != nil {
		return err
	}
	at := stx.Now()
	now := at.UnixMilli()
	// Whether an absent key may be inserted is decided in the transaction that would insert it.
	switch v := decideReserve(e, now, q.token, q.fingerprint, false); v {
	case verdictMismatch, verdictUnknown:
		q.refusal = refusals[v].err
		if v == verdictMismatch {
			q.prints = differing(e, q.fingerprint)
		}
	case verdictFinal:
		q.ok = true
		q.reply = Reply{State: e.state, ExpiresIn: remaining(e.expires, at), Result: e.result}
	case verdictPending:
		q.ok = true
		q.reply = Reply{State: api.StatePending, ExpiresIn: remaining(e.expires, at)}
	case verdictOwn:
		q.ok, q.own = true, true
		q.reply = Reply{State: api.StateReserved, ExpiresIn: remaining(e.expires, at)}
	}
	return nil
}

// opContext bounds a transaction that the ledger runs by itself.
func (l *Ledger) opContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, l.opts.OpTimeout)
}
