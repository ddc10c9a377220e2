// Package views reads a ledger for operators: lists and searches of its entries, and how full it is. No decision of the
// ledger depends on it.
package views

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// MaxLimit bounds the entries of one page of List and Find.
const MaxLimit = 1000

// ByRef returns the entry whose outcome was recorded with ref, or one of them if there are several. Errors:
// ledger.ErrNotFound, the store's.
func ByRef(ctx context.Context, l *ledger.Ledger, ref string) (ledger.Entry, error) {
	var entry ledger.Entry
	err := l.View(ctx, func(tx store.Tx) error {
		hits, err := ledger.ScanRef(tx, ref)
		if err != nil {
			return err
		}
		missing := ledger.ErrNotFound
		for _, h := range hits {
			entry, _, err = l.Live(tx, h.Key)
			switch {
			case err == nil && entry.Ref == ref:
				return nil
			case l.Options().Unreadable.Met(err):
				missing = err // unless another entry can be read
			case err != nil && !errors.Is(err, ledger.ErrNotFound):
				return err
			}
		}
		return missing
	})
	if err != nil {
		return ledger.Entry{}, err
	}
	return entry, nil
}

// List returns entries of a state, or of all states when state is api.StateNone, in order of state and expiry. cursor
// is empty for the first page and otherwise what the previous page returned. The returned cursor is empty after the
// last page. Entries that change during a listing may be missed or appear twice, and entries that cannot be read are
// left out. limit is 1 to MaxLimit.
//
// Errors: ledger.ErrCursor, *api.FieldError, the store's.
func List(ctx context.Context, l *ledger.Ledger, state api.State, limit int, cursor string) ([]ledger.Entry, string, error) {
	return list(ctx, l, "", state, limit, cursor)
}

// MaxExamined bounds the index entries that one page of Find examines.
const MaxExamined = 10_000

// Find returns the entries of a key in all scopes, like List. No index leads from a key to its scopes, so a page may be
// short or empty and still have a cursor, after MaxExamined index entries.
//
// Errors: ledger.ErrCursor, *api.FieldError, the store's.
func Find(ctx context.Context, l *ledger.Ledger, key string, state api.State, limit int, cursor string) ([]ledger.Entry, string, error) {
	if err := api.ValidateKey(key); err != nil {
		return nil, "", err
	}
	return list(ctx, l, key, state, limit, cursor)
}

// list is List, and with a key it is Find.
func list(ctx context.Context, l *ledger.Ledger, key string, state api.State, limit int, cursor string) ([]ledger.Entry, string, error) {
	if limit < 1 || limit > MaxLimit {
		return nil, "", &api.FieldError{Field: "limit", Value: fmt.Sprint(limit), Allowed: fmt.Sprintf("must be 1 to %d", MaxLimit)}
	}
	if state != api.StateNone && !Listed(state) {
		return nil, "", &api.FieldError{Field: "state", Value: state.String(), Allowed: AllowedStates}
	}
	at, ok := store.ParseCursor(cursor)
	if !ok || at.Part >= len(listings) || cursor != "" && state != api.StateNone && listings[at.Part].state != state {
		return nil, "", ledger.ErrCursor
	}
	after := at.After()
	var page []ledger.Entry
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
			p, err := listPiece(ctx, l, s, key, after, scan, want)
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
func Listed(state api.State) bool {
	return slices.ContainsFunc(listings[:], func(s listing) bool { return s.state == state })
}

// findChunk bounds the hits of one scan of Find, so that no View takes long.
const findChunk = 1000

// piece is what one scan found.
type piece struct {
	entries  []ledger.Entry
	examined int
	// more says whether to continue after last.
	more bool
	last store.Hit
}

// listPiece returns up to want entries of one scan of up to limit hits, and only those of the key unless it is empty. There
// may be fewer if hits were stale.
func listPiece(ctx context.Context, l *ledger.Ledger, s listing, key string, after *store.Hit, limit, want int) (p piece, err error) {
	err = l.View(ctx, func(tx store.Tx) error {
		p = piece{}
		index, from := ledger.ByExpiry(s.index, tx.Now())
		r := store.Range{From: from, After: after, Limit: limit}
		if s.index != s.state {
			r.From, r.To = "", from
		}
		hits, err := tx.Scan(ledger.Collection, index, r)
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
			e, stored, err := l.Live(tx, h.Key)
			if err != nil && !errors.Is(err, ledger.ErrNotFound) && !l.Options().Unreadable.Met(err) {
				return err
			}
			if err == nil && e.State == s.state && stored == s.index {
				p.entries = append(p.entries, e)
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
	_, k, ok := ledger.SplitEntryKey(recordKey)
	return ok && k == key
}
