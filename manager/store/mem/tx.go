package mem

import (
	"time"

	"github.com/oncegate/oncegate/manager/store"
)

// tx is one run of a transaction's function, under the store's lock.
type tx struct {
	s      *Store
	now    time.Time
	update bool
	done   bool
	// seen is the highest sequence number among what the function looked at.
	seen   uint64
	writes []write
	few    [4]write
	// byKey finds writes once there are too many to look through.
	byKey  map[writeKey]int
	bytes  int
	topics []string
	// err makes the transaction fail even if its function ignores it.
	err error
}

// write is a put, or without a record a delete.
type write struct {
	c   *collection
	key string
	rec *record
}

type writeKey struct {
	c   *collection
	key string
}

// manyWrites is where a map beats looking through the writes.
const manyWrites = 16

func (t *tx) Now() time.Time {
	if t.now.IsZero() {
		t.now = t.s.opts.Clock()
	}
	return t.now
}

func (t *tx) Get(name store.Collection, key string) ([]byte, error) {
	if t.done {
		return nil, errFinished
	}
	if err := store.CheckKey(name, key); err != nil {
		return nil, err
	}
	c := t.s.collections[name]
	if c == nil {
		return nil, store.ErrNotFound
	}
	if i := t.find(c, key); i >= 0 {
		if rec := t.writes[i].rec; rec != nil {
			return rec.value, nil
		}
		return nil, store.ErrNotFound
	}
	rec := c.records[key]
	if rec == nil {
		t.seen = max(t.seen, c.deleted[key])
		return nil, store.ErrNotFound
	}
	t.seen = max(t.seen, rec.seq)
	return rec.value, nil
}

func (t *tx) Put(name store.Collection, key string, value []byte, entries ...store.Entry) error {
	if err := t.mayWrite(); err != nil {
		return err
	}
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
	rec, err := t.s.newRecord(c, key, value, entries)
	if err != nil {
		return t.fail(err)
	}
	t.set(write{c, rec.key, rec})
	return nil
}

func (t *tx) Delete(name store.Collection, key string) error {
	if err := t.mayWrite(); err != nil {
		return err
	}
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
	t.set(write{c: c, key: key})
	return nil
}

func (t *tx) Scan(name store.Collection, indexName string, r store.Range) ([]store.Hit, error) {
	if t.done {
		return nil, errFinished
	}
	if err := store.CheckScan(name, indexName, r); err != nil {
		return nil, err
	}
	c := t.s.collections[name]
	if c == nil {
		return nil, nil
	}
	ix := c.indexes[indexName]
	if ix == nil {
		return nil, nil
	}
	hits, seen := ix.scan(r)
	t.seen = max(t.seen, seen)
	return hits, nil
}

func (t *tx) Notify(topic string) {
	if t.done || !t.update {
		return
	}
	for _, other := range t.topics {
		if other == topic {
			return
		}
	}
	t.topics = append(t.topics, topic)
}

func (t *tx) mayWrite() error {
	if t.done {
		return errFinished
	}
	if !t.update {
		return store.ErrReadOnly
	}
	return nil
}

// fail makes sure that the transaction fails, even if its function ignores err.
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

// find returns the place of the transaction's own write of key, or -1.
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
	if t.writes == nil {
		t.writes = t.few[:0]
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
			dst = appendPut(dst, w.c.name, w.rec)
		} else {
			dst = appendDelete(dst, w.c.name, w.key)
		}
	}
	return dst
}
