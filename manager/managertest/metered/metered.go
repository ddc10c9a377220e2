// Package metered counts what transactions read, for tests of what a call or a start costs.
package metered

import (
	"context"
	"sync/atomic"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Store is an engine whose reads are counted.
type Store struct {
	store.Store
	reads atomic.Int64
}

// New returns a Store around st. Closing it closes st.
func New(st store.Store) *Store { return &Store{Store: st} }

// Reads returns how much transactions have read since the last call: each Get and each Scan counts as one, and so does each
// hit.
func (s *Store) Reads() int { return int(s.reads.Swap(0)) }

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, s.counted(fn))
}

// View implements store.Store.
func (s *Store) View(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.View(ctx, s.counted(fn))
}

func (s *Store) counted(fn func(store.Tx) error) func(store.Tx) error {
	return func(stx store.Tx) error { return fn(&tx{stx, s}) }
}

type tx struct {
	store.Tx
	s *Store
}

// Get implements store.Tx.
func (t *tx) Get(c store.Collection, key string) ([]byte, error) {
	t.s.reads.Add(1)
	return t.Tx.Get(c, key)
}

// Scan implements store.Tx.
func (t *tx) Scan(c store.Collection, index string, r store.Range) ([]store.Hit, error) {
	hits, err := t.Tx.Scan(c, index, r)
	t.s.reads.Add(int64(1 + len(hits)))
	return hits, err
}
