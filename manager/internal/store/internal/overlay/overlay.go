// Package overlay implements what transactions have in common on every engine that buffers writes until the commit: the
// records that were read and written, the checks and the limits.
package overlay

import (
	"errors"
	"maps"
	"slices"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Record is a transaction's view of one record: what the engine had when the record was loaded, and what the
// transaction wants to write.
type Record struct {
	Collection store.Collection
	Key        string

	// Filled by Tx.Load.
	Stored        bool
	StoredValue   []byte
	StoredEntries []store.Entry
	// Unreadable is the reason that the engine cannot read its record, empty when it can.
	Unreadable string
	// Version identifies the version that the engine read.
	Version int64

	// Assumed is true when the record was not loaded, and is written as if the engine did not have it. See Tx.Assume.
	Assumed bool

	// Written is true when the transaction put (Present) or deleted the record.
	Written bool
	Present bool
	Value   []byte // never nil when Present
	Entries []store.Entry
}

// readable returns an error for a record that the engine cannot read.
func (r *Record) readable() error {
	if r.Unreadable == "" {
		return nil
	}
	return &store.UnreadableError{Collection: r.Collection, Key: r.Key, Reason: r.Unreadable}
}

// Added returns the entries that the commit has to add.
func (r *Record) Added() []store.Entry { return without(r.Entries, r.StoredEntries) }

// Removed returns the entries that the commit has to remove.
func (r *Record) Removed() []store.Entry {
	if !r.Stored {
		return nil
	}
	return without(r.StoredEntries, r.Entries)
}

func without(a, b []store.Entry) []store.Entry {
	var out []store.Entry
	for i, e := range a {
		if slices.Contains(b, e) {
			continue
		}
		if out == nil {
			out = make([]store.Entry, 0, len(a)-i)
		}
		out = append(out, e)
	}
	return out
}

// Tx implements store.Tx except for Now, Wall and Scan. An engine embeds it, sets Load, and commits Writes and Topics.
type Tx struct {
	// ReadOnly rejects writes and drops notifications.
	ReadOnly bool
	// Load reads a record for the first time and fills its Stored fields. An error is final for the transaction.
	Load func(*Record) error
	// LoadMany is Load for several records at a time, which Assume needs. Where it is nil, Prefetch does nothing.
	LoadMany func([]*Record) error
	// FindEntries fills StoredEntries of a record that the engine cannot read and that is about to be deleted. It is
	// nil when the engine cannot find them.
	FindEntries func(*Record) error
	// Assume lets a Put of a record that was not loaded assume that it is absent. That saves a read for records with
	// new keys. The engine must check the assumption at the commit and, if it was wrong, load the record or run the
	// function again.
	Assume bool

	// Err is the first engine error or exceeded limit. It fails the transaction even if the function ignores the error
	// that Get or Put returned.
	Err error

	writes  []*Record
	topics  []string
	records map[store.ID]*Record
	assumed int // records that are assumed, not loaded
	bytes   int
}

// Fail stores the first error in Err and returns err.
func (t *Tx) Fail(err error) error {
	if t.Err == nil {
		t.Err = err
	}
	return err
}

// Reads is the number of different records that the transaction has loaded.
func (t *Tx) Reads() int { return len(t.records) - t.assumed }

// Records returns, in no order, every record that the transaction has loaded or writes.
func (t *Tx) Records() []*Record {
	return slices.AppendSeq(make([]*Record, 0, len(t.records)), maps.Values(t.records))
}

// Topics returns the topics to notify, in order.
func (t *Tx) Topics() []string { return t.topics }

// Writes returns the records that a commit changes, in the order of their first write. A record that was absent and
// stays absent is left out.
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
	id := store.ID{Collection: c, Key: key}
	if r := t.records[id]; r != nil {
		return r, nil
	}
	r := &Record{Collection: c, Key: key}
	if err := t.Load(r); err != nil {
		return nil, t.Fail(err)
	}
	t.track(r)
	return r, nil
}

// ensureLoaded loads an assumed record.
func (t *Tx) ensureLoaded(r *Record) error {
	if !r.Assumed {
		return nil
	}
	if err := t.Load(r); err != nil {
		return t.Fail(err)
	}
	r.Assumed = false
	t.assumed--
	return nil
}

// Loaded reports whether the transaction has loaded the record.
func (t *Tx) Loaded(c store.Collection, key string) bool {
	r := t.records[store.ID{Collection: c, Key: key}]
	return r != nil && !r.Assumed
}

// Preload adds a record that the engine has read, before the function asks for it. The engine protects it like any
// other record that was read.
func (t *Tx) Preload(records ...*Record) {
	t.grow(len(records))
	for _, r := range records {
		t.preload(r)
	}
}

