package clienttest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/server"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// durableManager serves a queue on the write-ahead log.
func durableManager(b *testing.B) (*client.Client, *jobs.Queue, store.Store) {
	b.Helper()
	st, err := mem.Open(context.Background(), b.TempDir(), mem.Options{})
	if err != nil {
		b.Fatal(err)
	}
	l, err := ledger.New(st, ledger.Options{MaxBytes: 1 << 40, ScopeShare: -1})
	if err != nil {
		b.Fatal(err)
	}
	q, err := jobs.New(st, jobs.Options{RetainCount: 10_000_000})
	if err != nil {
		b.Fatal(err)
	}
	srv, err := server.New(server.Options{Options: httpd.Options{Version: "bench", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}}, server.JobRoutes(l, q))
	if err != nil {
		b.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln, nil) }()
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	c, err := client.New(client.Options{URL: "http://" + ln.Addr().String(), HTTP: &http.Client{Transport: transport}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		transport.CloseIdleConnections()
		q.Drain()
		_ = srv.Shutdown(context.Background())
		<-served
		q.Close()
		_ = st.Close()
	})
	return c, q, st
}

var benchPayload = []byte(`"` + strings.Repeat("p", 254) + `"`)

// BenchmarkWork runs no-op handlers for jobs that wait already: claims, work
// and reports over HTTP, on the write-ahead log.
func BenchmarkWork(b *testing.B) {
	for _, concurrency := range []int{1, 10, 64, 256} {
		b.Run(fmt.Sprintf("concurrency=%d", concurrency), func(b *testing.B) {
			c, q, st := durableManager(b)
			for done := 0; done < b.N; {
				var batch []*jobs.Prepared
				for ; len(batch) < 1000 && done < b.N; done++ {
					p, err := q.Prepare(jobs.Submission{Function: "f", Payload: benchPayload})
					if err != nil {
						b.Fatal(err)
					}
					batch = append(batch, p)
				}
				err := st.Update(b.Context(), func(tx store.Tx) error {
					for _, p := range batch {
						if _, err := q.EnqueueTx(tx, p); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			var left atomic.Int64
			left.Store(int64(b.N))
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			w, err := c.NewWorker(client.WorkerOptions{Concurrency: concurrency, Handlers: map[string]client.Handler{
				"f": func(context.Context, *client.Job) (any, error) {
					if left.Add(-1) == 0 {
						cancel()
					}
					return nil, nil
				},
			}})
			if err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			if err := w.Run(ctx); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
			if got := q.Counters().Completed; got != int64(b.N) {
				b.Fatalf("%d of %d jobs complete", got, b.N)
			}
		})
	}
}

// BenchmarkSubmit submits jobs with keys of their own over HTTP.
func BenchmarkSubmit(b *testing.B) {
	for _, callers := range []int{1, 10, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			c, _, _ := durableManager(b)
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ResetTimer()
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						if _, err := c.SubmitIdempotent(b.Context(), client.Submission{Function: "f", Payload: string(benchPayload)}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
		})
	}
}
