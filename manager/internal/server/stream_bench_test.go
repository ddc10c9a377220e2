package server

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/managertest/calls"
)

// BenchmarkStream is one new submission over a connection, a reserve and a commit of a 256 B answer, with 64 of them under way: as calls on
// a stream, and as calls of their own. The CPU is that of both sides.
func BenchmarkStream(b *testing.B) {
	for name, caller := range map[string]func(b *testing.B, site *httpdtest.Site) func(op api.Op, message []byte) int{
		"stream": streamCaller, "single": singleCaller,
	} {
		b.Run(name, func(b *testing.B) {
			call := caller(b, httpdtest.Start(b, benchServer(b, volatileStore(b)), httpdtest.Options{}))
			result := api.Result{Status: 201, Headers: []api.Header{{Name: "content-type", Value: "application/json"}}, Body: make([]byte, 256)}
			var n atomic.Int64
			before := cpuTime(b)
			b.ReportAllocs()
			b.ResetTimer()
			var clients sync.WaitGroup
			for range 64 {
				clients.Go(func() {
					for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
						key := "host1.dc1:12345:" + strconv.FormatInt(i, 10)
						reserve := api.ReserveRequest{Key: key, Scope: "c2NvcGUtb2YtdGhlLWNhbGxlcg", Token: "0123456789abcdef0123456789abcdef", Fingerprint: "ZmluZ2VycHJpbnQ"}
						commit := api.FinishRequest{Key: key, Scope: reserve.Scope, Token: reserve.Token, Result: result}
						if a, c := call(api.OpReserve, reserve.AppendRaw(nil)), call(api.OpCommit, commit.AppendRaw(nil)); a != 201 || c != 200 {
							b.Errorf("%d, %d", a, c)
						}
					}
				})
			}
			clients.Wait()
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

func streamCaller(b *testing.B, site *httpdtest.Site) func(api.Op, []byte) int {
	st, err := calls.Open(b.Context(), site.Base)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(st.Close)
	return func(op api.Op, message []byte) int {
		replies, err := st.Do(calls.Call{Op: op, Message: message})
		if err != nil {
			b.Error(err)
		}
		return replies[0].Status
	}
}

func singleCaller(b *testing.B, site *httpdtest.Site) func(api.Op, []byte) int {
	site.Client.Transport.(*http.Transport).MaxIdleConnsPerHost = 64
	return func(op api.Op, message []byte) int {
		a, err := site.Try(b.Context(), "POST", op.Path(), api.ContentTypeRaw, string(message))
		if err != nil {
			b.Error(err)
		}
		return a.Status
	}
}

// BenchmarkSmallCallsBesideLarge is the time of small calls by 8 callers: alone, beside large commits one after the other on a stream for
// large messages, and beside the same commits on the stream of the small calls, as a gate never sends them. All take turns, and the best
// turn of each counts. A ledger records up to 4 MiB. It refuses 16 MiB, the most that a gate sends.
func BenchmarkSmallCallsBesideLarge(b *testing.B) {
	for engine, open := range map[string]func(*testing.B) store.Store{"memory": volatileStore, "wal": durableStore} {
		for _, size := range []int{1 << 20, 4 << 20, 16 << 20} {
			b.Run(fmt.Sprintf("%s/%dMiB", engine, size>>20), func(b *testing.B) { smallBesideLarge(b, open(b), size) })
		}
	}
}

func smallBesideLarge(b *testing.B, st store.Store, size int) {
	const turns, callers, each = 8, 8, 100
	site := httpdtest.Start(b, benchServer(b, st), httpdtest.Options{})
	open := func(header ...string) *calls.Stream {
		st, err := calls.Open(b.Context(), site.Base, header...)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(st.Close)
		return st
	}
	small, large := open(), open(api.HeaderStream, api.StreamLarge)
	var n, larges atomic.Int64
	call := func(st *calls.Stream, op api.Op, message []byte) time.Duration {
		begun := time.Now()
		replies, err := st.Do(calls.Call{Op: op, Message: message})
		if err != nil || replies[0].Status > 201 && replies[0].Status != 413 {
			b.Errorf("%s: %v, %v", op, replies, err)
		}
		return time.Since(begun)
	}
	// pair reserves and commits a new key, and returns the time of both.
	pair := func(st *calls.Stream, body []byte) (reserved, committed time.Duration) {
		reserve := api.ReserveRequest{Key: strconv.FormatInt(n.Add(1), 10), Token: "0123456789abcdef0123456789abcdef"}
		commit := api.FinishRequest{Key: reserve.Key, Token: reserve.Token, TTL: time.Millisecond, Result: api.Result{Status: 201, Body: body}}
		reserved = call(st, api.OpReserve, reserve.AppendRaw(nil))
		return reserved, call(st, api.OpCommit, commit.AppendRaw(nil))
	}
	kinds := []string{"alone", "beside", "together"}
	best := map[string]time.Duration{}
	var besideFor time.Duration
	for b.Loop() {
		for turn := range turns * len(kinds) {
			kind := turn % len(kinds)
			var work sync.WaitGroup
			stop := make(chan struct{})
			if kind > 0 {
				st := []*calls.Stream{1: large, 2: small}[kind]
				work.Go(func() {
					for body := make([]byte, size-1<<10); ; {
						select {
						case <-stop:
							return
						default:
							pair(st, body)
							larges.Add(1)
						}
					}
				})
			}
			reserves, commits := make([]time.Duration, callers*each), make([]time.Duration, callers*each)
			begun := time.Now()
			var clients sync.WaitGroup
			for c := range callers {
				clients.Go(func() {
					for i := range each {
						reserves[c*each+i], commits[c*each+i] = pair(small, make([]byte, 256))
					}
				})
			}
			clients.Wait()
			if kind > 0 {
				besideFor += time.Since(begun)
			}
			close(stop)
			work.Wait()
			for op, all := range map[string][]time.Duration{"reserve": reserves, "commit": commits} {
				slices.Sort(all)
				for share, took := range map[string]time.Duration{"p50": all[len(all)/2], "p99": all[len(all)*99/100]} {
					name := kinds[kind] + "-" + op + "-" + share + "-us"
					if old, ok := best[name]; !ok || took < old {
						best[name] = took
					}
				}
			}
		}
	}
	b.ReportMetric(0, "ns/op") // of all turns together, so of nothing
	b.ReportMetric(float64(larges.Load())/besideFor.Seconds(), "large/s")
	for name, took := range best {
		b.ReportMetric(float64(took.Microseconds()), name)
	}
}
