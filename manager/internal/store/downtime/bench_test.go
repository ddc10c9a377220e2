package downtime_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/downtime"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
)

// BenchmarkStart is what a start costs beyond opening the engine, with 100,000
// live reservations.
func BenchmarkStart(b *testing.B) {
	const n = 100_000
	for name, open := range map[string]func(dir string) (store.Store, error){
		"wal": func(dir string) (store.Store, error) { return mem.Open(b.Context(), dir, mem.Options{}) },
		"sqlite": func(dir string) (store.Store, error) {
			return sqlite.Open(b.Context(), filepath.Join(dir, "db"), sqlite.Options{})
		},
	} {
		b.Run(name, func(b *testing.B) {
			st, err := open(b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			defer st.Close()
			l, err := ledger.New(st, ledger.Options{MaxEntries: 2 * n, PendingTTL: time.Hour})
			if err != nil {
				b.Fatal(err)
			}
			fill(b, l, n)
			b.ResetTimer()
			for range b.N {
				got := 0
				s := downtime.New(st, downtime.Options{Leases: []store.Leases{ledger.Leases()}, OnExtended: func(r downtime.Report) {
					got = r.Extended["reservations"]
				}})
				if err := s.Start(b.Context()); err != nil || got != n {
					b.Fatal(got, err)
				}
			}
		})
	}
}

func fill(b *testing.B, l *ledger.Ledger, n int) {
	b.Helper()
	var next atomic.Int64
	errs := make(chan error)
	for range 256 {
		go func() {
			for {
				i := next.Add(1)
				if int(i) > n {
					errs <- nil
					return
				}
				r := &api.ReserveRequest{}
				r.Key, r.Token, r.Scope, r.Fingerprint = fmt.Sprint("key-", i), "0123456789abcdef0123456789abcdef", "example.com/v1/charges", "0123456789abcdef"
				if _, err := l.Reserve(context.Background(), r, nil); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	for range 256 {
		if err := <-errs; err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkView is what looking at the time costs a transaction.
func BenchmarkView(b *testing.B) {
	st := mem.New(mem.Options{})
	defer st.Close()
	s := downtime.New(st, downtime.Options{})
	if err := s.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	for name, st := range map[string]store.Store{"engine": st, "with downtime": s} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				if err := st.View(b.Context(), func(tx store.Tx) error { tx.Now(); return nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
