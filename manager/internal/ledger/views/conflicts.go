package views

import (
	"cmp"
	"context"
	"encoding/base64"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Conflict is a key of which several origins recorded an outcome.
type Conflict struct {
	Scope, Key string
	// Winner is the origin whose outcome retries get.
	Winner string
	// Outcomes are those of all origins, the winner's first.
	Outcomes  []ledger.FeedChange
	ExpiresIn time.Duration
}

// conflictBytes bounds the answers on one page of conflicts.
const conflictBytes = 1 << 20

// Conflicts lists conflicts in the order of scopes and keys, up to limit of them or a MiB of answers. cursor is that of
// the page before, "" for the first page; next is "" on the last one. Errors: ledger.ErrCursor, the store's.
func Conflicts(ctx context.Context, l *ledger.Ledger, limit int, cursor string) (list []Conflict, next string, err error) {
	from := ""
	if cursor != "" {
		b, err := base64.RawURLEncoding.DecodeString(cursor)
		if _, _, ok := ledger.SplitEntryKey(string(b)); err != nil || !ok || len(b) > store.MaxKeyBytes {
			return nil, "", ledger.ErrCursor
		}
		from = string(b) + "\x00"
	}
	err = l.View(ctx, func(tx store.Tx) error {
		list, next = nil, ""
		r := store.Range{From: from, Limit: 256}
		size, last := 0, ""
		for {
			hits, err := tx.Scan(ledger.ConflictCollection, ledger.ConflictIndex, r)
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
				c, err := conflict(l, tx, last)
				if err != nil {
					return err
				}
				if c != nil {
					list = append(list, *c)
					for _, o := range c.Outcomes {
						size += len(o.Result)
					}
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
func ConflictOf(ctx context.Context, l *ledger.Ledger, scope, key string) (c *Conflict, err error) {
	if err := cmp.Or(api.ValidateKey(key), api.ValidateScope(scope)); err != nil {
		return nil, err
	}
	err = l.View(ctx, func(tx store.Tx) (err error) {
		c, err = conflict(l, tx, ledger.EntryKey(scope, key))
		return err
	})
	return c, err
}

// conflict reads all outcomes of a key; nil when fewer than two are left.
func conflict(l *ledger.Ledger, tx store.Tx, key string) (*Conflict, error) {
	var outcomes []ledger.FeedChange
	add := func(c store.Collection, key string) error {
		o, ok, err := ledger.ReadOutcome(tx, c, key)
		if ok {
			outcomes = append(outcomes, o)
		}
		if err == nil || l.Options().Unreadable.Met(err) {
			return nil
		}
		return err
	}
	if err := add(ledger.Collection, key); err != nil || outcomes == nil {
		return nil, err
	}
	hits, err := tx.Scan(ledger.ConflictCollection, ledger.ConflictIndex, store.Range{From: key, To: key + "\x00", Limit: 64})
	if err != nil {
		return nil, err
	}
	for _, h := range hits {
		if err := add(ledger.ConflictCollection, h.Key); err != nil {
			return nil, err
		}
	}
	if len(outcomes) < 2 {
		return nil, nil
	}
	winner := &outcomes[0]
	return &Conflict{winner.Scope, winner.Key, winner.Origin, outcomes, winner.ExpiresIn}, nil
}
