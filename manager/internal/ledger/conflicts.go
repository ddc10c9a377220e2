package ledger

import (
	"context"
	"strings"

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
		l, err := loadOutcome(tx, ConflictCollection, loserKey(fresh.origin, key))
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
	known, err := loadOutcome(tx, ConflictCollection, id)
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
	if l, err := loadOutcome(tx, ConflictCollection, loserKey(final.origin, key)); err != nil {
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

// ReadConflict decodes a record of ConflictCollection for tools. Its error is a *store.UnreadableError.
func ReadConflict(key string, value []byte) ([]store.Entry, error) {
	r, err := decodeOutcome(ConflictCollection, key, value)
	if err != nil {
		return nil, err
	}
	entry, ok := strings.CutPrefix(key, originPrefix(string(r.origin)))
	if !ok {
		return nil, &store.UnreadableError{Collection: ConflictCollection, Key: key, Reason: "it has another origin"}
	}
	return loserEntries(entry, r), nil
}

// ScanOver finds the next records of ConflictCollection that have expired, up to limit. after: the last one before them; nil:
// there is none. Errors: the store's.
func ScanOver(tx store.Tx, after *store.Hit, limit int) ([]store.Hit, error) {
	return tx.Scan(ConflictCollection, indexExpiry, store.Range{After: after, To: sortKey(tx.Now().UnixMilli() + 1), Limit: limit})
}
