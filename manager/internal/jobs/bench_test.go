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
		enqueueAll(b, q, s, batch)
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

// BenchmarkLimits claims and finishes one job at a time of functions with limits that are never reached, and of one
// without, in turns. Of several rounds the fastest of each counts. The metrics are what an operation takes compared with
// the function without limits.
func BenchmarkLimits(b *testing.B) {
	const rounds, keys = 7, 10_000
	functions := []string{"plain", "running", "rate", "per-key", "keys"}
	limits := map[string]jobs.Limits{
		"running": {MaxRunning: jobs.MaxLimitCount}, "rate": {Rate: jobs.Rate{Count: jobs.MaxLimitCount, Per: time.Second}},
		"per-key": {MaxRunningPerKey: 100},
	}
	for _, e := range benchEngines {
		b.Run("engine="+e.name, func(b *testing.B) {
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
			each := max(b.N/rounds/len(functions), 1)
			for _, f := range functions {
				var batch []*jobs.Prepared
				for i := range (rounds+1)*each + 2*keys {
					sub := jobs.Submission{Function: f, Payload: benchPayload}
					if f == "per-key" || f == "keys" {
						sub.ConcurrencyKey = fmt.Sprint("tenant-", i%keys)
					}
					p, err := q.Prepare(sub)
					if err != nil {
						b.Fatal(err)
					}
					if batch = append(batch, p); len(batch) == 1000 {
						enqueueAll(b, q, s, batch)
						batch = nil
					}
				}
				enqueueAll(b, q, s, batch)
				if err := q.SetLimits(b.Context(), f, limits[f]); err != nil {
					b.Fatal(err)
				}
			}
			fastest := make(map[string]time.Duration)
			for range rounds {
				for _, f := range functions {
					began := time.Now()
					for range each {
						got, err := q.Claim(b.Context(), jobs.ClaimRequest{Worker: "w", Functions: []string{f}, Lease: time.Hour})
						if err != nil || len(got) != 1 {
							b.Fatalf("claimed %d jobs, %v", len(got), err)
						}
						if _, err := q.Finish(b.Context(), jobs.Finish{ID: got[0].ID, Token: got[0].Lease.Token, State: jobs.Complete}); err != nil {
							b.Fatal(err)
						}
					}
					if took := time.Since(began); fastest[f] == 0 || took < fastest[f] {
						fastest[f] = took
					}
				}
			}
			b.ReportMetric(float64(fastest["plain"].Microseconds())/float64(each), "us/plain")
			for _, f := range functions[1:] {
				b.ReportMetric(float64(fastest[f])/float64(fastest["plain"]), "x/"+f)
			}
		})
	}
}

// BenchmarkBacklogOfKeys claims one job at a time of 10,000 keys, with 10,000 and with a million waiting jobs, in turns. The
// metrics are the time of a claim, the ratio of the two, and how many other jobs were delivered before the only job of a
// new key: no more than one of each other key.
func BenchmarkBacklogOfKeys(b *testing.B) {
	const keys, rounds = 10_000, 5
	backlogs := []int{10_000, 1_000_000}
	for _, e := range benchEngines {
		b.Run("engine="+e.name, func(b *testing.B) {
			each := max(b.N/rounds/len(backlogs), 1)
			claim := func(q *jobs.Queue) jobs.Job {
				got, err := q.Claim(b.Context(), jobs.ClaimRequest{Worker: "w", Functions: []string{"f"}, Lease: time.Hour})
				if err != nil || len(got) != 1 {
					b.Fatalf("claimed %d jobs, %v", len(got), err)
				}
				return got[0]
			}
			var queues []*jobs.Queue
			for _, n := range backlogs {
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
				if err := q.SetLimits(b.Context(), "f", jobs.Limits{MaxRunningPerKey: jobs.MaxLimitCount}); err != nil {
					b.Fatal(err)
				}
				for i := 0; i < n+rounds*each; {
					var batch []*jobs.Prepared
					for ; len(batch) < 1000; i++ {
						p, err := q.Prepare(jobs.Submission{Function: "f", ConcurrencyKey: fmt.Sprint("tenant-", i%keys)})
						if err != nil {
							b.Fatal(err)
						}
						batch = append(batch, p)
					}
					enqueueAll(b, q, s, batch)
				}
				queues = append(queues, q)
			}
			fastest := make([]time.Duration, len(queues))
			for range rounds {
				for i, q := range queues {
					began := time.Now()
					for range each {
						claim(q)
					}
					if took := time.Since(began); fastest[i] == 0 || took < fastest[i] {
						fastest[i] = took
					}
				}
			}
			last := queues[len(queues)-1]
			if _, err := last.Enqueue(b.Context(), jobs.Submission{Function: "f", ConcurrencyKey: "new"}); err != nil {
				b.Fatal(err)
			}
			before := 0
			for claim(last).ConcurrencyKey != "new" {
				before++
			}
			b.ReportMetric(float64(fastest[1].Microseconds())/float64(each), "us/claim")
			b.ReportMetric(float64(fastest[1])/float64(fastest[0]), "x/million")
			b.ReportMetric(float64(before), "jobs-before-a-new-key")
		})
	}
}

func enqueueAll(b *testing.B, q *jobs.Queue, s store.Store, batch []*jobs.Prepared) {
	b.Helper()
	if err := s.Update(b.Context(), func(tx store.Tx) error {
		for _, p := range batch {
			if _, err := q.EnqueueTx(tx, p); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}
