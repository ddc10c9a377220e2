package ledger

import (
	"context"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// BenchmarkStart is what a manager does before it can serve: it recovers the
// engine and opens the ledger. 200,000 entries were reserved and
// committed, each with a result of 256 bytes, from the log and from the state.
func BenchmarkStart(b *testing.B) {
	const n = 200_000
	result := answer(201, string(make([]byte, 256)))
	for _, from := range []string{"log", "state"} {
		b.Run("from="+from, func(b *testing.B) {
			dir := b.TempDir()
			open := func() (*mem.Store, *Ledger) {
				st, err := mem.Open(context.Background(), dir, mem.Options{LayerBytes: 1 << 30, FlushBytes: 1 << 40})
				if err != nil {
					b.Fatal(err)
				}
				l, err := New(st, Options{MaxEntries: 2 * n, MaxBytes: 1 << 40, ScopeShare: 0.999})
				if err != nil {
					b.Fatal(err)
				}
				return st, l
			}
			st, l := open()
			fillDurably(b, l, n, result)
			if from == "state" {
				if err := st.Flush(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
			if err := st.Close(); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			for range b.N {
				st, l := open()
				b.StopTimer()
				if s := stats(b, l); s.Committed != n {
					b.Fatalf("%d entries, want %d", s.Committed, n)
				}
				if err := st.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)*1e6/n, "s/million")
		})
	}
}

// fillDurably reserves and commits n entries, by many callers at once.
func fillDurably(b *testing.B, l *Ledger, n int, result []byte) {
	b.Helper()
	errs := make(chan error)
	for c := range benchCallers {
		go func() {
			for i := c; i < n; i += benchCallers {
				if err := benchReserve(l, i); err != nil {
					errs <- err
					return
				}
				err := l.Commit(context.Background(), &FinishRequest{
					Key: benchKey(i), Scope: benchScope, Token: benchToken, TTL: 24 * time.Hour, Result: result,
				})
				if err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range benchCallers {
		if err := <-errs; err != nil {
			b.Fatal(err)
		}
	}
}
