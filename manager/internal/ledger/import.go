package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// FeedChange is an outcome that a ledger tells others about.
type FeedChange struct {
	// Origin recorded it. Sequence is its place in the origin's feed; in a full copy, where the copy began.
	Origin   string
	Sequence uint64

	Scope, Key, Token, Fingerprint, Ref string
	// State is api.StateCommitted or api.StateRejected.
	State      api.State
	HLC, Fence uint64
	// Age is the time since the reservation, ExpiresIn how much longer the outcome is remembered.
	Age, ExpiresIn time.Duration
	// Result is the answer in the API's raw form.
	Result []byte
}

// importTally counts what imports did; see FeedStats.
type importTally struct{ done, repeated, dropped, deferred, invalid uint64 }

// importBatch and importBytes bound what one transaction imports.
const (
	importBatch = 64
	importBytes = 1 << 20
)

// Import records outcomes of other origins. Outcomes that are known already, and older ones of the same origin, change
// nothing. One for which the window has no room is left out, as is one that is malformed, and one of a key that another
// attempt has at its home. also, which may be nil, runs in the transaction of the last changes, for example to keep the cursor behind them.
//
// Errors: the store's. Changes may then be imported or not; importing them again settles it.
func (l *Ledger) Import(ctx context.Context, changes []FeedChange, also func(store.Tx) error) (done Imported, err error) {
	for first := true; first || len(changes) > 0; first = false {
		n, size := 0, 0
		for n < len(changes) && n < importBatch && (n == 0 || size+len(changes[n].Result) <= importBytes) {
			size += len(changes[n].Result)
			n++
		}
		last := also
		if n < len(changes) {
			last = nil
		}
		if err := l.importSome(ctx, changes[:n], last, &done); err != nil {
			return done, err
		}
		changes = changes[n:]
	}
	return done, nil
}

// Imported counts what one call of Import did; FeedStats has the sums. Other outcomes than these were known or left out.
type Imported struct{ New, Deferred int }

func (l *Ledger) importSome(ctx context.Context, changes []FeedChange, also func(store.Tx) error, done *Imported) error {
	for i := range changes {
		if t := changes[i].HLC; t <= maxPeerHLC {
			l.feed.clock.observe(t)
		}
	}
	opCtx, cancel := l.opContext(ctx)
	var tally importTally // of the transaction's last run
	err := l.Update(opCtx, func(tx *Tx) error {
		for i := range changes {
			if err := tx.importOne(&changes[i]); err != nil {
				return err
			}
		}
		tally = tx.fx.imports
		if also == nil {
			return nil
		}
		tx.fx.wrote = true
		return also(tx.Tx)
	})
	cancel()
	if (errors.Is(err, store.ErrTooLarge) || errors.Is(err, store.ErrConflict)) && len(changes) > 1 {
		half := len(changes) / 2
		if err := l.importSome(ctx, changes[:half], nil, done); err != nil {
			return err
		}
		return l.importSome(ctx, changes[half:], also, done)
	}
	if err == nil {
		done.New += int(tally.done)
		done.Deferred += int(tally.deferred)
	}
	return err
}

// check returns an error unless the change may be imported.
func (c *FeedChange) check(own string) error {
	req := api.ReserveRequest{Key: c.Key, Scope: c.Scope, Token: c.Token, Fingerprint: c.Fingerprint}
	if err := req.Validate(); err != nil {
		return err
	}
	if c.Origin == "" || len(c.Origin) > maxOriginBytes || c.Origin == own || !c.State.Terminal() || c.HLC > maxPeerHLC || c.Fence > maxPeerHLC ||
		c.ExpiresIn <= 0 || c.ExpiresIn > api.MaxTTL || c.Age < 0 || c.Age > 10*api.MaxTTL || len(c.Ref) > maxRefBytes {
		return errors.New("ledger: malformed change")
	}
	_, _, err := api.CheckRawResult(c.Result)
	return err
}

