package server

import (
	"context"
	"io"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// The benchmarks run requests without an HTTP engine: what remains is the
// server, the ledger and the store.

func benchServer(b *testing.B, st store.Store) *Server {
	b.Helper()
	b.Cleanup(func() { _ = st.Close() })
	l, err := ledger.New(st, ledger.Options{MaxEntries: 1_000_000, MaxBytes: 1 << 40, WhenFull: ledger.Evict, ScopeShare: -1})
	if err != nil {
		b.Fatal(err)
	}
	s, err := New(Options{Version: "v", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}, LedgerRoutes(l, nil))
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func volatileStore(*testing.B) store.Store { return mem.New(mem.Options{}) }

func durableStore(b *testing.B) store.Store {
	st, err := mem.Open(context.Background(), b.TempDir(), mem.Options{})
	if err != nil {
		b.Fatal(err)
	}
	return st
}

func (s *Server) bench(b *testing.B, x *exchange, path string, body []byte, want int) {
	x.req = Request{Method: "POST", Path: path, Body: body, source: fakeSource{api.ContentTypeRaw}}
	x.resp.reset()
	s.serve(&x.req, &x.resp)
	if x.resp.Status != want {
		b.Fatalf("%s: %d %s", path, x.resp.Status, x.resp.Body)
	}
}

// BenchmarkReserveCommit is one new submission: a reserve and a commit of a
// 256 B answer.
func BenchmarkReserveCommit(b *testing.B) {
	for name, open := range map[string]func(*testing.B) store.Store{"memory": volatileStore, "wal": durableStore} {
		b.Run(name, func(b *testing.B) {
			s := benchServer(b, open(b))
			result := api.Result{Status: 201, Headers: []api.Header{{Name: "content-type", Value: "application/json"}}, Body: make([]byte, 256)}
			var n atomic.Int64
			b.ReportAllocs()
			b.SetParallelism(64)
			b.RunParallel(func(pb *testing.PB) {
				var x exchange
				var buf []byte
				for pb.Next() {
					key := "host1.dc1:12345:" + strconv.FormatInt(n.Add(1), 10)
					reserve := api.ReserveRequest{Key: key, Scope: "c2NvcGUtb2YtdGhlLWNhbGxlcg", Token: "0123456789abcdef0123456789abcdef", Fingerprint: "ZmluZ2VycHJpbnQ"}
					buf = reserve.AppendRaw(buf[:0])
					s.bench(b, &x, api.PathReserve, buf, 201)
					commit := api.FinishRequest{Key: key, Scope: reserve.Scope, Token: reserve.Token, Result: result}
					buf = commit.AppendRaw(buf[:0])
					s.bench(b, &x, api.PathCommit, buf, 200)
				}
			})
		})
	}
}

// BenchmarkReplay is a duplicate of a finished submission.
func BenchmarkReplay(b *testing.B) {
	for name, open := range map[string]func(*testing.B) store.Store{"memory": volatileStore, "wal": durableStore} {
		b.Run(name, func(b *testing.B) {
			s := benchServer(b, open(b))
			commit := api.FinishRequest{Key: "k", Token: "t", Result: api.Result{Status: 201, Body: make([]byte, 256)}}
			s.bench(b, new(exchange), api.PathCommit, commit.AppendRaw(nil), 200)
			body := (&api.ReserveRequest{Key: "k", Token: "u"}).AppendRaw(nil)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				var x exchange
				for pb.Next() {
					s.bench(b, &x, api.PathReserve, body, 200)
				}
			})
		})
	}
}
