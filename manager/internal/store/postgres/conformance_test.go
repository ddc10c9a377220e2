package postgres

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

func TestConformance(t *testing.T) {
	srv := servers.Postgres(t)
	var n atomic.Int64
	storetest.Run(t, func(*testing.T) storetest.Opener {
		schema := fmt.Sprintf("suite_%d", n.Add(1))
		return func(t *testing.T) store.Store {
			s, err := Open(t.Context(), Options{DSN: srv.URL, Schema: schema})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
	})
}
