package ledger

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Outcome of one origin in a conflict.
type OriginOutcome struct {
	Origin string
	State  api.State
	// Result is the answer in the API's raw form.
	Result []byte
}

// Conflict is a key of which several origins recorded an outcome.
type Conflict struct {
	Scope, Key string
	// Winner is the origin whose outcome retries get.
	Winner string
	// Outcomes are those of all origins, the winner's first.
	Outcomes  []OriginOutcome
	ExpiresIn time.Duration
}

// conflictBytes bounds the answers on one page of conflicts.
const conflictBytes = 1 << 20

// Conflicts lists conflicts in the order of scopes and keys, up to limit of them or a MiB of answers. cursor is that of
// the page before, "" for the first page; next is "" on the last one. Errors: ErrCursor, the store's.
func (l *Ledger) Conflicts(ctx context.Context, limit int, cursor string) (list []Conflict, next string, err error) {
	from := ""
	if cursor != "" {
		b, err := base64.RawURLEncoding.DecodeString(cursor)
		if _, _, ok := SplitEntryKey(string(b)); err != nil || !ok || len(b) > store.MaxKeyBytes {
			return nil, "", ErrCursor
		}
		from = string(b) + "\x00"
	}
	err = l.store.View(ctx, func(tx store.Tx) error {
		list, next = nil, ""
		r := store.Range{From: from, Limit: 256}
		size, last := 0, ""
		for {
			hits, err := tx.Scan(ConflictCollection, ConflictIndex, r)
			if err != nil {
				return err
			}
			for _, h := range hits {
				if h.SortKey == last {
					continue
				}
				if len(list) == limit || size > conflictBytes {
					next = base64.RawURLEncoding.EncodeToString([]byte(last))
					return nil
				}
				last = h.SortKey
				c, n, err := l.conflict(tx, last)
				if err != nil {
					return err
				}
				if c != nil {
					list, size = append(list, *c), size+n
				}
			}
			if len(hits) < r.Limit {
				return nil
			}
			r.After = &hits[len(hits)-1]
		}
	})
	return list, next, err
}

// ConflictOf returns the conflict about a key, nil if there is none. Errors: *api.FieldError, the store's.
func (l *Ledger) ConflictOf(ctx context.Context, scope, key string) (c *Conflict, err error) {
	if err := cmp.Or(api.ValidateKey(key), api.ValidateScope(scope)); err != nil {
		return nil, err
	}
	err = l.store.View(ctx, func(tx store.Tx) (err error) {
		c, _, err = l.conflict(tx, EntryKey(scope, key))
		return err
	})
	return c, err
}

// conflict reads all outcomes of a key; nil when less than two are left.
func (l *Ledger) conflict(tx store.Tx, key string) (*Conflict, int, error) {
	var r record
	e, err := l.load(tx, key, &r)
	if err != nil && !l.opts.Unreadable.Met(err) {
		return nil, 0, err
	}
	now := tx.Now()
	if e == nil || !e.state.Terminal() || !live(e, now.UnixMilli()) {
		return nil, 0, nil
	}
	hits, err := tx.Scan(ConflictCollection, ConflictIndex, store.Range{From: key, To: key + "\x00", Limit: 64})
	if err != nil {
		return nil, 0, err
	}
	c := &Conflict{Winner: string(e.origin), ExpiresIn: remaining(e.expires, now)}
	c.Scope, c.Key, _ = SplitEntryKey(key)
	size := 0
	add := func(r *record) {
		size += len(r.result)
		c.Outcomes = append(c.Outcomes, OriginOutcome{string(r.origin), r.state, append([]byte(nil), r.result...)})
	}
	add(e)
	for _, h := range hits {
		var loser record
		value, err := tx.Get(ConflictCollection, h.Key)
		if errors.Is(err, store.ErrNotFound) || l.opts.Unreadable.Met(err) {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		if decodeRecord(h.Key, value, &loser) == nil && live(&loser, now.UnixMilli()) {
			add(&loser)
		}
	}
	if len(c.Outcomes) < 2 {
		return nil, 0, nil
	}
	return c, size, nil
}

// ReadConflict decodes a record of ConflictCollection for tools. Its error is a *store.UnreadableError.
func ReadConflict(key string, value []byte) ([]store.Entry, error) {
	var r record
	if err := decodeRecord(key, value, &r); err != nil {
		return nil, &store.UnreadableError{Collection: ConflictCollection, Key: key, Reason: "it is malformed"}
	}
	entry, ok := strings.CutPrefix(key, originPrefix(string(r.origin)))
	if !ok {
		return nil, &store.UnreadableError{Collection: ConflictCollection, Key: key, Reason: "it has another origin"}
	}
	return loserEntries(entry, &r), nil
}

// SweepConflicts removes conflicts that are over. Its error is the store's.
func (l *Ledger) SweepConflicts(ctx context.Context) error {
	for more := true; more; {
		err := l.transact(ctx, func(tx *Tx) error {
			more = false
			hits, err := tx.Scan(ConflictCollection, indexExpiry, store.Range{To: sortKey(tx.Now().UnixMilli() + 1), Limit: 32})
			if err != nil {
				return err
			}
			for _, h := range hits {
				value, err := tx.Get(ConflictCollection, h.Key)
				if errors.Is(err, store.ErrNotFound) {
					continue
				}
				if err != nil {
					return err
				}
				var r record
				if decodeRecord(h.Key, value, &r) == nil && r.expires > tx.Now().UnixMilli() {
					continue
				}
				if err := tx.Delete(ConflictCollection, h.Key); err != nil {
					return err
				}
				more = len(hits) == 32
			}
			return nil
		})
		if errors.Is(err, store.ErrConflict) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return l.CountLosers(ctx)
}
