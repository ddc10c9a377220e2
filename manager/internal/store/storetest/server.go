package storetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// RunServer runs the suite against an engine on a server, where each test has data under a name of its own.
func RunServer[S store.Store](t *testing.T, open func(ctx context.Context, name string) (S, error)) {
	t.Helper()
	var n atomic.Int64
	Run(t, func(*testing.T) Opener {
		name := fmt.Sprintf("suite_%d", n.Add(1))
		return func(t *testing.T) store.Store {
			s, err := open(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
	})
}

// Put writes a record of the collection things, with an entry in its index byname.
func Put(ctx context.Context, s store.Store, key, value string) error {
	return s.Update(ctx, func(tx store.Tx) error {
		return tx.Put("things", key, []byte(value), store.Entry{Index: "byname", SortKey: key})
	})
}

// Get reads a record that Put wrote.
func Get(ctx context.Context, s store.Store, key string) (string, error) {
	var v string
	err := s.View(ctx, func(tx store.Tx) error {
		b, err := tx.Get("things", key)
		v = string(b)
		return err
	})
	return v, err
}
