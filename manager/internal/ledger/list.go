package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Entry is an entry as operators see it, without the token: a caller that knows the token can end the reservation.
type Entry struct {
	Scope, Key, Fingerprint, Ref string
	State                        api.State
	// Age is the time since the reservation, ExpiresIn the time until the entry is gone.
	Age, ExpiresIn time.Duration
	// Origin is the data centre that recorded the outcome, and Home the one that decides about a global key under way;
	// both may be "".
	Origin, Home string
	// Result is the recorded answer in the API's raw form; empty when PENDING or UNKNOWN.
	Result []byte
}

// MaxListLimit bounds the entries of one page of List.
const MaxListLimit = 1000

func entryOf(recordKey string, e *record, at time.Time) (Entry, error) {
	scope, key, ok := SplitEntryKey(recordKey)
	if !ok {
		return Entry{}, unreadable(recordKey, "its key has no scope")
	}
	state, expires := standing(e, at.UnixMilli())
	return Entry{
		Scope: scope, Key: key, Fingerprint: string(e.fingerprint), Ref: string(e.ref), State: state,
		Age: max(at.Sub(time.UnixMilli(e.created)), 0), ExpiresIn: remaining(expires, at),
		Result: e.result, Origin: string(e.origin), Home: string(e.home),
	}, nil
}

// Get returns an entry. Errors: *api.FieldError, ErrNotFound, ErrQuarantine for a key without an entry that the ledger may
// have forgotten, the store's.
func (l *Ledger) Get(ctx context.Context, scope, key string) (Entry, error) {
	if err := cmp.Or(api.ValidateKey(key), api.ValidateScope(scope)); err != nil {
		return Entry{}, err
	}
	var entry Entry
	err := l.store.View(ctx, func(tx store.Tx) error {
		var err error
		if entry, err = l.getLive(tx, EntryKey(scope, key)); errors.Is(err, ErrNotFound) {
			err = cmp.Or(l.quarantined(tx), err)
		}
		return err
	})
	return entry, err
}

// GetByRef returns the entry whose outcome was recorded with ref, or one of them if there are several. Errors:
// ErrNotFound, the store's.
func (l *Ledger) GetByRef(ctx context.Context, ref string) (Entry, error) {
	if ref == "" || len(ref) > maxRefBytes {
		return Entry{}, ErrNotFound
	}
	var entry Entry
	err := l.store.View(ctx, func(tx store.Tx) error {
		hits, err := tx.Scan(Collection, indexRef, store.Range{From: ref, To: ref + "\x00", Limit: 16})
		if err != nil {
			return err
		}
		missing := ErrNotFound
		for _, h := range hits {
			entry, err = l.getLive(tx, h.Key)
			switch {
			case err == nil && entry.Ref == ref:
				return nil
			case l.opts.Unreadable.Met(err):
				missing = err // unless another entry can be read
			case err != nil && !errors.Is(err, ErrNotFound):
				return err
			}
		}
		return missing
	})
	if err != nil {
		return Entry{}, err
	}
	return entry, nil
}

func (l *Ledger) getLive(tx store.Tx, key string) (Entry, error) {
	var r record
	e, err := l.load(tx, key, &r)
	if err != nil {
		return Entry{}, err
	}
	at := tx.Now()
	if !live(e, at.UnixMilli()) {
		return Entry{}, ErrNotFound
	}
	return entryOf(key, e, at)
}

// List returns entries of a state, or of all states when state is api.StateNone, in order of state and expiry. cursor
// is empty for the first page and otherwise what the previous page returned. The returned cursor is empty after the
// last page. Entries that change during a listing may be missed or appear twice, and entries that cannot be read are
// left out. limit is 1 to MaxListLimit.
//
// Errors: ErrCursor, *api.FieldError, the store's.
func (l *Ledger) List(ctx context.Context, state api.State, limit int, cursor string) ([]Entry, string, error) {
	return l.list(ctx, "", state, limit, cursor)
}

