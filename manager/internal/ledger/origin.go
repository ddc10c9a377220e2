package ledger

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
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

// OutcomeCollections are where outcomes of data centres are, as package feed reads them: entries, and outcomes that lost a
// conflict. OriginIndex has those of each.
var OutcomeCollections = [...]store.Collection{Collection, ConflictCollection}

// OutcomesFrom is the sort key in OriginIndex from which on an origin's outcomes of a time of the hybrid clock, and later
// ones, are.
func OutcomesFrom(origin string, at uint64) string { return originPrefix(origin) + hex16(at) }

// OutcomesEnd is after all sort keys of an origin in OriginIndex.
func OutcomesEnd(origin string) string { return origin + "!" }

// OutcomeTime is when an outcome of OriginIndex was recorded, by the hybrid clock.
func OutcomeTime(origin, sortKey string) (uint64, bool) {
	from := len(originPrefix(origin))
	if len(sortKey) < from+16 {
		return 0, false
	}
	t, err := strconv.ParseUint(sortKey[from:from+16], 16, 63)
	return t, err == nil
}

// OutcomeKey is the key of the entry of a record in one of OutcomeCollections.
func OutcomeKey(c store.Collection, key string) string {
	if c == ConflictCollection {
		_, key, _ = strings.Cut(key, " ")
	}
	return key
}

// decodeOutcome decodes a record of one of OutcomeCollections. Its error is a *store.UnreadableError.
func decodeOutcome(c store.Collection, key string, value []byte) (*record, error) {
	r := new(record)
	err := decodeRecord(key, value, r)
	var u *store.UnreadableError
	if errors.As(err, &u) {
		u.Collection = c
		return nil, err
	}
	return r, nil
}

// loadOutcome reads a record of one of OutcomeCollections. It returns nil when there is none.
func loadOutcome(tx store.Tx, c store.Collection, key string) (*record, error) {
	return store.Read(tx, c, key, func(key string, value []byte) (*record, error) { return decodeOutcome(c, key, value) })
}

// ReadOutcome reads an outcome from one of OutcomeCollections. ok is false when there is none any more. Errors:
// *store.UnreadableError, the store's.
func ReadOutcome(tx store.Tx, c store.Collection, key string) (change FeedChange, ok bool, err error) {
	e, err := loadOutcome(tx, c, key)
	if err != nil || e == nil {
		return change, false, err
	}
	change, ok = newChange(OutcomeKey(c, key), e, tx.Now())
	return change, ok, nil
}

// PrefetchEntries reads entries together; see store.Tx.
func PrefetchEntries(tx store.Tx, keys []string) error {
	return tx.Prefetch(entryIDs(keys))
}

// OutcomeOf reads this ledger's outcome of an entry, which OutcomeKey or a list of keys names. ok is false when there is none
// any more. Its error is the store's.
func (l *Ledger) OutcomeOf(tx store.Tx, key string) (c FeedChange, ok bool, err error) {
	var r record
	e, err := l.load(tx, key, &r)
	if err == nil && (e == nil || string(e.origin) != l.opts.Origin) {
		e, err = loadOutcome(tx, ConflictCollection, loserKey([]byte(l.opts.Origin), key))
	}
	if l.Skips(err) {
		return c, false, nil
	}
	if err != nil || e == nil {
		return c, false, err
	}
	c, ok = newChange(key, e, tx.Now())
	return c, ok, nil
}

func newChange(key string, e *record, at time.Time) (FeedChange, bool) {
	scope, k, ok := SplitEntryKey(key)
	now := at.UnixMilli()
	if !ok || !e.state.Terminal() || now >= e.expires {
		return FeedChange{}, false
	}
	return FeedChange{
		Origin: string(e.origin), Scope: scope, Key: k, Token: string(e.token), Fingerprint: string(e.fingerprint), Ref: string(e.ref),
		State: e.state, HLC: e.hlc, Fence: e.fence, Age: milliseconds(max(now-e.created, 0)), ExpiresIn: remaining(e.expires, at),
		Result: append([]byte(nil), e.result...),
	}, true
}

// origins is what this process knows of the outcomes of data centres.
type origins struct {
	clock Clock
	// id is in the keys of the outbox, so that those of two managers differ.
	id string
	// recorded has a value after an outcome was recorded.
	recorded chan struct{}
	counted  struct{ imported, repeated, dropped, deferred, invalid, clashes, unkept atomic.Uint64 }
	// losers is how many outcomes that lost are kept, as of the last sweep and with those that this process added.
	losers atomic.Int64
}

// applyOrigins counts and reports what a transaction did.
func (l *Ledger) applyOrigins(fx *effects) {
	c := &l.origins.counted
	c.imported.Add(fx.imports.done)
	c.repeated.Add(fx.imports.repeated)
	c.dropped.Add(fx.imports.dropped)
	c.deferred.Add(fx.imports.deferred)
	c.invalid.Add(fx.imports.invalid)
	c.clashes.Add(uint64(len(fx.clashes)))
	for _, clash := range fx.clashes {
		if !clash.Kept {
			c.unkept.Add(1)
		}
	}
	l.origins.losers.Add(fx.losers.Entries)
	if fx.recorded {
		l.noteRecorded()
	}
	if l.opts.Clashed != nil {
		for _, clash := range fx.clashes {
			l.opts.Clashed(clash)
		}
	}
}

// OutcomeRecorded has a value after this ledger recorded or adopted an outcome that the feed may lack.
func (l *Ledger) OutcomeRecorded() <-chan struct{} { return l.origins.recorded }

func (l *Ledger) noteRecorded() {
	select {
	case l.origins.recorded <- struct{}{}:
	default:
	}
}

// OriginStats counts since the process started.
type OriginStats struct {
	// Imported outcomes of others, of which Repeated were known, Dropped had no room or
	// made room for this ledger's own, Deferred have to wait until the note of another attempt at the key's home is over,
	// and Invalid were malformed; Conflicts between two origins, Unkept those of them whose loser had no room.
	Imported, Repeated, Dropped, Deferred, Invalid, Conflicts, Unkept uint64
	// Losers are the outcomes that lost a conflict and are kept now, about.
	Losers int64
}

// OriginStats returns the counters of imports and conflicts.
func (l *Ledger) OriginStats() OriginStats {
	c := &l.origins.counted
	return OriginStats{c.imported.Load(), c.repeated.Load(), c.dropped.Load(), c.deferred.Load(), c.invalid.Load(), c.clashes.Load(), c.unkept.Load(), l.origins.losers.Load()}
}
