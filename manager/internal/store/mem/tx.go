package mem

import (
	"errors"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// handle is the store.Tx that a function gets. Once the function has returned, the handle is invalid, while the
// transaction that it names is reused.
type handle struct{ t *tx }

func (h *handle) Now() time.Time {
	if h.t == nil {
		return time.Time{}
	}
	return h.t.Now()
}

// Wall implements store.Tx.
func (h *handle) Wall() time.Time { return h.Now() }

func (h *handle) Get(name store.Collection, key string) ([]byte, error) {
	t := h.t
	if t == nil {
		return nil, errFinished
	}
	c := t.s.find(name)
	if c == nil || key == "" || len(key) > store.MaxKeyBytes {
		if err := store.CheckKey(name, key); err != nil {
			return nil, err
		}
		return nil, store.ErrNotFound
	}
	if i := t.find(c, key); i >= 0 {
		if rec := t.writes[i].rec; rec != nil {
			return rec.value(), nil
		}
		return nil, store.ErrNotFound
	}
	rec, err := t.version(c, key)
	if err != nil {
		return nil, err
	}
	if rec == nil {
		t.seen = max(t.seen, c.deleted[key])
		return nil, store.ErrNotFound
	}
	t.seen = max(t.seen, rec.seq)
	return rec.value(), nil
}

func (h *handle) Put(name store.Collection, key string, value []byte, entries ...store.Entry) error {
	if err := h.mayWrite(); err != nil {
		return err
	}
	t := h.t
	size, err := store.CheckPut(name, key, value, entries)
	if err != nil {
		return t.fail(err)
	}
	if err := t.grow(size); err != nil {
		return err
	}
	c, err := t.s.collection(name)
	if err != nil {
		return t.fail(err)
	}
	rec, err := c.newRecord(key, value, entries)
	if err != nil {
		return t.fail(err)
	}
	if err := t.mayReplace(c, key); err != nil {
		return t.fail(err)
	}
	t.set(write{c: c, key: rec.key(), rec: rec})
	return nil
}

func (h *handle) Delete(name store.Collection, key string) error {
	if err := h.mayWrite(); err != nil {
		return err
	}
	t := h.t
	if err := store.CheckKey(name, key); err != nil {
		return t.fail(err)
	}
	if err := t.grow(len(key)); err != nil {
		return err
	}
	c, err := t.s.collection(name)
	if err != nil {
		return t.fail(err)
	}
	if err := t.mayReplace(c, key); err != nil && !errors.Is(err, store.ErrUnreadable) {
		return t.fail(err)
	}
	t.set(write{c: c, key: key})
	return nil
}

func (h *handle) Scan(name store.Collection, index string, r store.Range) ([]store.Hit, error) {
	t := h.t
	if t == nil {
		return nil, errFinished
	}
	if err := store.CheckScan(name, index, r); err != nil {
		return nil, err
	}
	c := t.s.find(name)
	if c == nil {
		return nil, nil
	}
	ix := c.byName[index]
	if ix == nil {
		return nil, nil
	}
	hits, seen := c.scan(ix, r)
	t.seen = max(t.seen, seen)
	var last *store.Hit
	if len(hits) == r.Limit {
		last = &hits[len(hits)-1]
	}
	onDisk, err := t.s.scanDisk(c, ix, r, last)
	if err != nil {
		return nil, err
	}
	t.scanned(c, onDisk)
	return mergeHits(hits, onDisk, r.Limit), nil
}

// Size implements store.Tx. It is exact in an Update, whose answer then waits for every transaction so far. In a View it counts
// only what is durable, and nobody waits.
func (h *handle) Size(name store.Collection) (records int, bytes int64, err error) {
	t := h.t
	if t == nil {
		return 0, 0, errFinished
	}
	c := t.s.find(name)
	switch {
	case c == nil:
		return 0, 0, store.CheckName(name)
	case t.s.log == nil:
	case t.update:
		t.seen = t.s.log.Last()
	default:
		t.s.undurable.applyUpTo(t.s.log.Durable())
		return c.durable, c.durableBytes, nil
	}
	return c.count, c.bytes, nil
}

func (h *handle) Notify(topic string) {
	if h.mayWrite() == nil {
		h.t.topics.add(topic)
	}
}

func (h *handle) mayWrite() error {
	if h.t == nil {
		return errFinished
	}
	if !h.t.update {
		return store.ErrReadOnly
	}
	return nil
}

// tx is the running transaction. There is one per store, because it has the lock.
type tx struct {
	s      *Store
	now    time.Time
	update bool
	// seen is the highest sequence number of everything that the function read.
	seen   uint64
	writes []write
	// byKey finds writes once there are too many to search one by one.
	byKey  map[writeKey]int
	bytes  int
	topics topics
	// err makes the transaction fail even if its function ignores it.
	err error
	// loads has what was read from disk for this function. missed is what it lacked, and along what it may lack besides.
	loads         *loads
	missed, along []writeKey
	// known is the last key that was looked up: what the disk has of it is known.
	known writeKey
}

// write is a put, or a delete if it has no record.
type write struct {
	c   *collection
	key string
	rec *record
}

type writeKey struct {
	c   *collection
	key string
}

// reset prepares t for another function. The topics now belong to the caller that took them.
func (t *tx) reset(update bool, l *loads) {
	writes := t.writes[:0]
	clear(t.writes)
	if cap(writes) > manyWrites {
		writes = nil
	}
	if l != nil && l.generation != t.s.generation {
		l.generation, l.records = t.s.generation, nil
	}
	*t = tx{s: t.s, update: update, writes: writes, loads: l, missed: t.missed[:0], along: t.along[:0]}
}

// manyWrites is the number of writes from which a map is faster than a search.
const manyWrites = 16

func (t *tx) Now() time.Time {
	if t.now.IsZero() {
		t.now = t.s.opts.Clock()
	}
	return t.now
}

// mayReplace sees that the version on disk is known, since its entries have to go. It returns an error for a version that cannot
// be read.
func (t *tx) mayReplace(c *collection, key string) error {
	if t.s.state == nil || t.known == (writeKey{c, key}) || c.hides(key) || t.find(c, key) >= 0 {
		return nil
	}
	_, err := t.cold(c, key)
	return err
}

// fail makes the transaction fail even if its function ignores err.
func (t *tx) fail(err error) error {
	t.err = err
	return err
}

// grow accounts for n bytes of writes.
func (t *tx) grow(n int) error {
	t.bytes += n
	if err := store.CheckTx(t.bytes); err != nil {
		return t.fail(err)
	}
	return nil
}

// find returns the index of the transaction's own write of key, or -1.
func (t *tx) find(c *collection, key string) int {
	if t.byKey != nil {
		if i, ok := t.byKey[writeKey{c, key}]; ok {
			return i
		}
		return -1
	}
	for i := range t.writes {
		if w := &t.writes[i]; w.c == c && w.key == key {
			return i
		}
	}
	return -1
}

func (t *tx) set(w write) {
	if i := t.find(w.c, w.key); i >= 0 {
		t.writes[i] = w
		return
	}
	t.writes = append(t.writes, w)
	switch {
	case t.byKey != nil:
		t.byKey[writeKey{w.c, w.key}] = len(t.writes) - 1
	case len(t.writes) == manyWrites:
		t.byKey = make(map[writeKey]int, 2*manyWrites)
		for i, w := range t.writes {
			t.byKey[writeKey{w.c, w.key}] = i
		}
	}
}

// encode appends the write set as a log record.
func (t *tx) encode(dst []byte) []byte {
	dst = appendHeader(dst, t.Now())
	for i := range t.writes {
		if w := &t.writes[i]; w.rec != nil {
			dst = appendPut(dst, w.c.name, w.c.indexes, w.rec)
		} else {
			dst = appendDelete(dst, w.c, w.key)
		}
	}
	return dst
}
