package feed

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Publish moves outcomes that are not published yet into the feed.
func (f *Feed) Publish(ctx context.Context) error {
	for {
		n := int(f.batch.Load())
		more, err := f.publishSome(ctx, n)
		switch {
		case errors.Is(err, store.ErrTooLarge) && n > 1:
			f.batch.Store(int64(n / 2)) // an engine with smaller transactions
		case errors.Is(err, store.ErrConflict):
			return nil // another manager publishes
		case err != nil || !more:
			return err
		}
	}
}

// publishSome publishes what up to n records name, and as many as that of the index of origins.
func (f *Feed) publishSome(ctx context.Context, n int) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.ledger.Options().OpTimeout)
	defer cancel()
	var posted []store.Hit
	stuck := f.unreadable.Load()
	limit := min(n+int(stuck), store.MaxScan)
	scan := func(tx store.Tx) (err error) {
		posted, err = tx.Scan(ledger.Outbox, ledger.OutboxIndex, store.Range{Limit: limit})
		return err
	}
	if f.shared { // a scan in an Update may still be stale
		if err := f.store.View(ctx, scan); err != nil || len(posted) == 0 {
			return false, err
		}
	}
	published, unreadable := 0, 0
	err = f.store.Update(ctx, func(tx store.Tx) error {
		published, unreadable, more = 0, 0, false
		h, err := getHead(tx)
		if err != nil {
			return err
		}
		var keys []string
		upTo, full := f.ledger.Clock().Last(), false
		if !f.shared {
			if keys, upTo, full, err = f.unpublished(tx, h.HLC, n); err != nil {
				return err
			}
			if err := scan(tx); err != nil {
				return err
			}
		}
		rest := 0
		if keys, rest, unreadable, err = f.takeOutbox(tx, posted, keys); err != nil {
			return err
		}
		// After what cannot be read, the next scan goes further.
		more = full || rest > 0 || len(posted) == limit && (unreadable < len(posted) || int64(unreadable) > stuck)
		if len(keys) == 0 {
			return nil
		}
		published = len(keys)
		if err := h.add(tx, keys, f.kept); err != nil {
			return err
		}
		h.HLC = max(h.HLC, upTo)
		tx.Notify(topic)
		return h.put(tx)
	})
	if err == nil {
		f.published.Add(uint64(published))
		f.unreadable.Store(int64(unreadable))
	}
	return more && err == nil, err
}

// takeOutbox removes records from the outbox, and appends the keys that they name. rest is how many records it left for
// the next transaction, unreadable how many cannot be read.
func (f *Feed) takeOutbox(tx store.Tx, posted []store.Hit, keys []string) (taken []string, rest, unreadable int, err error) {
	if err := tx.Prefetch(store.IDs(ledger.Outbox, posted)); err != nil {
		return nil, 0, 0, err
	}
	for i, hit := range posted {
		if len(keys) >= publishKeys {
			return keys, len(posted) - i, unreadable, nil
		}
		value, err := tx.Get(ledger.Outbox, hit.Key)
		if errors.Is(err, store.ErrNotFound) {
			continue // another manager has published it
		}
		if err != nil {
			return nil, 0, 0, err
		}
		list, ok := ledger.ParseKeys(value)
		if !ok {
			f.ledger.Skips(&store.UnreadableError{Collection: ledger.Outbox, Key: hit.Key, Reason: "it is of another version or malformed"})
			unreadable++
			continue
		}
		keys = append(keys, list...)
		if err := tx.Delete(ledger.Outbox, hit.Key); err != nil {
			return nil, 0, 0, err
		}
	}
	return keys, 0, unreadable, nil
}

// unpublished finds about n outcomes of this ledger after a time of its clock, in their order. Those up to the time upTo are
// complete. full: there may be later ones.
func (f *Feed) unpublished(tx store.Tx, after uint64, n int) (keys []string, upTo uint64, full bool, err error) {
	for {
		keys, upTo, full, err = f.unpublishedUpTo(tx, after, n)
		if err != nil || !full || len(keys) > 0 || n == store.MaxScan {
			return keys, upTo, full, err
		}
		n = min(2*n, store.MaxScan) // they all have one time
	}
}

func (f *Feed) unpublishedUpTo(tx store.Tx, after uint64, n int) (keys []string, upTo uint64, full bool, err error) {
	r := store.Range{From: ledger.OutcomesFrom(f.origin, after+1), To: ledger.OutcomesEnd(f.origin), Limit: n}
	var hits []store.Hit
	for _, c := range ledger.OutcomeCollections {
		found, err := tx.Scan(c, ledger.OriginIndex, r)
		if err != nil {
			return nil, 0, false, err
		}
		for i := range found {
			found[i].Key = ledger.OutcomeKey(c, found[i].Key)
		}
		hits, full = append(hits, found...), full || len(found) == n
	}
	upTo = f.ledger.Clock().Last()
	slices.SortStableFunc(hits, func(a, b store.Hit) int { return cmp.Compare(a.SortKey, b.SortKey) })
	if full {
		// There may be more with the time of the last one: an adopted outcome has a time that was not given to it alone.
		last, _ := ledger.OutcomeTime(f.origin, hits[n-1].SortKey)
		i := n - 1
		for ; i >= 0; i-- {
			if upTo, _ = ledger.OutcomeTime(f.origin, hits[i].SortKey); upTo != last {
				break
			}
		}
		if i < 0 && n == store.MaxScan { // no scan shows more
			i = n - 1
		}
		hits = hits[:i+1]
	}
	keys = make([]string, len(hits))
	for i := range hits {
		keys[i] = hits[i].Key
	}
	return keys, upTo, full, nil
}

// add appends changes to the feed, and forgets what is more than is to be kept. The sweeper deletes that.
func (h *head) add(tx store.Tx, keys []string, kept uint64) error {
	for len(keys) > 0 {
		n := ledger.FitKeys(keys)
		h.Next += uint64(n)
		last := hex16(h.Next - 1)
		if err := tx.Put(changes, last, ledger.AppendKeys(nil, keys[:n]), store.Entry{Index: indexOrder, SortKey: last}); err != nil {
			return err
		}
		keys = keys[n:]
	}
	if h.Next-h.First > kept {
		h.First, h.Whole = h.Next-kept, false
	}
	return nil
}

// readPage returns the changes of a record of the feed and the number of the last one. keys is nil when it cannot be
// read.
func (f *Feed) readPage(tx store.Tx, hit store.Hit) (keys []string, last uint64, err error) {
	if last, err = strconv.ParseUint(hit.SortKey, 16, 64); err != nil {
		return nil, 0, nil
	}
	value, err := tx.Get(changes, hit.Key)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, 0, err
	}
	if keys, ok := ledger.ParseKeys(value); ok && uint64(len(keys)) <= last {
		return keys, last, nil
	}
	if err == nil {
		f.ledger.Skips(&store.UnreadableError{Collection: changes, Key: hit.Key, Reason: "it is of another version or malformed"})
	}
	return nil, last, nil
}
