package storelogs

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/logs/logstest"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/postgres"
	"github.com/oncegate/oncegate/manager/internal/store/redis"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
)

// BenchmarkAppend appends entries of 256 bytes with 64 callers, each durable before it is
// acknowledged, one by one and in batches of 16.
func BenchmarkAppend(b *testing.B) {
	for name, open := range map[string]func() (store.Store, error){
		"sqlite": func() (store.Store, error) {
			return sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "db"), sqlite.Options{})
		},
		"postgres": func() (store.Store, error) {
			return postgres.Open(b.Context(), postgres.Options{DSN: postgresServer(b).URL, Schema: fmt.Sprint("bench_", n.Add(1))})
		},
		"redis": func() (store.Store, error) {
			return redis.Open(b.Context(), redis.Options{URL: redisServer(b).URL, Namespace: fmt.Sprint("bench_", n.Add(1))})
		},
	} {
		for _, batch := range []int{1, 16} {
			b.Run(fmt.Sprint(name, "/batch=", batch), func(b *testing.B) {
				st, err := open()
				if err != nil {
					b.Fatal(err)
				}
				defer st.Close()
				e, err := Open(b.Context(), st, Options{Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					b.Fatal(err)
				}
				defer e.Close()
				logstest.BenchmarkAppend(b, e, batch)
			})
		}
	}
}
