package jobs_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// benchEngines are the engines inside this process.
var benchEngines = []struct {
	name string
	open func(b *testing.B) (store.Store, error)
}{
	{"memory", func(*testing.B) (store.Store, error) { return mem.New(mem.Options{}), nil }},
	{"wal", func(b *testing.B) (store.Store, error) {
		return mem.Open(context.Background(), b.TempDir(), mem.Options{})
	}},
}

var benchPayload = []byte(`"` + strings.Repeat("p", 254) + `"`)

// benchmark runs op b.N times on both engines at 1, 10 and 64 callers. setup
// runs before the clock starts.
func benchmark(b *testing.B, setup func(*testing.B, *jobs.Queue, store.Store), op func(ctx context.Context, q *jobs.Queue) error) {
	for _, e := range benchEngines {
		for _, callers := range []int{1, 10, 64} {
			b.Run(fmt.Sprintf("engine=%s/callers=%d", e.name, callers), func(b *testing.B) {
				s, err := e.open(b)
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				q, err := jobs.New(s, jobs.Options{MaxBytes: jobs.MaxMaxBytes})
				if err != nil {
					b.Fatal(err)
				}
				defer q.Close()
				setup(b, q, s)
				b.ReportAllocs()
				b.ResetTimer()
				var left atomic.Int64
				left.Store(int64(b.N))
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							err := op(context.Background(), q)
							if err != nil {
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
}

// fill enqueues n jobs in few transactions.
func fill(b *testing.B, q *jobs.Queue, s store.Store, n int) {
	for done := 0; done < n; {
		var batch []*jobs.Prepared
		for len(batch) < 1000 && done < n {
			p, err := q.Prepare(jobs.Submission{Function: "f", Payload: benchPayload})
			if err != nil {
				b.Fatal(err)
			}
			batch = append(batch, p)
			done++
		}
		err := s.Update(context.Background(), func(tx store.Tx) error {
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
}

func BenchmarkEnqueue(b *testing.B) {
	var n atomic.Int64
	benchmark(b, func(*testing.B, *jobs.Queue, store.Store) {}, func(ctx context.Context, q *jobs.Queue) error {
		_, err := q.Enqueue(ctx, jobs.Submission{Function: "f", Payload: benchPayload, Key: fmt.Sprint("k", n.Add(1))})
		return err
	})
}

func BenchmarkClaim(b *testing.B) {
	setup := func(b *testing.B, q *jobs.Queue, s store.Store) { fill(b, q, s, b.N+64) }
	benchmark(b, setup, func(ctx context.Context, q *jobs.Queue) error {
		got, err := q.Claim(ctx, jobs.ClaimRequest{Worker: "w", Functions: []string{"f"}, Lease: time.Hour})
		if err == nil && len(got) != 1 {
			err = fmt.Errorf("claimed %d jobs", len(got))
		}
		return err
	})
}

// BenchmarkWork claims and finishes one job per operation.
func BenchmarkWork(b *testing.B) {
	setup := func(b *testing.B, q *jobs.Queue, s store.Store) { fill(b, q, s, b.N+64) }
	benchmark(b, setup, func(ctx context.Context, q *jobs.Queue) error {
		got, err := q.Claim(ctx, jobs.ClaimRequest{Worker: "w", Functions: []string{"f"}, Lease: time.Hour})
		if err != nil || len(got) != 1 {
			return fmt.Errorf("claimed %d jobs: %w", len(got), err)
		}
		_, err = q.Finish(ctx, jobs.Finish{ID: got[0].ID, Token: got[0].Lease.Token, State: jobs.Complete})
		return err
	})
}
