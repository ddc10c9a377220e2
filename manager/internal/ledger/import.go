package ledger

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger/window"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// FeedChange is an outcome that a ledger publishes for others.
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

// importTally counts what imports did; see OriginStats.
type importTally struct{ done, repeated, dropped, deferred, invalid uint64 }

// Imported counts what Tx.Import did; OriginStats has the sums. Other outcomes than these were known, or there was no room.
type Imported struct {
	New, Deferred int
	// Notes are those that deferred outcomes of their own homes.
	Notes []Note
	// Refused is how many changes may not be imported, and Why the first one may not.
	Refused int
	Why     error
	// Until is when the first of those may be imported that are too far ahead, by this ledger's clock; zero: there is none.
	Until time.Time
}

// Add adds what came later.
func (d *Imported) Add(o Imported) {
	d.New += o.New
	d.Deferred += o.Deferred
	d.Notes = append(d.Notes, o.Notes...)
	d.Refused += o.Refused
	if d.Why == nil {
		d.Why = o.Why
	}
	if d.Until.IsZero() || !o.Until.IsZero() && o.Until.Before(d.Until) {
		d.Until = o.Until
	}
}

// Note says that an attempt has a key at its home, and that the home reported the outcome of another attempt. It does not
// say which of the two came first: the home may have read the outcome before it gave the key to the attempt.
type Note struct {
	Scope, Key string
	// Token is the attempt's, HLC the time of the outcome.
	Token string
	HLC   uint64
}

// check returns an error unless the change may be imported at a time of this ledger's clock, and until when it may not.
func (c *FeedChange) check(origin string, own bool, now time.Time) (until time.Time, err error) {
	ahead := time.UnixMilli(int64(c.HLC >> 16)).Sub(now)
	req := api.ReserveRequest{Key: c.Key, Scope: c.Scope, Token: c.Token, Fingerprint: c.Fingerprint}
	err = req.Validate()
	switch {
	case err != nil:
	case c.Origin == "" || len(c.Origin) > maxOriginBytes || (c.Origin == origin) != own:
		err = fmt.Errorf("origin: must be the name of the data centre that recorded the outcome, not %q", c.Origin)
	case !c.State.Terminal():
		err = errors.New("state: must be committed or rejected")
	case ahead > MaxPeerAhead:
		until = now.Add(ahead - MaxPeerAhead)
		err = fmt.Errorf("hlc: %d is %v ahead of the clock here, allowed are %v", c.HLC, ahead.Round(time.Second), MaxPeerAhead)
	case c.Fence > maxFence:
		err = fmt.Errorf("fence: must be at most %d, not %d", uint64(maxFence), c.Fence)
	case c.ExpiresIn <= 0 || c.ExpiresIn > api.MaxTTL || c.Age < 0 || c.Age > 10*api.MaxTTL || len(c.Ref) > maxRefBytes:
		err = errors.New("expires_in_ms, age_ms, job_id: one is out of range")
	default:
		_, _, err = api.CheckRawResult(c.Result)
	}
	return until, err
}

// Import records an outcome of another origin. If own is set, it records one of this ledger's origin that it has forgotten. An outcome
// that is known already, and an older one of the same origin, change nothing. One for which the window has no room is left
// out, as is one that is malformed, and one of a key that another attempt has at its home. met are notes that were there
// when the origin was asked for the change. An outcome that the home of a note still has then ends the note, because the
// home does not have that reservation any more.
//
// Errors: the store's.
func (tx *Tx) Import(c *FeedChange, own bool, met []Note) (done Imported, err error) {
	at, before := tx.Now(), tx.fx.imports
	until, err := c.check(tx.l.opts.Origin, own, at)
	if err != nil {
		tx.fx.imports.invalid++
		return Imported{Refused: 1, Why: err, Until: until}, nil
	}
	err = tx.importValid(c, own, at, met, &done.Notes)
	done.New = int(tx.fx.imports.done - before.done)
	done.Deferred = int(tx.fx.imports.deferred - before.deferred)
	return done, err
}

