package feed

import (
	"context"
	"hash/fnv"
	"maps"
	"math"
	"slices"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// eachOutcome calls fn with the index entries of an origin's outcomes in a collection, in order, and with their times of the
// hybrid clock.
func (f *Feed) eachOutcome(ctx context.Context, c store.Collection, origin string, fn func(at uint64, h store.Hit)) error {
	r := store.Range{From: ledger.OutcomesFrom(origin, 0), To: ledger.OutcomesEnd(origin), Limit: 1000}
	for {
		var hits []store.Hit
		err := f.store.View(ctx, func(tx store.Tx) (err error) {
			hits, err = tx.Scan(c, ledger.OriginIndex, r)
			return err
		})
		if err != nil {
			return err
		}
		for _, h := range hits {
			if at, ok := ledger.OutcomeTime(origin, h.SortKey); ok {
				fn(at, h)
			}
		}
		if len(hits) < r.Limit {
			return nil
		}
		r.After = &hits[len(hits)-1]
	}
}

// bounds returns the times of an origin's oldest and newest outcome.
func (f *Feed) bounds(ctx context.Context, origin string) (oldest, newest int64, err error) {
	err = f.store.View(ctx, func(tx store.Tx) error {
		oldest, newest = 0, 0
		first, any, err := firstOutcome(tx, ledger.OutcomeCollections[0], origin, 0)
		if err != nil || !any {
			return err
		}
		last, err := lastOutcome(tx, ledger.OutcomeCollections[0], origin, first)
		oldest, newest = int64(first>>16), int64(last>>16)
		return err
	})
	return oldest, newest, err
}

// firstOutcome returns the time of an origin's first outcome in a collection at a time or later.
func firstOutcome(tx store.Tx, c store.Collection, origin string, from uint64) (at uint64, any bool, err error) {
	hits, err := tx.Scan(c, ledger.OriginIndex, store.Range{From: ledger.OutcomesFrom(origin, from), To: ledger.OutcomesEnd(origin), Limit: 1})
	if err != nil || len(hits) == 0 {
		return 0, false, err
	}
	at, any = ledger.OutcomeTime(origin, hits[0].SortKey)
	return at, any, nil
}

// lastOutcome returns the time of an origin's last outcome in a collection, or from if there is none after that. Scans only
// go forwards, so it searches by halves: at most 63 scans of one hit, whatever there is.
func lastOutcome(tx store.Tx, c store.Collection, origin string, from uint64) (uint64, error) {
	for most := uint64(ledger.MaxHLC); from < most; {
		middle := from + (most-from+1)/2
		at, any, err := firstOutcome(tx, c, origin, middle)
		switch {
		case err != nil:
			return 0, err
		case any:
			from = at
		default:
			most = middle - 1
		}
	}
	return from, nil
}

// sumOf is a number for an outcome. Sums of numbers do not depend on the order.
func sumOf(sortKey, key string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(sortKey))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(key))
	x := h.Sum64()
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Outcomes is a page of the outcomes that this ledger holds of an origin, its own or another one, and that were recorded from
// one time of the hybrid clock up to another, in Unix milliseconds. The cursor is "" after the last page. Errors are those of Changes.
func (f *Feed) Outcomes(ctx context.Context, origin string, from, to int64, after string, limit int) (out Page, err error) {
	if f.origin == "" {
		return Page{}, ErrNoOrigin
	}
	at := &position{epoch: "span", copying: true}
	if after != "" {
		if at, err = parsePosition(origin, after); err != nil {
			return Page{}, err
		}
		if !at.copying || at.epoch != "span" {
			return Page{}, ledger.ErrCursor
		}
	}
	first, end := ledger.OutcomesFrom(origin, uint64(max(from, 0))<<16), ledger.OutcomesFrom(origin, uint64(max(to, 0))<<16)
	err = f.store.View(ctx, func(tx store.Tx) error {
		p := *at
		out = Page{}
		h, err := getHead(tx)
		if err != nil {
			return err
		}
		out.Head = h.Next - 1
		done, err := f.outcomes(tx, &p, first, end, limit, &out)
		if out.Copying = !done; out.Copying {
			out.Cursor = origin + ":" + p.String()
		}
		return err
	})
	return out, err
}

// Digest is what a ledger holds of an origin's outcomes that were recorded in a span of time.
type Digest struct {
	// From is the beginning of the span by the hybrid clock, in Unix milliseconds.
	From int64
	// Outcomes are how many, and Sum is the same where they are the same.
	Outcomes int
	Sum      uint64
}

const (
	// LeastSpan is the span of a digest; longer ones are used where there would be more than maxDigests.
	LeastSpan  = 1 << 16
	maxDigests = 2048
)

// Digests returns the digests of an origin's outcomes, and the span of each in milliseconds. span 0 lets the ledger
// choose. Outcomes that lost a conflict count. Errors: *api.FieldError, the store's.
func (f *Feed) Digests(ctx context.Context, origin string, span int64) ([]Digest, int64, error) {
	if span == 0 {
		span = LeastSpan
		oldest, newest, err := f.bounds(ctx, origin)
		if err != nil {
			return nil, 0, err
		}
		for (newest-oldest)/span >= maxDigests {
			span *= 2
		}
	}
	if span < LeastSpan || span > math.MaxInt64/2 {
		return nil, 0, &api.FieldError{Field: "span_ms", Allowed: "must be at least 65536"}
	}
	found := make(map[int64]*Digest)
	for _, c := range ledger.OutcomeCollections {
		err := f.eachOutcome(ctx, c, origin, func(hlc uint64, h store.Hit) {
			at := int64(hlc >> 16)
			from := at - at%span
			d := found[from]
			if d == nil {
				d = &Digest{From: from}
				found[from] = d
			}
			d.Outcomes++
			d.Sum += sumOf(h.SortKey, ledger.OutcomeKey(c, h.Key))
		})
		if err != nil {
			return nil, 0, err
		}
	}
	all := make([]Digest, 0, len(found))
	for _, from := range slices.Sorted(maps.Keys(found)) {
		all = append(all, *found[from])
	}
	return all, span, nil
}
