package ledger

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// BenchmarkHalfLoad reserves and commits 25,000 new keys a second in batches of 16, about half of what two cores take, on the
// engine wal. It says how long half of the batches of reserves took at most, and 99 of 100: once while nothing is flushed, and
// once with flushes and compactions over a state of two million keys. Use -benchtime 750000x for 30 s of each.
func BenchmarkHalfLoad(all *testing.B) {
	for _, flushes := range []bool{false, true} {
		var l *Ledger // of all rounds
		keys := 0
		all.Run(fmt.Sprintf("flushes=%v", flushes), func(b *testing.B) {
			if l == nil {
				var o mem.Options
				if !flushes {
					o.FlushBytes, o.LayerBytes = 8<<30, 8<<30
				}
				var st *mem.Store
				st, l = openDay(all, all.TempDir(), o)
				all.Cleanup(func() { _ = st.Close() })
				if flushes {
					keys = 2_000_000
					dayPart(b, l, 0, keys, 4, 64, nil)
				}
				b.ResetTimer()
			}
			var handed atomic.Int64
			start := time.Now()
			took := dayPart(b, l, keys, b.N, 16, 16, func() {
				time.Sleep(time.Until(start.Add(time.Duration(handed.Add(16)) * time.Second / 25_000)))
			})
			keys += b.N
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}
