// Package overlay is the part of a transaction that is the same on every engine
// that keeps writes back until commit: what was read, what will be written, the
// checks and the limits.
package overlay

import (
	"github.com/oncegate/oncegate/manager/store"
)

// Record is what a transaction knows of one record: what the engine had when it
// was first looked at, and what the transaction wants it to be.
type Record struct {
	Collection store.Collection
	Key        string

	// Filled by Tx.Load.
	Stored        bool
	StoredValue   []byte
	StoredEntries []store.Entry

	// Written: the transaction put (Present) or deleted the record.
	Written bool
	Present bool
	Value   []byte // never nil when Present
	Entries []store.Entry
}

// Added returns the entries that a commit has to add.
func (r *Record) Added() []store.Entry { return without(r.Entries, r.StoredEntries) }

// Removed returns the entries that a commit has to remove.
func (r *Record) Removed() []store.Entry {
	if !r.Stored {
		return nil
	}
	return without(r.StoredEntries, r.Entries)
}

func without(a, b []store.Entry) []store.Entry {
	var out []store.Entry
outer:
	for _, e := range a {
		for _, o := range b {
			if o == e {
				continue outer
			}
		}
		out = append(out, e)
	}
	return out
}

type recordID struct {
	c   store.Collection
	key string
}

// Tx implements Get, Put, Delete and Notify of store.Tx. An engine embeds it,
// sets Load, and commits Writes and Topics.
type Tx struct {
	// ReadOnly refuses writes and drops notifications.
	ReadOnly bool
	// Load looks at a record for the first time and fills its Stored fields.
	// An error is final for the transaction.
	Load func(*Record) error

	// Err is the first engine error or limit met. It fails the transaction
	// even if the function ignores what Get or Put returned.
	Err error

	writes  []*Record
	topics  []string
	records map[recordID]*Record
	bytes   int
}

// Fail notes the first error and returns err.
func (t *Tx) Fail(err error) error {
	if t.Err == nil {
		t.Err = err
	}
	return err
}

// Reads is the number of different records the transaction has looked at.
func (t *Tx) Reads() int { return len(t.records) }

// Topics are the topics to notify, in order.
func (t *Tx) Topics() []string { return t.topics }

// Writes returns the records that a commit changes, in the order of their first
// write; a record that neither was nor will be there is left out.
func (t *Tx) Writes() []*Record {
	out := t.writes[:0:0]
	for _, r := range t.writes {
		if r.Stored || r.Present {
			out = append(out, r)
		}
	}
	return out
}

func (t *Tx) record(c store.Collection, key string) (*Record, error) {
	if t.Err != nil {
		return nil, t.Err
	}
	id := recordID{c, key}
	if r := t.records[id]; r != nil {
		return r, nil
	}
	r := &Record{Collection: c, Key: key}
	if err := t.Load(r); err != nil {
		return nil, t.Fail(err)
	}
	t.keep(r)
	return r, nil
}

// Known reports whether the transaction has looked at the record.
func (t *Tx) Known(c store.Collection, key string) bool {
	return t.records[recordID{c, key}] != nil
}

// Preload hands over a record that the engine has read, and protects like any
// other, before the function asks for it.
func (t *Tx) Preload(r *Record) {
	if t.Known(r.Collection, r.Key) {
		return
	}
	t.keep(r)
}

func (t *Tx) keep(r *Record) {
	if t.records == nil {
		t.records = make(map[recordID]*Record, 4)
	}
	t.records[recordID{r.Collection, r.Key}] = r
}

// Get implements store.Tx.
func (t *Tx) Get(c store.Collection, key string) ([]byte, error) {
	if err := store.CheckKey(c, key); err != nil {
		return nil, err
	}
	r, err := t.record(c, key)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Written && r.Present:
		return r.Value, nil
	case r.Written || !r.Stored:
		return nil, store.ErrNotFound
	}
	return r.StoredValue, nil
}

// Put implements store.Tx.
func (t *Tx) Put(c store.Collection, key string, value []byte, entries ...store.Entry) error {
	if t.ReadOnly {
		return store.ErrReadOnly
	}
	n, err := store.CheckPut(c, key, value, entries)
	if err != nil {
		return err
	}
	t.bytes += n
	if err := store.CheckTx(t.bytes); err != nil {
		return t.Fail(err)
	}
	r, err := t.write(c, key)
	if err != nil {
		return err
	}
	if value == nil {
		value = []byte{} // SQL's NULL is not an empty value
	}
	r.Present, r.Value = true, value
	r.Entries = append([]store.Entry(nil), entries...)
	return nil
}

// Delete implements store.Tx.
func (t *Tx) Delete(c store.Collection, key string) error {
	if t.ReadOnly {
		return store.ErrReadOnly
	}
	if err := store.CheckKey(c, key); err != nil {
		return err
	}
	r, err := t.write(c, key)
	if err != nil {
		return err
	}
	r.Present, r.Value, r.Entries = false, nil, nil
	return nil
}

func (t *Tx) write(c store.Collection, key string) (*Record, error) {
	r, err := t.record(c, key)
	if err != nil {
		return nil, err
	}
	if !r.Written {
		r.Written = true
		t.writes = append(t.writes, r)
	}
	return r, nil
}

// Notify implements store.Tx.
func (t *Tx) Notify(topic string) {
	if !t.ReadOnly {
		t.topics = append(t.topics, topic)
	}
}
