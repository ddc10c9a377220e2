package ledger

import (
	"context"
	"errors"
	"slices"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Item is one call of a batch and its answer.
type Item struct {
	// Op is the call: one of OpReserve, OpCommit, OpReject, OpRelease, OpRenew, OpUnknown.
	Op Op
	// Reserve is the request of a reserve (whose Wait is ignored), renew or unknown. Finish is that of a commit or
	// reject, Release that of a release.
	Reserve api.ReserveRequest
	Finish  FinishRequest
	Release api.ReleaseRequest
	// Waits says that the caller calls Place.Await if the reserve is answered pending. That answer is then not counted here.
	Waits bool
	// Away, if not nil, says that the key's home, by the list of data centres, is elsewhere. What began here ends here: the
	// list may have changed since. About a key of which the ledger has nothing of its own, a call that is no reserve changes
	// nothing, and this is its error.
	Away *HomeError

	// Reply and Err are what the call returns by itself. After a commit, reject or release, Reply has its state. An
	// item whose Err is already set is skipped.
	Reply Reply
	Err   error

	key   string
	phase phase
}

// Attempt names an attempt, and the durability that its caller says the key has.
type Attempt struct {
	Scope, Key, Token string
	Durability        api.Durability
}

// Attempt is the one that the call is about.
func (it *Item) Attempt() Attempt {
	switch it.Op {
	case OpRelease:
		return Attempt{it.Release.Scope, it.Release.Key, it.Release.Token, it.Release.Durability}
	case OpCommit, OpReject:
		return Attempt{it.Finish.Scope, it.Finish.Key, it.Finish.Token, it.Finish.Durability}
	default:
		return Attempt{it.Reserve.Scope, it.Reserve.Key, it.Reserve.Token, it.Reserve.Durability}
	}
}

// phase is the progress of an item.
type phase uint8

const (
	answered phase = iota // has its answer
	open                  // for the transaction that the items share
	separate              // for a transaction of its own, after the shared one
)

// Batch makes the calls of all items, in one transaction where possible, and stores each answer in its item. Each item
// is judged by itself: a refused item changes nothing for the others. Items of one key are judged in their order, each
// by what the items before it left.
//
// Some items cannot be served in the shared transaction: one that has to remove more entries than a transaction should,
// and one that is refused after room was made for it, which undoes the transaction. Such an item, and later items of
// its key, get transactions of their own after it. The order of each key is still kept. A transaction that is too
// large, or that keeps meeting conflicts, is split in half. A failure of the store, or the end of ctx, is the answer to
// every item of that transaction. Repeating the batch settles their outcome, as repeating the calls would.
//
// No item waits: a reserve that meets another attempt is answered pending. Place.Await waits for a better answer.
func (l *Ledger) Batch(ctx context.Context, items []Item) {
	l.counters.batches.Add(1)
	l.counters.batchItems.Add(uint64(len(items)))
	for i := range items {
		items[i].check(l)
	}
	l.batch(ctx, items)
}

// Make makes the call of an item by itself; see Batch. Errors: those of the call.
func (l *Ledger) Make(ctx context.Context, it *Item) {
	if it.check(l); it.phase == open {
		it.phase = separate
		l.single(ctx, it)
	}
}

// check validates the request and finds the item's key.
func (it *Item) check(l *Ledger) {
	if it.phase = answered; it.Err != nil {
		return
	}
	switch it.Op {
	case OpReserve:
		it.Err = it.Reserve.Validate()
	case OpRenew, OpUnknown:
		it.Err = checkReserve(it.Op, &it.Reserve)
	case OpCommit, OpReject:
		it.Err = l.checkFinish(&it.Finish)
	case OpRelease:
		it.Err = it.Release.Validate()
	default:
		it.Err = &api.FieldError{Field: "op", Allowed: "must be a call that a batch may hold"}
		return
	}
	if it.Err != nil {
		l.counters.add(Event{Op: it.Op, Outcome: outcomeOf(it.Err)})
		return
	}
	a := it.Attempt()
	it.key, it.phase = EntryKey(a.Scope, a.Key), open
}

// maxUndone is how often the shared transaction is undone because of one item before each item gets its own
// transaction.
const maxUndone = 3

// errUndo undoes the shared transaction: one of its items wrote and was refused after that. From then on that item is
// separate.
var errUndo = errors.New("ledger: refused after a write")

// batch serves the open items.
func (l *Ledger) batch(ctx context.Context, items []Item) {
	ofOne := func(err error) bool { // then nothing was written
		return errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrTooLarge) || errors.Is(err, store.ErrUnreadable)
	}
	batch.Split(items, func(items []Item) error { return l.together(ctx, items) }, ofOne, func(items []Item, err error) {
		for i := range items {
			switch it := &items[i]; {
			case it.phase == open && err != nil:
				it.Reply, it.Err = Reply{}, err
				l.counters.add(Event{Op: it.Op, Outcome: outcomeOf(err)})
			case it.phase == separate:
				l.single(ctx, it)
			}
			items[i].phase = answered
		}
	})
}

// together serves the open items in a shared transaction, except those that turn out to be separate.
func (l *Ledger) together(ctx context.Context, items []Item) error {
	for undone := 0; undone <= maxUndone && countPhase(items, open) > 1; undone++ {
		if err := l.runShared(ctx, items); err != errUndo {
			return err
		}
	}
	for i := range items {
		if items[i].phase == open {
			items[i].phase = separate
		}
	}
	return nil
}

