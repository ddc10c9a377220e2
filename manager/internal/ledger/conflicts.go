package ledger

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger/window"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Outcomes that lost a conflict. Each is a record of the ledger's form under its origin and the key of the entry, whose
// own record is the winner.
const (
	ConflictCollection store.Collection = "conflicts"
	// ConflictIndex has them by the key of the entry, each once, and indexExpiry by expiry.
	ConflictIndex = "key"
	indexExpiry   = "expiry"
)

func loserKey(origin []byte, key string) string { return originPrefix(string(origin)) + key }

func loserEntries(key string, r *record) []store.Entry {
	return []store.Entry{{Index: ConflictIndex, SortKey: key}, {Index: indexExpiry, SortKey: sortKey(r.expires)}, {Index: OriginIndex, SortKey: r.originKey()}}
}

// Clash is a conflict: two origins recorded an outcome of the same key. Both are kept.
type Clash struct {
	Scope, Key string
	// Winner and Loser are origins. Retries get the winner's outcome.
	Winner, Loser string
	// Kept: the outcome that lost is in the list of conflicts. Else that is full.
	Kept bool
}

// loadLoser returns the outcome that lost under a loserKey, nil if there is none.
func loadLoser(tx store.Tx, id string, r *record) (*record, error) {
	value, err := tx.Get(ConflictCollection, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err == nil && decodeRecord(id, value, r) != nil {
		err = &store.UnreadableError{Collection: ConflictCollection, Key: id, Reason: "it is malformed"}
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// clash keeps two outcomes of one key: the winner as its entry, the other one beside it, both until the later one of them
// expires. e is the entry, fresh is new. adopted: e has had no origin so far. fit, when set, makes room for fresh where it
// becomes the entry.
func (tx *Tx) clash(key string, e, fresh *record, adopted bool, fit func(left *record) error) error {
	now := tx.Now().UnixMilli()
	expires := max(e.expires, fresh.expires)
	winner, loser := e, fresh
	if fresh.before(e) {
		winner, loser = fresh, e
	}
	changed := winner == fresh || winner.expires != expires || adopted
	left := *e
	if changed {
		tx.supersede(key, &left, now)
	}
	winner.expires, loser.expires = expires, expires
	if winner == fresh {
		if fit != nil {
			if err := fit(&left); err != nil {
				return err
			}
		}
		// An earlier outcome of that origin is over. One of another run is listed: the origin had forgotten one of the two.
		var old record
		l, err := loadLoser(tx, loserKey(fresh.origin, key), &old)
		if err != nil && !tx.l.Skips(err) {
			return err
		}
		if l == nil || string(l.token) == string(fresh.token) || !overlap(l, fresh) && !overlap(fresh, l) {
			if err := tx.Delete(ConflictCollection, loserKey(fresh.origin, key)); err != nil {
				return err
			}
		}
	}
	if changed {
		if err := tx.write(key, winner); err != nil {
			return err
		}
	}
	kept, err := tx.keepLoser(key, loser)
	if err != nil {
		return err
	}
	tx.Notify(key)
	scope, k, _ := SplitEntryKey(key)
	tx.fx.clashes = append(tx.fx.clashes, Clash{Scope: scope, Key: k, Winner: string(winner.origin), Loser: string(loser.origin), Kept: kept})
	return nil
}

// Outcomes that lost are kept besides the window. If all of them take an eighth of it, another imported one is dropped. If
// they take a quarter, one of this ledger is dropped, too; the other ledgers learn of it only here.
const (
	loserShare    = 8
	ownLoserShare = 4
)

// keepLoser keeps an outcome that lost, if there is room. Of two that one origin recorded, it keeps the one that would
// win, so that all ledgers keep the same.
func (tx *Tx) keepLoser(key string, loser *record) (kept bool, err error) {
	id := loserKey(loser.origin, key)
	var old record
	known, err := loadLoser(tx, id, &old)
	switch {
	case err != nil && !tx.l.Skips(err):
		return false, err
	case known != nil && known.before(loser):
		known.expires = max(known.expires, loser.expires)
		loser = known
	}
	if known == nil && err == nil {
		at, err := tx.losers()
		if err != nil {
			return false, err
		}
		share := int64(ownLoserShare)
		if loser.imported {
			share = loserShare
		}
		limit := tx.l.limit()
		limit = window.Level{Entries: limit.Entries/share + 1, Bytes: limit.Bytes / share}
		need := window.Level{Entries: 1, Bytes: chargeOf(id, loser)}
		if at.Plus(need).Over(limit) != (window.Level{}) {
			return false, nil
		}
		tx.fx.losers = tx.fx.losers.Plus(need)
	}
	return true, tx.Put(ConflictCollection, id, appendRecord(nil, loser), loserEntries(key, loser)...)
}

// losers is how much the outcomes that lost take, including this transaction's. On engines that do not tell sizes it is an
// estimate.
func (tx *Tx) losers() (window.Level, error) {
	if !tx.l.sizes {
		return window.Level{Entries: tx.l.origins.losers.Load() + tx.fx.losers.Entries}, nil
	}
	at, err := sizeOf(tx.Tx, ConflictCollection)
	return at.Plus(tx.fx.losers), err
}

// CountLosers counts the outcomes that lost, for OriginStats and their bound. Its error is the store's.
func (l *Ledger) CountLosers(ctx context.Context) error {
	n, err := l.store.Len(ctx, ConflictCollection, ConflictIndex)
	if err == nil {
		l.origins.losers.Store(int64(n))
	}
	return err
}

// finishClash records an outcome of this ledger for a key that has an outcome of another one: an import came before the
// work here ended. It is not refused as fenced, because the work ran here, and both sides must learn that.
func (tx *Tx) finishClash(op Op, key string, e, final *record) error {
	// Another process may have imported e, before a restart or at another manager of this ledger.
	tx.observePeer(e.hlc)
	tx.stamp(final)
	var old record
	if l, err := loadLoser(tx, loserKey(final.origin, key), &old); err != nil {
		return err
	} else if l != nil && string(l.token) == string(final.token) {
		tx.count(op, OutcomeRepeated)
		return nil
	}
	err := tx.clash(key, e, final, false, func(left *record) error {
		_, err := tx.fitOutcome(op, key, left, final)
		return err
	})
	if err != nil {
		return err
	}
	tx.count(op, OutcomeDone)
	tx.publish(key, final)
	return nil
}

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
		var r record
		loser, err := loadLoser(tx, h.Key, &r)
		if err != nil && !l.opts.Unreadable.Met(err) {
			return nil, 0, err
		}
		if live(loser, now.UnixMilli()) {
			add(loser)
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
