package ledger

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// maxOriginBytes bounds the name of an origin.
const maxOriginBytes = 32

const (
	// MaxHLC bounds the times of hybrid clocks.
	MaxHLC = 1 << 62
	// maxFence bounds fences, and a fence stays there. Each step is an attempt that ran out.
	maxFence = 1 << 32
)

// MaxPeerAhead is how far the hybrid clock of another ledger's outcome may be ahead of this ledger's wall clock. An outcome
// from further ahead is refused: it would carry this ledger's own clock to where the others refuse it, for good.
const MaxPeerAhead = 7 * 24 * time.Hour

// Clock returns the clock of this ledger's outcomes.
func (l *Ledger) Clock() *Clock { return &l.origins.clock }

// hlcAt is a time of the wall clock as one of the hybrid clock.
func hlcAt(t time.Time) uint64 { return uint64(max(t.UnixMilli(), 0)) << 16 }

// observePeer makes own later outcomes be above that of a peer. The own clock gets no further than half of MaxPeerAhead: a
// third ledger, whose wall clock is behind, accepts these outcomes.
func (tx *Tx) observePeer(hlc uint64) {
	tx.l.origins.clock.Observe(min(hlc, hlcAt(tx.Now().Add(MaxPeerAhead/2))))
}

// Clock is a hybrid clock. It gives times that grow with every outcome that this ledger records or imports, whatever the wall clocks
// say. A time is Unix milliseconds times 65536 plus a count.
type Clock struct{ last atomic.Uint64 }

func (c *Clock) next(ms int64) uint64 {
	for {
		last := c.last.Load()
		t := max(uint64(ms)<<16, last+1)
		if c.last.CompareAndSwap(last, t) {
			return t
		}
	}
}

// Last is the time that was given or observed last.
func (c *Clock) Last() uint64 { return c.last.Load() }

// Observe makes later times be above t.
func (c *Clock) Observe(t uint64) {
	for last := c.last.Load(); t > last && t <= MaxHLC && !c.last.CompareAndSwap(last, t); last = c.last.Load() {
	}
}

// originKey is the record's place in OriginIndex: the origin, the time, and a digest of what is to be the same
// everywhere. The digests of two ledgers compare no more than these keys.
func (r *record) originKey() string {
	sum := (fnvOffset ^ uint64(r.state)) * fnvPrime
	for _, c := range r.token {
		sum = (sum ^ uint64(c)) * fnvPrime
	}
	var b [maxOriginBytes + 34]byte
	k := append(append(b[:0], r.origin...), ' ')
	k = append(appendHex16(k, r.hlc), ' ')
	return string(appendHex16(k, sum))
}

// Of FNV-1a with 64 bits. Each outcome needs it, and package hash/fnv would allocate.
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

func originPrefix(origin string) string { return origin + " " }

// hex16 is a number whose bytes sort as the numbers do.
func hex16(v uint64) string {
	var b [16]byte
	return string(appendHex16(b[:0], v))
}

func appendHex16(dst []byte, v uint64) []byte {
	for shift := 60; shift >= 0; shift -= 4 {
		dst = append(dst, "0123456789abcdef"[v>>shift&15])
	}
	return dst
}

// stamp says where and when an outcome was recorded.
func (tx *Tx) stamp(final *record) {
	if tx.l.opts.Origin != "" && final.state.Terminal() {
		final.origin, final.hlc, final.imported = []byte(tx.l.opts.Origin), tx.l.origins.clock.next(tx.Now().UnixMilli()), false
	}
}

// before reports whether a is the winner of two outcomes of one key: the one of the later attempt, then the one that was
// recorded first, then the one whose origin's name is first, then the one whose token is. Every ledger decides the same.
func (r *record) before(o *record) bool {
	switch {
	case r.fence != o.fence:
		return r.fence > o.fence
	case r.hlc != o.hlc:
		return r.hlc < o.hlc
	case string(r.origin) != string(o.origin):
		return string(r.origin) < string(o.origin)
	default: // a ledger that lost its memory started its clock again
		return string(r.token) < string(o.token)
	}
}

// endsAs reports whether two outcomes of one attempt are the same. An answer that one of two ledgers did not keep, because
// it is too large for it, cannot be compared.
func (r *record) endsAs(o *record) bool {
	if r.state != o.state {
		return false
	}
	if bytes.Equal(r.result, o.result) {
		return true
	}
	var a, b api.Result
	if a.ViewRaw(r.result) != nil || b.ViewRaw(o.result) != nil {
		return false
	}
	return a.Status == b.Status && (a.BodyOmitted || b.BodyOmitted)
}

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

// loadLoser returns the outcome of an origin that lost, nil if there is none.
func loadLoser(tx store.Tx, origin []byte, key string, r *record) (*record, error) {
	id := loserKey(origin, key)
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
		l, err := loadLoser(tx, fresh.origin, key, &old)
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

// Shares of the window that outcomes which lost may take besides it: those of other ledgers, and, with them, this ledger's
// own. The others learn of these from here only, so they are kept for longest.
const (
	loserShare    = 8
	ownLoserShare = 4
)

// keepLoser keeps an outcome that lost, if there is room. Of two that one origin recorded, it keeps the one that would
// win, so that all ledgers keep the same.
func (tx *Tx) keepLoser(key string, loser *record) (kept bool, err error) {
	id := loserKey(loser.origin, key)
	var old record
	known, err := loadLoser(tx, loser.origin, key, &old)
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
		limit = level{limit.entries/share + 1, limit.bytes / share}
		need := level{1, chargeOf(id, loser)}
		if at.plus(need).over(limit) != (level{}) {
			return false, nil
		}
		tx.fx.losers = tx.fx.losers.plus(need)
	}
	return true, tx.Put(ConflictCollection, id, appendRecord(nil, loser), loserEntries(key, loser)...)
}

// losers is how much the outcomes that lost take, including this transaction's. On engines that do not tell sizes it is an
// estimate.
func (tx *Tx) losers() (level, error) {
	if !tx.l.sizes {
		return level{tx.l.origins.losers.Load() + tx.fx.losers.entries, 0}, nil
	}
	at, err := sizeOf(tx.Tx, ConflictCollection)
	return at.plus(tx.fx.losers), err
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
	if l, err := loadLoser(tx, final.origin, key, &old); err != nil {
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

// adopt makes an outcome without an origin, recorded before this ledger had one, an outcome of this ledger.
func (tx *Tx) adopt(e *record) (adopted bool) {
	if len(e.origin) != 0 {
		return false
	}
	e.origin, e.hlc = []byte(tx.l.opts.Origin), uint64(max(e.touched, 0))<<16
	return true
}
