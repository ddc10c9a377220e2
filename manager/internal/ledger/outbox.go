package ledger

import (
	"encoding/binary"
	"slices"

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

// Adopt gives this ledger's origin to an outcome that was recorded while it had none, and publishes it. size is that of
// the record, 0 for what needs no adoption or cannot be read. Errors: the store's.
func (tx *Tx) Adopt(key string) (size int, err error) {
	var r record
	e, err := tx.l.load(tx.Tx, key, &r)
	if tx.l.Skips(err) {
		return 0, nil
	}
	now := tx.Now().UnixMilli()
	if err != nil || e == nil || !e.state.Terminal() || !live(e, now) {
		return 0, err
	}
	left := *e
	if !tx.adopt(e) {
		return 0, nil
	}
	tx.supersede(key, &left, now)
	if err := tx.write(key, e); err != nil {
		return 0, err
	}
	tx.publishAdopted(key, e)
	return e.size, nil
}

// adopt makes an outcome without an origin, recorded before this ledger had one, an outcome of this ledger.
func (tx *Tx) adopt(e *record) (adopted bool) {
	if len(e.origin) != 0 {
		return false
	}
	e.origin, e.hlc = []byte(tx.l.opts.Origin), uint64(max(e.touched, 0))<<16
	return true
}
