package mem

import (
	"context"
	"fmt"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// BenchmarkRecovery opens a store of 200,000 records with values of 256 bytes
// and two index entries, from its log or from its state.
func BenchmarkRecovery(b *testing.B) {
	const n = 200000
	for _, from := range []string{"log", "state"} {
		b.Run("from="+from, func(b *testing.B) {
			dir := b.TempDir()
			s, err := Open(context.Background(), dir, Options{LayerBytes: 1 << 30, FlushBytes: 1 << 40})
			if err != nil {
				b.Fatal(err)
			}
			value := make([]byte, 256)
			for i := 0; i < n; i += 100 {
				err := s.Update(context.Background(), func(tx store.Tx) error {
					for j := i; j < i+100; j++ {
						sort := fmt.Sprintf("%016x", j)
						err := tx.Put("ledger", benchKey(j), value, store.Entry{Index: "expiry", SortKey: sort}, store.Entry{Index: "used", SortKey: sort})
						if err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			if from == "state" {
				if err := s.Flush(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			for range b.N {
				s, err := Open(context.Background(), dir, Options{LayerBytes: 1 << 30, FlushBytes: 1 << 40})
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)*1e6/n, "s/million")
		})
	}
}
