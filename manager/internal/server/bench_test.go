package server

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// The benchmarks run requests without a network: what remains is the
// server, the ledger and the store.

func benchServer(b *testing.B, st store.Store) *Server {
	b.Helper()
	b.Cleanup(func() { _ = st.Close() })
	l, err := ledger.New(st, ledger.Options{MaxEntries: 20_000_000, MaxBytes: 1 << 40, ScopeShare: -1, MaxResultBytes: ledger.MaxResultLimit})
	if err != nil {
		b.Fatal(err)
	}
	s, err := New(Options{Options: httpd.Options{Version: httpdtest.Version, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}}, LedgerRoutes(l, nil, nil, home.Reach{}))
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

// benchCall is a call that is used again and again.
type benchCall struct {
	request httpd.Direct
	answer  httpd.Response
}

func newBenchCall() *benchCall {
	return &benchCall{request: httpd.Direct{Method: "POST", Header: http.Header{"Content-Type": {api.ContentTypeRaw}}}}
}

func (s *Server) bench(b *testing.B, c *benchCall, path string, body []byte, want int) {
	c.request.Path, c.request.Body = path, body
	s.Do(context.Background(), &c.request, &c.answer)
	if c.answer.Status != want {
		b.Fatalf("%s: %d %s", path, c.answer.Status, c.answer.Body)
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
				call := newBenchCall()
				var buf []byte
				for pb.Next() {
					key := "host1.dc1:12345:" + strconv.FormatInt(n.Add(1), 10)
					reserve := api.ReserveRequest{Key: key, Scope: "c2NvcGUtb2YtdGhlLWNhbGxlcg", Token: "0123456789abcdef0123456789abcdef", Fingerprint: "ZmluZ2VycHJpbnQ"}
					buf = reserve.AppendRaw(buf[:0])
					s.bench(b, call, api.PathReserve, buf, 201)
					commit := api.FinishRequest{Key: key, Scope: reserve.Scope, Token: reserve.Token, Result: result}
					buf = commit.AppendRaw(buf[:0])
					s.bench(b, call, api.PathCommit, buf, 200)
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
			s.bench(b, newBenchCall(), api.PathCommit, commit.AppendRaw(nil), 200)
			body := (&api.ReserveRequest{Key: "k", Token: "u"}).AppendRaw(nil)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				call := newBenchCall()
				for pb.Next() {
					s.bench(b, call, api.PathReserve, body, 200)
				}
			})
		})
	}
}
