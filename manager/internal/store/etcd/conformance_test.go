package etcd

import (
	"context"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store/storetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	dsn := fresh(t)
	storetest.RunServer(t, func(ctx context.Context, name string) (*Store, error) {
		return Open(ctx, Options{DSN: dsn + "/" + name, Patience: testPatience})
	})
}
