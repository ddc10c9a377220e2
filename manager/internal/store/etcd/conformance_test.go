package etcd

import (
	"context"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

func TestConformance(t *testing.T) {
	srv := servers.Etcd(t)
	storetest.RunServer(t, func(ctx context.Context, name string) (*Store, error) {
		return Open(ctx, Options{DSN: srv.URL + "?prefix=/" + name})
	})
}
