package ledger

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Lists of keys are values of the outbox and pages of the feed:
//
//	list := version(1) uvarint(number of keys) key...
//	key := uvarint(length) bytes
const (
	listVersion = 1
	// listKeys and listBytes bound a list.
	listKeys  = 256
	listBytes = 32 << 10
)

// listOf is how many of the keys go into one list.
func listOf(keys []string) (n int) {
	for size := 0; n < len(keys) && n < listKeys; n++ {
		if size += len(keys[n]); n > 0 && size > listBytes {
			break
		}
	}
	return n
}

func appendList(dst []byte, keys []string) []byte {
	size := 1 + binary.MaxVarintLen64
	for _, k := range keys {
		size += 2 + len(k) // of a key of at most 16 KiB
	}
	dst = append(slices.Grow(dst, size), listVersion)
	dst = binary.AppendUvarint(dst, uint64(len(keys)))
	for _, k := range keys {
		dst = binary.AppendUvarint(dst, uint64(len(k)))
		dst = append(dst, k...)
	}
	return dst
}

// decodeList reads a list. ok is false if it is malformed, empty or of another version, or has what is no key.
func decodeList(value []byte) (keys []string, ok bool) {
	if len(value) == 0 || value[0] != listVersion {
		return nil, false
	}
	count, n := binary.Uvarint(value[1:])
	if n <= 0 || count == 0 || count > listKeys {
		return nil, false
	}
	rest := string(value[1+n:])
	keys = make([]string, 0, count)
	for range count {
		size, n := uvarintOf(rest)
		if n <= 0 || size == 0 || size > store.MaxKeyBytes || size > uint64(len(rest)-n) {
			return nil, false
		}
		keys, rest = append(keys, rest[n:n+int(size)]), rest[n+int(size):]
	}
	return keys, rest == ""
}

func uvarintOf(s string) (uint64, int) {
	return binary.Uvarint([]byte(s[:min(len(s), binary.MaxVarintLen64)]))
}

// publish gives an outcome of this ledger its place in the change feed, in the transaction that records it. On an engine
// that one process uses, the index of origins is sufficient for that: transactions come one after the other there, so the
// times of outcomes grow in the order of the transactions. On a shared engine an outcome may become visible after a later
// one of another manager. So its key goes into the outbox, which has no order of its own: a counter would be a record that
// all transactions of all managers change.
func (tx *Tx) publish(key string, r *record) {
	if tx.l.opts.Origin == "" || !r.state.Terminal() {
		return
	}
	tx.fx.published = true
	if tx.l.shared {
		tx.outcomes = append(tx.outcomes, key)
	}
}

// publishAdopted is publish for an outcome whose time may be before what is published already.
func (tx *Tx) publishAdopted(key string, r *record) {
	tx.l.feed.clock.observe(r.hlc)
	tx.fx.published = true
	tx.outcomes = append(tx.outcomes, key)
}

