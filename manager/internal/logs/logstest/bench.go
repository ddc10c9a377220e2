package logstest

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/logs"
)

// BenchmarkAppend appends entries of 256 bytes with 64 callers on two processors, in batches of a size. Each is durable
// before it is acknowledged. It reports entries/s.
func BenchmarkAppend(b *testing.B, e logs.Engine, batch int) {
	if _, _, err := e.Put(b.Context(), LogName, logs.Change{}); err != nil {
		b.Fatal(err)
	}
	var number atomic.Int64
	payload := make([]byte, 256)
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		items := make([]logs.Item, batch)
		for pb.Next() {
			for i := range items {
				items[i] = logs.Item{ID: fmt.Sprint("id-", number.Add(1)), Payload: payload}
			}
			if _, err := e.Append(b.Context(), LogName, items, false); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "entries/s")
}