// MaxExamined bounds the index entries that one page of Find examines.
const MaxExamined = 10_000

// Find returns the entries of a key in all scopes, like List. No index leads from a key to its scopes, so a page may be
// short or empty and still have a cursor, after MaxExamined index entries.
//
// Errors: ErrCursor, *api.FieldError, the store's.
func (l *Ledger) Find(ctx context.Context, key string, state api.State, limit int, cursor string) ([]Entry, string, error) {
	if err := api.ValidateKey(key); err != nil {
		return nil, "", err
	}
	return l.list(ctx, key, state, limit, cursor)
}

// list is List, and with a key it is Find.
func (l *Ledger) list(ctx context.Context, key string, state api.State, limit int, cursor string) ([]Entry, string, error) {
	if limit < 1 || limit > MaxListLimit {
		return nil, "", &api.FieldError{Field: "limit", Value: fmt.Sprint(limit), Allowed: fmt.Sprintf("must be 1 to %d", MaxListLimit)}
	}
	if state != api.StateNone && !Listed(state) {
		return nil, "", &api.FieldError{Field: "state", Value: state.String(), Allowed: AllowedStates}
	}
	at, ok := store.ParseCursor(cursor)
	if !ok || at.Part >= len(listings) || cursor != "" && state != api.StateNone && listings[at.Part].state != state {
		return nil, "", ErrCursor
	}
	after := at.After()
	var page []Entry
	examined := 0
	full := func() bool { return len(page) >= limit || key != "" && examined >= MaxExamined }
	for i := at.Part; i < len(listings); i++ {
		s := listings[i]
		if state != api.StateNone && s.state != state {
			continue
		}
		for {
			want := limit - len(page)
			scan := want
			if key != "" {
				scan = min(findChunk, MaxExamined-examined)
			}
			p, err := l.listPiece(ctx, s, key, after, scan, want)
			if err != nil {
				return nil, "", err
			}
			page = append(page, p.entries...)
			examined += p.examined
			if !p.more {
				break
			}
			if full() {
				return page, store.Cursor{Part: i, Hit: p.last}.String(), nil
			}
			after = &p.last
		}
		after = nil
		if next := i + 1; full() && next < len(listings) && (state == api.StateNone || listings[next].state == state) {
			return page, store.Cursor{Part: next}.String(), nil
		}
	}
	return page, "", nil
}

// listing is a part of an index whose entries are in one state.
type listing struct {
	index api.State
	state api.State
}

// listings are in the order in which List returns them. Reservations that ran out stay in the pending index until the
// sweeper has stored them as UNKNOWN.
var listings = [...]listing{
	{api.StatePending, api.StatePending},
	{api.StateCommitted, api.StateCommitted},
	{api.StateRejected, api.StateRejected},
	{api.StatePending, api.StateUnknown},
	{api.StateUnknown, api.StateUnknown},
}

// AllowedStates says, for messages, of which states List returns entries (see Listed).
const AllowedStates = "must be pending, committed, rejected or unknown"

// Listed reports whether List returns entries of that state.
func Listed(state api.State) bool { return slices.Contains(storedStates[:], state) }

// findChunk bounds the hits of one scan of Find, so that no View takes long.
const findChunk = 1000

// piece is what one scan found.
type piece struct {
	entries  []Entry
	examined int
	// more says whether to continue after last.
	more bool
	last store.Hit
}