func (tx *Tx) importOne(c *FeedChange) error {
	if c.check(tx.l.opts.Origin) != nil {
		tx.fx.imports.invalid++
		return nil
	}
	key := recordKey(c.Scope, c.Key)
	var r record
	e, err := tx.l.load(tx.Tx, key, &r)
	if tx.l.opts.Unreadable.Met(err) {
		tx.fx.imports.invalid++
		return nil
	}
	if err != nil {
		return err
	}
	at := tx.Now()
	now := at.UnixMilli()
	fresh := &record{
		state: c.State, created: at.Add(-c.Age).UnixMilli(), expires: deadline(at, c.ExpiresIn), touched: now,
		token: []byte(c.Token), fingerprint: []byte(c.Fingerprint), ref: []byte(c.Ref), result: c.Result,
		origin: []byte(c.Origin), hlc: c.HLC, fence: c.Fence, imported: true,
	}
	fresh.created = max(fresh.created, 0)
	if len(fresh.result) > tx.l.opts.MaxResultBytes {
		stripResult(fresh)
	}
	state, _ := standing(e, now)
	if state != api.StateNone && len(e.home) != 0 && string(e.token) != c.Token {
		// The home decides about that attempt, so its calls must go there. This outcome may be one of before.
		tx.fx.imports.deferred++
		return nil
	}
	if !state.Terminal() {
		return tx.importNew(key, e, fresh, state == api.StateNone)
	}
	adopted := tx.adopt(e)
	same := string(e.token) == c.Token
	switch {
	case string(e.origin) == c.Origin:
		if same || c.HLC <= e.hlc {
			tx.fx.imports.repeated++
			return nil
		}
		return tx.replace(key, e, fresh) // the origin ran it again, after its own entry had expired
	case same:
		// One attempt that two ledgers know: nothing ran twice.
		if fresh.before(e) {
			return tx.replace(key, e, fresh)
		}
		tx.fx.imports.repeated++
		return nil
	}
	var old record
	known, err := tx.loser(fresh.origin, key, &old)
	if err != nil {
		return err
	}
	if known != nil && (string(known.token) == c.Token || known.hlc >= c.HLC) {
		tx.fx.imports.repeated++
		return nil
	}
	tx.fx.imports.done++
	if adopted { // the others must learn of it, too
		if err := tx.publish(key, e); err != nil {
			return err
		}
	}
	return tx.clash(key, e, fresh, adopted, nil)
}

// importNew records an outcome where there is none yet. An attempt that is under way here ends in a conflict or is
// fenced; callers that wait for it get this outcome.
func (tx *Tx) importNew(key string, e, fresh *record, absent bool) error {
	left := tx.supersede(key, e, fresh.touched)
	if absent {
		at, err := tx.level()
		if err != nil {
			return err
		}
		if at.plus(level{1, chargeOf(key, fresh)}).over(tx.l.limit()) != (level{}) {
			tx.restore(key, e, fresh.touched)
			tx.fx.imports.dropped++
			return nil
		}
	} else if _, err := tx.fitOutcome(OpCommit, key, left, fresh); err != nil {
		return err
	}
	tx.fx.imports.done++
	if err := tx.write(key, fresh); err != nil {
		return err
	}
	tx.Notify(key)
	return nil
}

// replace puts an outcome in the place of another one that is the same, or earlier.
func (tx *Tx) replace(key string, e, fresh *record) error {
	fresh.expires = max(fresh.expires, e.expires)
	tx.supersede(key, e, fresh.touched)
	tx.fx.imports.done++
	return tx.write(key, fresh)
}

// forgetImports removes up to n outcomes of other ledgers, those that expire first, until over is free.
func (tx *Tx) forgetImports(key string, n int, over level) (forgot int, err error) {
	hits, err := tx.Scan(collection, indexImported, store.Range{Limit: n + 1})
	if err != nil {
		return 0, err
	}
	for _, h := range hits {
		if forgot == n || over == (level{}) {
			break
		}
		var r record
		e, err := tx.l.load(tx.Tx, h.Key, &r)
		if err != nil && !tx.l.opts.Unreadable.Met(err) {
			return forgot, err
		}
		if h.Key == key || e == nil || !e.imported {
			continue
		}
		if err := tx.remove(h.Key, e); err != nil {
			return forgot, err
		}
		forgot++
		tx.fx.imports.dropped++
		over = over.over(level{1, int64(e.size) + EntryOverhead})
	}
	return forgot, nil
}
