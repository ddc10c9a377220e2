package mem

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// BenchmarkSnapshotLatency reports the latency of durable updates by 32
// callers to a store of 300,000 records, in turns while nothing else happens and
// while snapshots are written one after the other. The collection of garbage
// takes more of it than either, so all turns of a kind together are looked at.
// How much there is to do does not depend on b.N.
func BenchmarkSnapshotLatency(b *testing.B) {
	const records, workers, turns, n = 300000, 32, 4, 500000
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
	turn := func(snapshots bool) []time.Duration {
		background, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		if snapshots {
			started := make(chan struct{})
			wg.Go(func() {
				close(started)
				for background.Err() == nil {
					if err := s.Snapshot(background); err != nil && background.Err() == nil {
						b.Error(err)
						return
					}
				}
			})
			<-started
		}
		took := make([]time.Duration, n)
		for w := range workers {
			wg.Go(func() {
				for i := w; i < n; i += workers {
					start := time.Now()
					if err := benchPut(s, i%records, value); err != nil {
						b.Error(err)
						return
					}
					took[i] = time.Since(start)
				}
				if w == 0 {
					stop()
				}
			})
		}
		wg.Wait()
		stop()
		return took
	}
	b.ResetTimer()
	var took [2][]time.Duration
	for range turns {
		took[0] = append(took[0], turn(false)...)
		took[1] = append(took[1], turn(true)...)
	}
	b.StopTimer()
	b.ReportMetric(0, "ns/op") // of both together, so of nothing
	var p99 [2]float64
	for i, kind := range []string{"idle", "snapshot"} {
		all := took[i]
		slices.Sort(all)
		p99[i] = float64(all[len(all)*99/100].Microseconds())
		b.ReportMetric(float64(all[len(all)/2].Microseconds()), kind+"-p50-us")
		b.ReportMetric(p99[i], kind+"-p99-us")
	}
	b.ReportMetric(100*(p99[1]/p99[0]-1), "%-more-p99")
}