// post puts the keys of the transaction's outcomes into the outbox, several in one record.
func (tx *Tx) post() error {
	for keys := tx.outcomes; len(keys) > 0; {
		n := listOf(keys)
		at := hex16(tx.l.feed.clock.next(tx.Now().UnixMilli()))
		start := len(tx.values)
		tx.values = appendList(tx.values, keys[:n])
		err := tx.Put(outbox, at+" "+tx.l.feed.id, tx.values[start:len(tx.values):len(tx.values)], store.Entry{Index: indexOrder, SortKey: at})
		if err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}

// Publish moves outcomes that are not published yet into the feed.
func (l *Ledger) Publish(ctx context.Context) error {
	for {
		n := int(l.feed.batch.Load())
		more, err := l.publishSome(ctx, n)
		switch {
		case errors.Is(err, store.ErrTooLarge) && n > 1:
			l.feed.batch.Store(int64(n / 2)) // an engine with smaller transactions
		case errors.Is(err, store.ErrConflict):
			return nil // another manager publishes
		case err != nil || !more:
			return err
		}
	}
}

// publishSome publishes what up to n records tell of, and as many as that of the index of origins.
func (l *Ledger) publishSome(ctx context.Context, n int) (more bool, err error) {
	ctx, cancel := l.opContext(ctx)
	defer cancel()
	var posted []store.Hit
	stuck := l.feed.unreadable.Load()
	limit := min(n+int(stuck), store.MaxScan)
	scan := func(tx store.Tx) (err error) {
		posted, err = tx.Scan(outbox, indexOrder, store.Range{Limit: limit})
		return err
	}
	if l.shared { // a scan in an Update may still be stale
		if err := l.store.View(ctx, scan); err != nil || len(posted) == 0 {
			return false, err
		}
	}
	published, unreadable := 0, 0
	err = l.store.Update(ctx, func(tx store.Tx) error {
		published, unreadable, more = 0, 0, false
		h, err := getHead(tx)
		if err != nil {
			return err
		}
		var keys []string
		upTo, full := l.feed.clock.last.Load(), false
		if !l.shared {
			if keys, upTo, full, err = l.unpublished(tx, h.HLC, n); err != nil {
				return err
			}
			if err := scan(tx); err != nil {
				return err
			}
		}
		rest := 0
		if keys, rest, unreadable, err = l.takeOutbox(tx, posted, keys); err != nil {
			return err
		}
		// After what cannot be read, the next scan goes further.
		more = full || rest > 0 || len(posted) == limit && (unreadable < len(posted) || int64(unreadable) > stuck)
		if len(keys) == 0 {
			return nil
		}
		published = len(keys)
		if err := h.add(tx, keys, uint64(l.opts.ChangesKept)); err != nil {
			return err
		}
		h.HLC = max(h.HLC, upTo)
		tx.Notify(feedTopic)
		return h.put(tx)
	})
	if err == nil {
		l.feed.counted.published.Add(uint64(published))
		l.feed.unreadable.Store(int64(unreadable))
	}
	return more && err == nil, err
}

func bySortKey(a, b store.Hit) int { return cmp.Compare(a.SortKey, b.SortKey) }

// takeOutbox removes records from the outbox, and appends the keys that they tell of. rest is how many records it left for
// the next transaction, unreadable how many cannot be read.
func (l *Ledger) takeOutbox(tx store.Tx, posted []store.Hit, keys []string) (taken []string, rest, unreadable int, err error) {
	ids := make([]store.ID, len(posted))
	for i := range posted {
		ids[i] = store.ID{Collection: outbox, Key: posted[i].Key}
	}
	if err := tx.Prefetch(ids); err != nil {
		return nil, 0, 0, err
	}
	for i, hit := range posted {
		if len(keys) >= publishKeys {
			return keys, len(posted) - i, unreadable, nil
		}
		value, err := tx.Get(outbox, hit.Key)
		if errors.Is(err, store.ErrNotFound) {
			continue // another manager has published it
		}
		if err != nil {
			return nil, 0, 0, err
		}
		list, ok := decodeList(value)
		if !ok {
			l.skips(&store.UnreadableError{Collection: outbox, Key: hit.Key, Reason: "it is of another version or malformed"})
			unreadable++
			continue
		}
		keys = append(keys, list...)
		if err := tx.Delete(outbox, hit.Key); err != nil {
			return nil, 0, 0, err
		}
	}
	return keys, 0, unreadable, nil
}

// unpublished finds about n outcomes of this ledger after a time of its clock, in their order. Those up to the time upTo are
// complete. full: there may be later ones.
func (l *Ledger) unpublished(tx store.Tx, after uint64, n int) (keys []string, upTo uint64, full bool, err error) {
	for {
		keys, upTo, full, err = l.unpublishedUpTo(tx, after, n)
		if err != nil || !full || len(keys) > 0 || n == store.MaxScan {
			return keys, upTo, full, err
		}
		n = min(2*n, store.MaxScan) // they all have one time
	}
}

func (l *Ledger) unpublishedUpTo(tx store.Tx, after uint64, n int) (keys []string, upTo uint64, full bool, err error) {
	prefix := originPrefix(l.opts.Origin)
	r := store.Range{From: prefix + hex16(after+1), To: originEnd(l.opts.Origin), Limit: n}
	hits, err := tx.Scan(collection, indexOrigin, r)
	if err != nil {
		return nil, 0, false, err
	}
	lost, err := tx.Scan(conflicts, indexOrigin, r)
	if err != nil {
		return nil, 0, false, err
	}
	upTo = l.feed.clock.last.Load()
	full = len(hits) == n || len(lost) == n
	if len(lost) > 0 {
		for i := range lost {
			lost[i].Key = lost[i].Key[min(len(prefix), len(lost[i].Key)):]
		}
		hits = append(hits, lost...)
		slices.SortFunc(hits, bySortKey)
	}
	if full {
		// There may be more with the time of the last one: an adopted outcome has a time that was not given to it alone.
		last, _ := outcomeHLC(l.opts.Origin, hits[n-1].SortKey)
		i := n - 1
		for ; i >= 0; i-- {
			if upTo, _ = outcomeHLC(l.opts.Origin, hits[i].SortKey); upTo != last {
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
		n := listOf(keys)
		h.Next += uint64(n)
		last := hex16(h.Next - 1)
		if err := tx.Put(changes, last, appendList(nil, keys[:n]), store.Entry{Index: indexOrder, SortKey: last}); err != nil {
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
func (l *Ledger) readPage(tx store.Tx, hit store.Hit) (keys []string, last uint64, err error) {
	if last, err = strconv.ParseUint(hit.SortKey, 16, 64); err != nil {
		return nil, 0, nil
	}
	value, err := tx.Get(changes, hit.Key)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, 0, err
	}
	if keys, ok := decodeList(value); ok && uint64(len(keys)) <= last {
		return keys, last, nil
	}
	if err == nil {
		l.skips(&store.UnreadableError{Collection: changes, Key: hit.Key, Reason: "it is of another version or malformed"})
	}
	return nil, last, nil
}
