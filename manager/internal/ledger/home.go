package ledger

import (
	"context"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// A global key has a home, one of several data centres, whose ledger decides about it. A ledger of another data centre
// keeps a record of the reservations that its callers got from the home. That record only says who decides, so that
// all further calls about the key go there: they return ErrElsewhere. The outcome comes with the home's changes.

// begin loads the entry of a call that is no reserve. It returns ErrElsewhere if the home of the entry decides. It returns
// away, which may be nil, if the ledger has nothing of its own that the token's call could be about.
func (tx *Tx) begin(op Op, key, token string, away *HomeError, r *record) (e *record, at time.Time, err error) {
	if e, err = tx.load(key, r); err != nil {
		return nil, at, err
	}
	at = tx.Now()
	switch alive := live(e, at.UnixMilli()); {
	case alive && len(e.home) != 0:
		away = &HomeError{Home: string(e.home)}
	case away == nil || alive && (!e.imported || string(e.token) == token):
		return e, at, nil
	}
	tx.count(op, OutcomeElsewhere)
	return nil, at, away
}

// Recorded returns the outcome of a key if this ledger has it. It changes nothing.
//
// Errors: *api.FieldError, ErrFingerprintMismatch, the store's.
func (l *Ledger) Recorded(ctx context.Context, req *api.ReserveRequest) (reply Reply, ok bool, err error) {
	if err := req.Validate(); err != nil {
		l.counters.add(Event{Op: OpReserve, Outcome: OutcomeInvalid})
		return Reply{}, false, err
	}
	key := EntryKey(req.Scope, req.Key)
	f, err := l.look(ctx, key, req)
	switch {
	case err != nil:
		return Reply{}, false, err
	case f.refusal == ErrFingerprintMismatch:
		l.tellLookup(ctx, key, &f)
		return Reply{}, false, f.refusal
	case f.refusal != nil || !f.reply.State.Terminal():
		return Reply{}, false, nil
	}
	l.tellReserve(ctx, key, f.reply, nil)
	return f.reply, true, nil
}

// Follow notes that the key's home has given its reservation to the token of req, or has renewed it. A reservation of
// another token that this home gave before is over. An outcome, and a reservation, of this ledger's own stay.
//
// Another data centre's outcome of another token may be from before or after the home's answer. It is over if the home was
// called while the outcome was here already, which is what seen says. Otherwise Follow notes nothing and returns
// an *OvertakenError, and the caller makes the call at the home once more.
//
// Errors: *api.FieldError, ErrFull, *OvertakenError, the store's.
func (l *Ledger) Follow(ctx context.Context, req *api.ReserveRequest, home string, seen Seen) error {
	by := *req
	by.Wait = 0
	return l.afterHome(ctx, OpRenew, &by, func(tx *Tx, key string) error { return tx.follow(key, &by, home, seen) })
}

// Seen identifies another data centre's outcome of a key; the zero value is none.
type Seen struct {
	Origin, Token string
	HLC           uint64
}

// OvertakenError says that an outcome arrived that may be newer than the home's answer. It is an ErrElsewhere.
type OvertakenError struct{ Seen Seen }

func (e *OvertakenError) Error() string {
	return "ledger: an outcome of the data centre " + e.Seen.Origin + " arrived meanwhile"
}

// Is makes errors.Is find ErrElsewhere.
func (e *OvertakenError) Is(target error) bool { return target == ErrElsewhere }

func (tx *Tx) follow(key string, req *api.ReserveRequest, home string, seen Seen) error {
	var r record
	e, err := tx.load(key, &r)
	if err != nil {
		return err
	}
	at := tx.Now()
	now := at.UnixMilli()
	alive := live(e, now)
	over := alive && e.imported && string(e.token) != req.Token
	if over {
		if now := (Seen{string(e.origin), string(e.token), e.hlc}); now != seen {
			return &OvertakenError{now}
		}
	}
	if alive && !over && (e.state.Terminal() || len(e.home) == 0) {
		return nil
	}
	next := tx.reservation(req, at, []byte(req.Token), []byte(req.Fingerprint))
	if alive && string(e.token) == req.Token {
		next.extend(e, req)
	}
	next.home = []byte(home)
	if err := tx.writeReservation(key, e, &next); err != nil {
		return err
	}
	if !alive || string(e.token) != req.Token {
		tx.count(OpReserve, OutcomeElsewhere)
	}
	return nil
}

// ReleaseFollowed removes what Follow noted for the token, after the home has released it.
//
// Errors: *api.FieldError, the store's.
func (l *Ledger) ReleaseFollowed(ctx context.Context, req *api.ReleaseRequest) error {
	by := api.ReserveRequest{Key: req.Key, Scope: req.Scope, Token: req.Token}
	return l.afterHome(ctx, OpRelease, &by, func(tx *Tx, key string) error { return tx.releaseFollowed(key, by.Token) })
}

func (tx *Tx) releaseFollowed(key, token string) error {
	var r record
	e, err := tx.load(key, &r)
	if err != nil || e == nil || len(e.home) == 0 || string(e.token) != token {
		return err
	}
	tx.fx.releases = true
	err = tx.remove(key, e)
	tx.fx.releases = false
	return err
}

// afterHome runs what follows a call that the home has made.
func (l *Ledger) afterHome(ctx context.Context, op Op, req *api.ReserveRequest, do func(tx *Tx, key string) error) error {
	if err := req.Validate(); err != nil {
		return err
	}
	key := EntryKey(req.Scope, req.Key)
	r := l.startRun(op, func(r *run) error { return do(&r.tx, key) })
	err := l.update(ctx, r)
	r.recycle()
	return err
}
