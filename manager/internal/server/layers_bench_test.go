package server

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// BenchmarkLayers is one durable operation of one caller, with one layer of the manager more each:
// the log, the store, the ledger with the server's handlers. It reports as well what the fastest
// tenth took at most, which a busy machine disturbs least.
func BenchmarkLayers(b *testing.B) {
	record := make([]byte, 400)
	b.Run("log", func(b *testing.B) {
		log, err := wal.Open(b.Context(), filepath.Join(b.TempDir(), "wal"), wal.Options{})
		if err != nil {
			b.Fatal(err)
		}
		defer log.Close()
		body := make([]byte, 500)
		oneCaller(b, func(int) error {
			seq, lead, err := log.AppendLead(body)
			if lead {
				log.Lead()
			}
			if err != nil {
				return err
			}
			return log.WaitDurable(context.Background(), seq)
		})
	})
	b.Run("store", func(b *testing.B) {
		st, err := mem.Open(b.Context(), b.TempDir(), mem.Options{})
		if err != nil {
			b.Fatal(err)
		}
		defer st.Close()
		oneCaller(b, func(n int) error {
			return st.Update(context.Background(), func(tx store.Tx) error { return tx.Put("bench", strconv.Itoa(n), record) })
		})
	})
	b.Run("handlers", func(b *testing.B) { // a reserve and its commit are two operations
		s := benchServer(b, durableStore(b))
		call := newBenchCall()
		var buf []byte
		oneCaller(b, func(n int) error {
			key := strconv.Itoa(n / 2)
			if n%2 == 0 {
				r := api.ReserveRequest{Key: key, Scope: "scope", Token: key}
				buf = r.AppendRaw(buf[:0])
				s.bench(b, call, api.PathReserve, buf, 201)
				return nil
			}
			f := api.FinishRequest{Key: key, Scope: "scope", Token: key, Result: api.Result{Status: 201, Body: record[:256]}}
			buf = f.AppendRaw(buf[:0])
			s.bench(b, call, api.PathCommit, buf, 200)
			return nil
		})
	})
}

func oneCaller(b *testing.B, op func(n int) error) {
	took := make([]time.Duration, 0, 1024)
	for n := 0; b.Loop(); n++ {
		start := time.Now()
		if err := op(n); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/10].Nanoseconds())/1e3, "us-tenth")
}
