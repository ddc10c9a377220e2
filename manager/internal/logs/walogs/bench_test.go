package walogs

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/logs"
)

// BenchmarkAppend appends entries of 256 bytes with 64 callers, each durable before it is
// acknowledged, one by one and in batches of 16.
func BenchmarkAppend(b *testing.B) {
	for _, batch := range []int{1, 16} {
		b.Run(fmt.Sprint("batch=", batch), func(b *testing.B) {
			e, err := Open(b.Context(), b.TempDir(), Options{Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			if _, _, err := e.Put(b.Context(), "log", logs.Change{}); err != nil {
				b.Fatal(err)
			}
			var n atomic.Int64
			payload := make([]byte, 256)
			b.SetParallelism(32) // times two processors
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				items := make([]logs.Item, batch)
				for pb.Next() {
					for i := range items {
						items[i] = logs.Item{ID: fmt.Sprint("id-", n.Add(1)), Payload: payload}
					}
					if _, err := e.Append(b.Context(), "log", items, false); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "entries/s")
		})
	}
}
