package sealed

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Store is an engine whose values are sealed. Its other methods are the engine's.
type Store struct {
	store.Store
	opts   Options
	places map[store.Collection]*Place
	calls  sync.Pool

	listed    atomic.Pointer[[]string] // ids of the record, as this manager saw it last; "" for plain values
	settled   atomic.Bool              // no value of an earlier manager is left that the record does not list
	forgot    time.Time                // when the record last forgot a key, or this manager started; only passes use it
	lacked    sync.Map                 // ids of the record that this manager lacks, as keys
	failures  atomic.Uint64
	rewritten atomic.Uint64
}

var _ store.Store = (*Store)(nil)

func newStore(st store.Store, opts Options) *Store {
	s := &Store{Store: st, opts: opts, places: make(map[store.Collection]*Place), forgot: time.Now()}
	for i := range opts.Places {
		s.places[opts.Places[i].Collection] = &opts.Places[i]
	}
	s.settled.Store(!st.Capabilities().Shared) // one manager at a time always lists its key
	s.calls.New = func() any {
		c := &call{s: s}
		c.inTx = c.run
		return c
	}
	return s
}

// Failures counts values that were sealed and did not open.
func (s *Store) Failures() uint64 { return s.failures.Load() }

// Rewritten counts values that Run stored again under the present key.
func (s *Store) Rewritten() uint64 { return s.rewritten.Load() }

// Listed returns the ids of the keys that values may be sealed under, "" for plain values, as of a minute ago at most.
func (s *Store) Listed() []string { return *s.listed.Load() }

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.do(ctx, fn, s.Store.Update)
}

// View implements store.Store.
func (s *Store) View(ctx context.Context, fn func(store.Tx) error) error {
	return s.do(ctx, fn, s.Store.View)
}

// keepValues is the largest buffer that is kept for reuse.
const keepValues = 64 << 10

func (s *Store) do(ctx context.Context, fn func(store.Tx) error, transact func(context.Context, func(store.Tx) error) error) error {
	c := s.calls.Get().(*call)
	c.fn = fn
	err := transact(ctx, c.inTx)
	c.fn = nil
	if cap(c.values) > keepValues {
		c.values = nil
	}
	s.calls.Put(c)
	return err
}

// call is a transaction's function, with the buffer for what it puts. An engine may read that until the call is over.
type call struct {
	s      *Store
	fn     func(store.Tx) error
	inTx   func(store.Tx) error // the method run, bound once
	values []byte
}

func (c *call) run(inner store.Tx) error {
	c.values = c.values[:0]
	return c.fn(&tx{Tx: inner, c: c})
}

// tx seals and opens. Its Size counts the sealed values.
type tx struct {
	store.Tx
	c *call
}

// Get implements store.Tx.
func (t *tx) Get(c store.Collection, key string) ([]byte, error) {
	value, err := t.Tx.Get(c, key)
	if err != nil || t.c.s.places[c] == nil {
		return value, err
	}
	return t.c.s.open(t.Tx, c, key, value)
}

// Put implements store.Tx.
func (t *tx) Put(c store.Collection, key string, value []byte, entries ...store.Entry) error {
	place, ok := t.c.s.places[c]
	if !ok || t.c.s.opts.DecryptOnly {
		return t.Tx.Put(c, key, value, entries...)
	}
	switch {
	case place.Unindexed:
		entries, _ = place.entries(store.Hit{}, nil, t.c.s.opts.Ring.Current())
	case slices.Contains(t.c.s.Listed(), ""):
		if err := t.sealMore(place, key, value); err != nil {
			return err
		}
	}
	start := len(t.c.values)
	t.c.values = t.c.s.opts.Ring.Seal(t.c.values, string(c), key, value)
	return t.Tx.Put(c, key, t.c.values[start:len(t.c.values):len(t.c.values)], entries...)
}

// sealMore seals the plain records that only a record of the place leads to. A pass finds them by that record's index entries,
// and may miss them when the entries change while it runs.
func (t *tx) sealMore(place *Place, key string, value []byte) error {
	_, more, err := place.Describe(store.Hit{Key: key}, value)
	if err != nil {
		return nil // a pass reports it
	}
	for _, id := range more {
		plain, err := t.Tx.Get(id.Collection, id.Key)
		if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrUnreadable) || crypt.IsSealed(plain) {
			continue
		}
		if err == nil {
			err = t.Put(id.Collection, id.Key, plain)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// open returns the plain value. Its error is a *store.UnreadableError, or the store's.
func (s *Store) open(tx store.Tx, c store.Collection, key string, value []byte) ([]byte, error) {
	plain, err := OpenValue(s.opts.Ring, c, key, value)
	var u *store.UnreadableError
	if !errors.As(err, &u) {
		return plain, err
	}
	s.failures.Add(1)
	if id, ok := crypt.KeyOf(value); ok && !s.has(id) {
		r, err := get(tx)
		if err != nil && !errors.Is(err, store.ErrUnreadable) {
			return nil, err
		}
		if u.Elsewhere = err == nil && r != nil && r.Keys[id] != nil; u.Elsewhere {
			s.lack(id)
		}
	}
	return nil, u
}

// has reports whether this manager has a key.
func (s *Store) has(id string) bool { return s.opts.Ring != nil && s.opts.Ring.Has(id) }

// lack reports a key to Options.Lacks once.
func (s *Store) lack(id string) {
	if _, known := s.lacked.LoadOrStore(id, true); !known && s.opts.Lacks != nil {
		s.opts.Lacks(id)
	}
}

// OpenValue returns the plain value of a record; ring may be nil. Its error is a *store.UnreadableError.
func OpenValue(ring *crypt.Keyring, c store.Collection, key string, value []byte) ([]byte, error) {
	if !crypt.IsSealed(value) {
		return value, nil
	}
	if ring == nil {
		id, _ := crypt.KeyOf(value)
		return nil, &store.UnreadableError{Collection: c, Key: key, Reason: (&crypt.NoKeyError{ID: id}).Error()}
	}
	plain, err := ring.Open(string(c), key, value)
	if err != nil {
		return nil, &store.UnreadableError{Collection: c, Key: key, Reason: err.Error()}
	}
	return plain, nil
}
