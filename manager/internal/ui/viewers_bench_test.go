package ui

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// BenchmarkViewers is what 10 viewers of the ledger's page cost a manager that holds 100,000 keys, a tenth of them pending,
// and does 2000 calls a second: the CPU time of the process with them less that without, in turns whose order changes, per
// second, as a part of one core. That is the part of a core's throughput that they take. The viewers are in the process,
// so the number has what they cost themselves, too. The metric is the median of the pairs.
func BenchmarkViewers(b *testing.B) {
	st := mem.New(mem.Options{})
	defer st.Close()
	l, err := ledger.New(st, ledger.Options{ScopeShare: -1})
	if err != nil {
		b.Fatal(err)
	}
	q, err := jobs.New(st, jobs.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer q.Close()
	result := (&api.Result{Status: 201, Body: make([]byte, 256)}).AppendRaw(nil)
	quiet := slog.New(slog.DiscardHandler)
	sched, err := schedules.New(st, q, schedules.Options{})
	if err != nil {
		b.Fatal(err)
	}
	u, err := New(Options{Version: "bench", Ledger: l, Queue: q, Schedules: sched, Log: quiet})
	if err != nil {
		b.Fatal(err)
	}
	defer u.Close()
	server := httptest.NewServer(u)
	defer server.Close()

	// What there is to see: a page of an empty ledger costs nothing.
	for i := range 100_000 {
		key := fmt.Sprint("held", i)
		if _, err := l.Reserve(b.Context(), &api.ReserveRequest{Key: key, Token: "t"}, nil); err != nil {
			b.Fatal(err)
		}
		if i%10 != 0 { // one in ten stays pending
			if err := l.Commit(b.Context(), &ledger.FinishRequest{Key: key, Token: "t", Result: result}); err != nil {
				b.Fatal(err)
			}
		}
	}

	n := 0
	// work makes calls at a steady pace and returns the CPU time per second.
	work := func(d time.Duration) float64 {
		began, before := time.Now(), cpuTime(b)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for did := 0; did < int(d/(10*time.Millisecond)); did++ {
			<-tick.C
			for range 10 {
				n++
				// The key is free again after that, so every turn does the same work.
				key := fmt.Sprint("k", n)
				if _, err := l.Reserve(b.Context(), &api.ReserveRequest{Key: key, Token: "t"}, nil); err != nil {
					b.Fatal(err)
				}
				if err := l.Release(b.Context(), &api.ReleaseRequest{Key: key, Token: "t"}); err != nil {
					b.Fatal(err)
				}
			}
		}
		return (cpuTime(b) - before).Seconds() / time.Since(began).Seconds()
	}
	// Viewers follow the live part, as a browser does, and load the page every few seconds.
	watched := func(d time.Duration) float64 {
		var viewers sync.WaitGroup
		var streams []*http.Response
		stop := make(chan struct{})
		for range 10 {
			resp, err := http.Get(server.URL + "/ui/events/ledger")
			if err != nil {
				b.Fatal(err)
			}
			streams = append(streams, resp)
			viewers.Go(func() { _, _ = io.Copy(io.Discard, resp.Body) })
			viewers.Go(func() {
				for {
					resp, err := http.Get(server.URL + "/ui/ledger")
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					select {
					case <-stop:
						return
					case <-time.After(5 * time.Second):
					}
				}
			})
		}
		used := work(d)
		close(stop)
		for _, s := range streams {
			s.Body.Close()
		}
		viewers.Wait()
		return used
	}
	const turn = 5 * time.Second
	work(turn / 5)
	var costs []float64
	for b.Loop() {
		var alone, seen float64
		if len(costs)%2 == 0 {
			alone, seen = work(turn), watched(turn)
		} else {
			seen, alone = watched(turn), work(turn)
		}
		costs = append(costs, 100*(seen-alone))
	}
	slices.Sort(costs)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(costs[len(costs)/2], "%-of-a-core")
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
