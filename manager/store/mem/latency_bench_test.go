package mem

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/store"
)

// BenchmarkSnapshotLatency reports the latency of durable updates by 32
// callers to a store of 300,000 records, while nothing else happens and while
// snapshots are written one after the other. The two are to be compared within
// one run.
func BenchmarkSnapshotLatency(b *testing.B) {
	const records, workers = 300000, 32
	ctx := context.Background()
	s, err := Open(ctx, b.TempDir(), Options{SnapshotBytes: -1})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	value := make([]byte, 256)
	for i := 0; i < records; i += 500 {
		err := s.Update(ctx, func(tx store.Tx) error {
			for j := i; j < i+500; j++ {
				if err := tx.Put("ledger", benchKey(j), value, store.Entry{Index: "expiry", SortKey: fmt.Sprintf("%016x", j)}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	for _, mode := range []string{"idle", "running"} {
		b.Run("snapshot="+mode, func(b *testing.B) {
			background, stop := context.WithCancel(ctx)
			var wg sync.WaitGroup
			snapshots := 0
			if mode == "running" {
				wg.Go(func() {
					for background.Err() == nil {
						if err := s.Snapshot(background); err == nil {
							snapshots++
						}
					}
				})
			}
			took := make([]time.Duration, b.N)
			callers(b, workers, func(i int) error {
				start := time.Now()
				err := benchPut(s, i%records, value)
				took[i] = time.Since(start)
				return err
			})
			stop()
			wg.Wait()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
			b.ReportMetric(float64(snapshots), "snapshots")
		})
	}
}