// listPiece returns up to want entries of one scan of up to limit hits, and only those of the key unless it is empty. There
// may be fewer if hits were stale.
func (l *Ledger) listPiece(ctx context.Context, s listing, key string, after *store.Hit, limit, want int) (p piece, err error) {
	err = l.store.View(ctx, func(tx store.Tx) error {
		p = piece{}
		at := tx.Now()
		now := at.UnixMilli()
		r := store.Range{From: sortKey(now + 1), After: after, Limit: limit}
		if s.index != s.state {
			r.From, r.To = "", r.From
		}
		hits, err := tx.Scan(Collection, indexOf(s.index), r)
		if err != nil {
			return err
		}
		for i, h := range hits {
			if key != "" && !isOfKey(h.Key, key) {
				continue
			}
			if len(p.entries) == want {
				p.examined, p.more, p.last = i, true, hits[i-1]
				return nil
			}
			var r record
			e, err := l.load(tx, h.Key, &r)
			if err != nil && !l.opts.Unreadable.Met(err) {
				return err
			}
			if state, _ := standing(e, now); state != s.state || e.state != s.index {
				continue
			}
			if entry, err := entryOf(h.Key, e, at); !l.opts.Unreadable.Met(err) {
				p.entries = append(p.entries, entry)
			}
		}
		p.examined = len(hits)
		if p.more = len(hits) == limit; p.more {
			p.last = hits[len(hits)-1]
		}
		return nil
	})
	return p, err
}

// isOfKey reports whether a record is of the key, in any scope.
func isOfKey(recordKey, key string) bool {
	if !strings.HasSuffix(recordKey, key) { // cheaper than to split all of them
		return false
	}
	_, k, ok := SplitEntryKey(recordKey)
	return ok && k == key
}

// Delete removes an entry in any state and returns what it was. Waiters are woken. An attempt that still runs is
// accepted late when it ends. Errors: *api.FieldError, ErrNotFound, *ImportedError, the store's.
func (l *Ledger) Delete(ctx context.Context, scope, key string) (Entry, error) {
	return l.DeleteImported(ctx, scope, key, "")
}

// DeleteImported is Delete that also removes an outcome of the data centre origin. While that one has the outcome, a
// comparison brings it back.
func (l *Ledger) DeleteImported(ctx context.Context, scope, key, origin string) (Entry, error) {
	if err := cmp.Or(api.ValidateKey(key), api.ValidateScope(scope)); err != nil {
		return Entry{}, err
	}
	rk := EntryKey(scope, key)
	var entry Entry
	err := l.transact(ctx, func(tx *Tx) error {
		var r record
		e, err := l.load(tx.Tx, rk, &r)
		if err != nil {
			return err
		}
		at := tx.Now()
		if !live(e, at.UnixMilli()) {
			return ErrNotFound
		}
		if entry, err = entryOf(rk, e, at); err != nil {
			return err
		}
		if e.imported && string(e.origin) != origin {
			return &ImportedError{Origin: string(e.origin)}
		}
		tx.fx.deleted++
		tx.change(OpDelete, rk)
		return tx.remove(rk, e)
	})
	if err != nil {
		return Entry{}, err
	}
	return entry, nil
}

// movedScan is how many entries one transaction of Moved examines.
const movedScan = 2048

// Moved counts all entries whose keys another ledger owns, except those whose scope is ours: their callers have chosen
// this ledger. ours may be nil. While there are any such entries, a gate that does not ask here may run a key again.
// Expired entries count until the sweeper has removed them.
//
// Errors: the store's.
func (l *Ledger) Moved(ctx context.Context, ours func(scope string) bool) (Counts, error) {
	var m Counts
	owners := l.opts.Owners
	if owners == nil {
		return m, nil
	}
	for state, n := range m.ByState() {
		var after *store.Hit
		for more := true; more; {
			found, next := 0, after
			err := l.store.View(ctx, func(tx store.Tx) error {
				found, next, more = 0, after, false
				hits, err := tx.Scan(Collection, indexOf(state), store.Range{After: after, Limit: movedScan})
				if err != nil {
					return err
				}
				for i := range hits {
					scope, key, ok := SplitEntryKey(hits[i].Key)
					if !ok || ours != nil && ours(scope) {
						continue
					}
					_, other, err := owners.Owner(tx, scope, key)
					if err != nil {
						return err
					}
					if other {
						found++
					}
				}
				if more = len(hits) == movedScan; more {
					next = &hits[len(hits)-1]
				}
				return nil
			})
			if err != nil {
				return Counts{}, err
			}
			*n += found
			after = next
		}
	}
	return m, nil
}