func countPhase(items []Item, p phase) (n int) {
	for i := range items {
		if items[i].phase == p {
			n++
		}
	}
	return n
}

// hasOpenReserve reports whether a reserve is open.
func hasOpenReserve(items []Item) bool {
	return slices.ContainsFunc(items, func(it Item) bool { return it.phase == open && it.Op == OpReserve })
}

// single makes the call of an item by itself.
func (l *Ledger) single(ctx context.Context, it *Item) {
	if it.Op == OpReserve {
		it.Reply, it.Err = l.reserve(ctx, it.key, &it.Reserve)
		if !it.awaits() {
			l.tellReserve(ctx, it.key, it.Reply, it.Err)
		}
		return
	}
	l.alone(ctx, it)
}

// runShared runs the open items in one transaction.
func (l *Ledger) runShared(ctx context.Context, items []Item) error {
	anySeparate := countPhase(items, separate) > 0
	r := l.startRun(OpReserve, func(r *run) error { return r.serveShared(items, &anySeparate) })
	err := l.perform(ctx, r, hasOpenReserve(items))
	r.recycle()
	return err
}

// serveShared judges the open items. An item found to be separate stays so in later runs of the function, even if a later
// run could serve it. anySeparate: there is one.
func (r *run) serveShared(items []Item, anySeparate *bool) error {
	tx := &r.tx
	if err := tx.prefetchItems(items); err != nil {
		return err
	}
	for i := range items {
		it := &items[i]
		if it.phase == open && *anySeparate && hasPhase(items[:i], separate, it.key) {
			it.phase = separate
		}
		if it.phase != open {
			continue
		}
		wrote, counted := tx.fx.wrote, len(tx.tallies)
		tx.fx.wrote = false
		var more bool
		it.Reply, more, it.Err = tx.serve(it)
		// What the transaction itself has written lies in its buffer.
		r.replyInBuffer = r.replyInBuffer || wrote && len(it.Reply.Result) > 0
		undo := tx.fx.wrote && it.Err != nil
		tx.fx.wrote = tx.fx.wrote || wrote
		switch judged := refuses(it.Err) || errors.Is(it.Err, store.ErrUnreadable); {
		case it.Err != nil && !judged:
			return it.Err // of the whole transaction
		case undo:
			it.phase = separate
			*anySeparate = true
			return errUndo
		case more:
			it.phase = separate
			*anySeparate = true
			tx.tallies = tx.tallies[:counted]
		case it.Err != nil && !refuses(it.Err):
			tx.count(it.Op, OutcomeError)
		}
	}
	return nil
}

// hasPhase reports whether an item of that key is in that phase.
func hasPhase(items []Item, p phase, key string) bool {
	for i := range items {
		if items[i].phase == p && items[i].key == key {
			return true
		}
	}
	return false
}

// prefetchItems reads the records of all open items.
func (tx *Tx) prefetchItems(items []Item) error {
	keys := make([]string, 0, len(items))
	for i := range items {
		if items[i].phase == open {
			keys = append(keys, items[i].key)
		}
	}
	return tx.prefetch(keys, hasOpenReserve(items))
}

// prefetch reads the entries together, with the records that reserves depend on. The keys of reserves are new as a rule, and
// their outcomes are recorded where they were reserved.
func (tx *Tx) prefetch(keys []string, reserves bool) error {
	ids, owners := entryIDs(keys), false
	if reserves {
		ids, owners = tx.policyRecords(ids)
	}
	if owners { // whose record is there as a rule
		return tx.Prefetch(ids)
	}
	return tx.PrefetchNew(ids)
}

func entryIDs(keys []string) []store.ID {
	ids := make([]store.ID, len(keys))
	for i, key := range keys {
		ids[i] = store.ID{Collection: Collection, Key: key}
	}
	return ids
}

// PrefetchReserves reads the records that reserves depend on.
func (tx *Tx) PrefetchReserves(reqs []*api.ReserveRequest) error {
	ids := make([]store.ID, 0, len(reqs)+1)
	for _, req := range reqs {
		ids = append(ids, store.ID{Collection: Collection, Key: EntryKey(req.Scope, req.Key)})
	}
	return tx.Prefetch(tx.quarantineRecord(ids))
}

// serve makes the call of an item. more is as for finish.
func (tx *Tx) serve(it *Item) (reply Reply, more bool, err error) {
	switch it.Op {
	case OpReserve:
		reply, err = tx.reserve(it.key, &it.Reserve, tx.l.opts.Owners, false)
		// The caller counts a reserve that is alone, which it may try several times.
		if it.phase == open && (!it.Waits || reply.State != api.StatePending) {
			tx.countReserve(reply, err)
		}
	case OpRenew:
		reply, err = tx.renew(it.key, &it.Reserve, it.Away)
	case OpUnknown:
		reply, more, err = tx.unknown(it.key, &it.Reserve, it.Away, true)
	case OpRelease:
		err = tx.release(it.key, &it.Release, it.Away)
		reply.State = api.StateReleased
	default:
		more, err = tx.finish(it.key, it.Op, &it.Finish, it.Away, true)
		reply.State = outcomeState(it.Op)
	}
	if err != nil {
		reply = Reply{}
	}
	return reply, more, err
}

// awaits reports whether the answer is one that Place.Await replaces.
func (it *Item) awaits() bool { return it.Waits && it.Err == nil && it.Reply.State == api.StatePending }