func (tx *Tx) importValid(c *FeedChange, own bool, at time.Time, met []Note, notes *[]Note) error {
	tx.observePeer(c.HLC)
	key := EntryKey(c.Scope, c.Key)
	var r record
	e, err := tx.l.load(tx.Tx, key, &r)
	if tx.l.Skips(err) {
		tx.fx.imports.invalid++
		return nil
	}
	if err != nil {
		return err
	}
	now := at.UnixMilli()
	fresh := &record{
		state: c.State, created: at.Add(-c.Age).UnixMilli(), expires: deadline(at, c.ExpiresIn), touched: now,
		token: []byte(c.Token), fingerprint: []byte(c.Fingerprint), ref: []byte(c.Ref), result: c.Result,
		origin: []byte(c.Origin), hlc: c.HLC, fence: c.Fence, imported: !own,
	}
	fresh.created = max(fresh.created, 0)
	if len(fresh.result) > tx.l.opts.MaxResultBytes {
		stripResult(fresh)
	}
	state, _ := standing(e, now)
	if state != api.StateNone && len(e.home) != 0 && string(e.token) != c.Token && !c.ends(e, met) {
		// The home decides about that attempt, so its calls must go there. This outcome may be one of before.
		tx.fx.imports.deferred++
		if string(e.home) == c.Origin {
			*notes = []Note{{c.Scope, c.Key, string(e.token), c.HLC}}
		}
		return nil
	}
	if !state.Terminal() {
		return tx.importNew(key, e, fresh, state == api.StateNone)
	}
	adopted := tx.adopt(e)
	same := string(e.token) == c.Token
	switch {
	case string(e.origin) == c.Origin:
		again := overlap(e, fresh) || overlap(fresh, e)
		switch {
		case same && fresh.before(e): // it came again, after it had been forgotten
			return tx.replace(key, e, fresh)
		case same, c.HLC <= e.hlc && !again:
			tx.fx.imports.repeated++
			return nil
		}
		if !again {
			return tx.replace(key, e, fresh) // the origin ran it again, after its own entry had expired
		}
		// The origin ran it again while its own entry had not expired: it had forgotten it. Its clock may have started again, so
		// the later run may have the earlier time.
	case same && fresh.endsAs(e):
		// One attempt that two ledgers know: nothing ran twice.
		if fresh.before(e) {
			return tx.replace(key, e, fresh)
		}
		tx.fx.imports.repeated++
		return nil
	}
	known, err := loadOutcome(tx, ConflictCollection, loserKey(fresh.origin, key))
	if tx.l.Skips(err) {
		tx.fx.imports.invalid++
		return nil
	}
	if err != nil {
		return err
	}
	if known != nil && !fresh.before(known) && !fresh.before(e) {
		tx.fx.imports.repeated++
		return nil
	}
	if adopted { // the others must learn of it, too
		tx.publishAdopted(key, e)
	}
	if err := tx.clash(key, e, fresh, adopted, nil); err != nil {
		return err
	}
	if tx.fx.clashes[len(tx.fx.clashes)-1].Kept {
		tx.fx.imports.done++
	} else {
		tx.fx.imports.dropped++
	}
	return nil
}

// overlapSlack is how much later than at its origin an outcome may seem to expire here: it was on its way for as long.
const overlapSlack = time.Minute

// overlap reports whether the attempt that ended as b began while a counted.
func overlap(a, b *record) bool {
	return a.created <= b.created && b.created < a.expires-overlapSlack.Milliseconds()
}

// ends reports whether the change, which was asked for after the notes had been met, says that the note e is over.
func (c *FeedChange) ends(e *record, notes []Note) bool {
	return string(e.home) == c.Origin && slices.ContainsFunc(notes, func(n Note) bool {
		return n.Key == c.Key && n.Scope == c.Scope && n.Token == string(e.token)
	})
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
		if at.Plus(window.Level{Entries: 1, Bytes: chargeOf(key, fresh)}).Over(tx.l.limit()) != (window.Level{}) {
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
func (tx *Tx) forgetImports(key string, n int, over window.Level) (forgot int, err error) {
	hits, err := tx.Scan(Collection, indexImported, store.Range{Limit: n + 1})
	if err != nil {
		return 0, err
	}
	for _, h := range hits {
		if forgot == n || over == (window.Level{}) {
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
		over = over.Over(window.Level{Entries: 1, Bytes: int64(e.size) + EntryOverhead})
	}
	return forgot, nil
}
