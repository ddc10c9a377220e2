package ledger

import (
	"context"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// outcomeHLC is when an outcome of indexOrigin was recorded, by the hybrid clock.
func outcomeHLC(origin, sortKey string) (uint64, bool) {
	from := len(originPrefix(origin))
	if len(sortKey) < from+16 {
		return 0, false
	}
	t, err := strconv.ParseUint(sortKey[from:from+16], 16, 63)
	return t, err == nil
}

// eachOutcome calls fn with the index entries of an origin's outcomes in a collection after a sort key, in order, and with
// their times of the hybrid clock.
func (l *Ledger) eachOutcome(ctx context.Context, c store.Collection, origin, from string, fn func(at uint64, h store.Hit)) error {
	r := store.Range{From: from, To: originEnd(origin), Limit: 1000}
	for {
		var hits []store.Hit
		err := l.store.View(ctx, func(tx store.Tx) (err error) {
			hits, err = tx.Scan(c, indexOrigin, r)
			return err
		})
		if err != nil {
			return err
		}
		for _, h := range hits {
			if at, ok := outcomeHLC(origin, h.SortKey); ok {
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
func (l *Ledger) bounds(ctx context.Context, origin string) (oldest, newest int64, err error) {
	err = l.store.View(ctx, func(tx store.Tx) error {
		oldest, newest = 0, 0
		first, any, err := firstOutcome(tx, collection, origin, 0)
		if err != nil || !any {
			return err
		}
		last, err := lastOutcome(tx, collection, origin, first)
		oldest, newest = int64(first>>16), int64(last>>16)
		return err
	})
	return oldest, newest, err
}

// firstOutcome returns the time of an origin's first outcome in a collection at a time or later.
func firstOutcome(tx store.Tx, c store.Collection, origin string, from uint64) (at uint64, any bool, err error) {
	hits, err := tx.Scan(c, indexOrigin, store.Range{From: originPrefix(origin) + hex16(from), To: originEnd(origin), Limit: 1})
	if err != nil || len(hits) == 0 {
		return 0, false, err
	}
	at, any = outcomeHLC(origin, hits[0].SortKey)
	return at, any, nil
}

// lastOutcome returns the time of an origin's last outcome in a collection, or from if there is none after that. Scans only
// go forwards, so it searches by halves: at most 63 scans of one hit, whatever there is.
func lastOutcome(tx store.Tx, c store.Collection, origin string, from uint64) (uint64, error) {
	for most := uint64(maxHLC); from < most; {
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

func sortedDigests(found map[int64]*Digest) []Digest {
	all := make([]Digest, 0, len(found))
	for _, from := range slices.Sorted(maps.Keys(found)) {
		all = append(all, *found[from])
	}
	return all
}

// Outcomes is a page of the outcomes that this ledger holds of an origin, its own or another one, and that were recorded from one time of the hybrid clock up to another, in
// Unix milliseconds. The cursor is "" after the last page. Errors are those of Changes.
func (l *Ledger) Outcomes(ctx context.Context, origin string, from, to int64, after string, limit int) (f Feed, err error) {
	if l.opts.Origin == "" {
		return Feed{}, ErrNoOrigin
	}
	at := &position{epoch: "span", copying: true}
	if after != "" {
		if at, err = parsePosition(origin, after); err != nil {
			return Feed{}, err
		}
		if !at.copying || at.epoch != "span" {
			return Feed{}, ErrCursor
		}
	}
	first, end := originPrefix(origin)+hex16(uint64(max(from, 0))<<16), originPrefix(origin)+hex16(uint64(max(to, 0))<<16)
	err = l.store.View(ctx, func(tx store.Tx) error {
		p := *at
		f = Feed{}
		h, err := getHead(tx)
		if err != nil {
			return err
		}
		f.Head = h.Next - 1
		done, err := l.outcomes(tx, &p, first, end, limit, &f)
		if f.Copying = !done; f.Copying {
			f.Cursor = origin + ":" + p.String()
		}
		return err
	})
	return f, err
}
