package etcd

import (
	"errors"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// TestUnreached: a call that fails before it sends any writes says that nothing was changed, and one that sent writes
// does not.
func TestUnreached(t *testing.T) {
	t.Parallel()
	srv := servers.Etcd(t)
	s := open(t, Options{DSN: srv.URL, Patience: 600 * time.Millisecond})
	eventually(t, "a write", func() bool { return storetest.Put(t.Context(), s, "x", "1") == nil })
	srv.Kill()
	read := func(tx store.Tx) error {
		_, err := tx.Get("things", "y")
		return err
	}
	for name, c := range map[string]struct {
		call func() error
		sent bool
	}{
		"View":                 {call: func() error { return s.View(t.Context(), read) }},
		"Update that reads":    {call: func() error { return s.Update(t.Context(), read) }},
		"Len":                  {call: func() error { _, err := s.Len(t.Context(), "things", ""); return err }},
		"Update that writes":   {call: func() error { return storetest.Put(t.Context(), s, "new", "1") }, sent: true},
		"Update that forgives": {call: func() error { return s.Update(t.Context(), func(tx store.Tx) error { _ = read(tx); return nil }) }},
		"Update that deletes": {call: func() error {
			return s.Update(t.Context(), func(tx store.Tx) error { return tx.Delete("things", "x") })
		}},
	} {
		if err := c.call(); !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrUnreached) == c.sent {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
