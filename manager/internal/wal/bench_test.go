package wal_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/wal"
)

// callers runs op from n goroutines until b.N operations are done and reports
// the rate.
func callers(b *testing.B, n int, op func(worker, i int) error) {
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for w := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := w; i < b.N; i += n {
				if err := op(w, i); err != nil {
					b.Error(err)
					return
				}
			}
		}()
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}

// BenchmarkWALAppend is the bare group commit of records as big as those of
// the engine's BenchmarkMemUpdate, which is measured against it.
func BenchmarkWALAppend(b *testing.B) {
	for _, n := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", n), func(b *testing.B) {
			ctx := context.Background()
			l, err := wal.Open(ctx, b.TempDir(), wal.Options{})
			if err != nil {
				b.Fatal(err)
			}
			body := make([]byte, 380)
			callers(b, n, func(int, int) error {
				seq, err := l.Append(body)
				if err != nil {
					return err
				}
				return l.WaitDurable(ctx, seq)
			})
			st := l.Stats()
			b.ReportMetric(float64(st.Records)/float64(max(st.Batches, 1)), "records/sync")
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