func (t *Tx) preload(r *Record) {
	have := t.records[store.ID{Collection: r.Collection, Key: r.Key}]
	switch {
	case have == nil:
		t.track(r)
	case have.Assumed:
		have.Stored, have.StoredValue, have.StoredEntries, have.Version = r.Stored, r.StoredValue, r.StoredEntries, r.Version
		have.Unreadable = r.Unreadable
		have.Assumed = false
		t.assumed--
		if err := have.readable(); err != nil {
			_ = t.Fail(err) // it was put
		}
	}
}

// Assumed returns the records that were written without being loaded.
func (t *Tx) Assumed() []*Record {
	if t.assumed == 0 {
		return nil
	}
	var out []*Record
	for _, r := range t.writes {
		if r.Assumed {
			out = append(out, r)
		}
	}
	return out
}

// grow makes room for n records.
func (t *Tx) grow(n int) {
	if t.records == nil {
		t.records = make(map[store.ID]*Record, n)
	}
}

func (t *Tx) track(r *Record) {
	t.grow(4)
	t.records[store.ID{Collection: r.Collection, Key: r.Key}] = r
}

// LoadAssumed loads together the records that were written without being loaded.
func (t *Tx) LoadAssumed() error {
	assumed := t.Assumed()
	if len(assumed) == 0 {
		return nil
	}
	if err := t.LoadMany(assumed); err != nil {
		return t.Fail(err)
	}
	for _, r := range assumed {
		r.Assumed = false
	}
	t.assumed = 0
	for _, r := range assumed {
		if err := r.readable(); err != nil {
			return t.Fail(err)
		}
	}
	return nil
}

// Prefetch implements store.Tx.
func (t *Tx) Prefetch(ids []store.ID) error {
	if t.Err != nil || t.LoadMany == nil {
		return t.Err
	}
	records, err := t.Unread(ids)
	if err != nil || len(records) == 0 {
		return err
	}
	if err := t.LoadMany(records); err != nil {
		return t.Fail(err)
	}
	t.Preload(records...)
	return nil
}

// PrefetchNew implements store.Tx.
func (t *Tx) PrefetchNew(ids []store.ID) error { return t.Prefetch(ids) }

// Unread returns those of the records ids that the transaction has neither loaded nor written, to be loaded.
func (t *Tx) Unread(ids []store.ID) ([]*Record, error) {
	records := make([]*Record, 0, len(ids))
	asked := make(map[store.ID]struct{}, len(ids))
	for _, id := range ids {
		if err := store.CheckKey(id.Collection, id.Key); err != nil {
			return nil, err
		}
		if _, twice := asked[id]; twice || t.records[id] != nil {
			continue
		}
		asked[id] = struct{}{}
		records = append(records, &Record{Collection: id.Collection, Key: id.Key})
	}
	return records, nil
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
	return r.StoredValue, r.readable()
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
	r, err := t.writable(c, key)
	if err != nil {
		return err
	}
	if value == nil {
		value = []byte{} // a nil slice would become SQL's NULL, which is not an empty value
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
	r, err := t.record(c, key)
	if err == nil {
		err = t.ensureLoaded(r)
	}
	if err != nil {
		return err
	}
	if r.Unreadable != "" && !r.Written && t.FindEntries != nil {
		if err := t.FindEntries(r); err != nil {
			return t.Fail(err)
		}
	}
	t.written(r)
	r.Present, r.Value, r.Entries = false, nil, nil
	return nil
}

// writable returns the record for a Put.
func (t *Tx) writable(c store.Collection, key string) (*Record, error) {
	if t.Err != nil {
		return nil, t.Err
	}
	if t.Assume && t.records[store.ID{Collection: c, Key: key}] == nil {
		r := &Record{Collection: c, Key: key, Assumed: true}
		t.track(r)
		t.assumed++
		t.written(r)
		return r, nil
	}
	r, err := t.record(c, key)
	if err != nil {
		return nil, err
	}
	if err := r.readable(); err != nil && !r.Written { // an unreadable record must be deleted first
		return nil, t.Fail(err)
	}
	t.written(r)
	return r, nil
}

func (t *Tx) written(r *Record) {
	if !r.Written {
		r.Written = true
		t.writes = append(t.writes, r)
	}
}

// Size implements store.Tx for engines without store.Capabilities.Sizes.
func (t *Tx) Size(store.Collection) (records int, bytes int64, err error) {
	return 0, 0, errors.ErrUnsupported
}

// Notify implements store.Tx.
func (t *Tx) Notify(topic string) {
	if !t.ReadOnly {
		t.topics = append(t.topics, topic)
	}
}
