package redis

import (
	"context"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	url := database(t)
	storetest.RunServer(t, func(ctx context.Context, name string) (store.Store, error) {
		return Open(ctx, Options{URL: url, Namespace: name})
	})
}
