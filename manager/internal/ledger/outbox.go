package ledger

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Outbox has the keys of outcomes that are not in the feed yet, on engines that several managers share.
const Outbox store.Collection = "outbox"

// OutboxIndex has each record of Outbox, by time.
const OutboxIndex = "order"

// Lists of keys are values of the outbox, and pages of the feed (see package feed):
//
//	list := version(1) uvarint(number of keys) key...
//	key := uvarint(length) bytes
const (
	listVersion = 1
	// listKeys and listBytes bound a list.
	listKeys  = 256
	listBytes = 32 << 10
)

// FitKeys is how many of the keys go into one list.
func FitKeys(keys []string) (n int) {
	for size := 0; n < len(keys) && n < listKeys; n++ {
		if size += len(keys[n]); n > 0 && size > listBytes {
			break
		}
	}
	return n
}

// AppendKeys appends a list of keys; see FitKeys.
func AppendKeys(dst []byte, keys []string) []byte {
	size := 1 + binary.MaxVarintLen64
	for _, k := range keys {
		size += 2 + len(k) // of a key of at most 16 KiB
	}
	dst = append(slices.Grow(dst, size), listVersion)
	dst = binary.AppendUvarint(dst, uint64(len(keys)))
	for _, k := range keys {
		dst = codec.AppendString(dst, k)
	}
	return dst
}

// ParseKeys reads a list. ok is false if it is malformed, empty or of another version, or has what is no key.
func ParseKeys(value []byte) (keys []string, ok bool) {
	d := codec.NewReader(value)
	if d.Byte() != listVersion {
		return nil, false
	}
	keys = make([]string, d.Count(listKeys))
	for i := range keys {
		if keys[i] = d.String(); keys[i] == "" || len(keys[i]) > store.MaxKeyBytes {
			return nil, false
		}
	}
	return keys, d.Err() == nil && len(d.Rest()) == 0 && len(keys) > 0
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
	tx.fx.recorded = true
	if tx.l.shared {
		tx.outcomes = append(tx.outcomes, key)
	}
}

// publishAdopted is publish for an outcome whose time may be before what is published already.
func (tx *Tx) publishAdopted(key string, r *record) {
	tx.l.origins.clock.Observe(r.hlc)
	tx.fx.recorded = true
	tx.outcomes = append(tx.outcomes, key)
}

// post puts the keys of the transaction's outcomes into the outbox, several in one record.
func (tx *Tx) post() error {
	for keys := tx.outcomes; len(keys) > 0; {
		n := FitKeys(keys)
		at := hex16(tx.l.origins.clock.next(tx.Now().UnixMilli()))
		start := len(tx.values)
		tx.values = AppendKeys(tx.values, keys[:n])
		err := tx.Put(Outbox, at+" "+tx.l.origins.id, tx.values[start:len(tx.values):len(tx.values)], store.Entry{Index: OutboxIndex, SortKey: at})
		if err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}

// adoptBatch is how many outcomes one transaction adopts.
const adoptBatch = 256

// Adoption gives this ledger's origin to outcomes that were recorded while it had none, and publishes them. Without that no
// other data centre would ever learn of them.
type Adoption struct {
	batch  int         // 0 before the first step
	states []api.State // that are left
	after  *store.Hit
}

// Adopt makes a step. more: there is another one. After an error, which is the store's, the step is made again.
func (l *Ledger) Adopt(ctx context.Context, a *Adoption) (more bool, err error) {
	defer func() {
		if more && err == nil {
			l.noteRecorded()
		}
	}()
	ctx, cancel := l.opContext(ctx)
	defer cancel()
	if a.batch == 0 {
		// What is recorded between the counts has an origin, so they suggest no work where there is none.
		var n [3]int
		for i, index := range []string{indexOf(api.StateCommitted), indexOf(api.StateRejected), OriginIndex} {
			if n[i], err = l.store.Len(ctx, Collection, index); err != nil {
				return true, err
			}
		}
		if a.batch = adoptBatch; n[0]+n[1] > n[2] {
			a.states = []api.State{api.StateCommitted, api.StateRejected}
		}
	}
	if len(a.states) == 0 {
		return false, nil
	}
	var hits []store.Hit
	if err := l.store.View(ctx, func(tx store.Tx) (err error) {
		hits, err = tx.Scan(Collection, indexOf(a.states[0]), store.Range{After: a.after, Limit: a.batch})
		return err
	}); err != nil {
		return true, err
	}
	seen := 0
	if err := l.transact(ctx, func(tx *Tx) (err error) {
		seen, err = tx.adoptAll(hits)
		return err
	}); errors.Is(err, store.ErrTooLarge) && a.batch > 1 {
		a.batch /= 2 // an engine with smaller transactions
		return true, nil
	} else if err != nil {
		return true, err
	}
	if seen > 0 {
		a.after = &hits[seen-1]
	}
	if seen == len(hits) && len(hits) < a.batch {
		a.states, a.after = a.states[1:], nil
	}
	return len(a.states) > 0, nil
}

// adoptAll adopts the outcomes among hits that have no origin, until they are many bytes. seen is how far it came.
func (tx *Tx) adoptAll(hits []store.Hit) (seen int, err error) {
	if err := tx.Tx.Prefetch(store.IDs(Collection, hits)); err != nil {
		return 0, err
	}
	now, size := tx.Now().UnixMilli(), 0
	for ; seen < len(hits) && size <= importBytes; seen++ {
		key := hits[seen].Key
		var r record
		e, err := tx.l.load(tx.Tx, key, &r)
		if tx.l.Skips(err) {
			continue
		}
		if err != nil {
			return 0, err
		}
		if e == nil || !e.state.Terminal() || !live(e, now) {
			continue
		}
		left := *e
		if !tx.adopt(e) {
			continue
		}
		tx.supersede(key, &left, now)
		if err := tx.write(key, e); err != nil {
			return 0, err
		}
		tx.publishAdopted(key, e)
		size += e.size
	}
	return seen, nil
}

// adopt makes an outcome without an origin, recorded before this ledger had one, an outcome of this ledger.
func (tx *Tx) adopt(e *record) (adopted bool) {
	if len(e.origin) != 0 {
		return false
	}
	e.origin, e.hlc = []byte(tx.l.opts.Origin), uint64(max(e.touched, 0))<<16
	return true
}
