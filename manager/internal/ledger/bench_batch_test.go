package ledger

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// BenchmarkBatch is a new key that is reserved and committed, in calls of its own or in batches, on
// the volatile engine by one caller and on the durable one by 64, there also with an origin, and where
// the scope has a share. An operation is one key; the processor's time shows more than the
// clock where others use the machine, too.
func BenchmarkBatch(b *testing.B) {
	for _, items := range []int{1, 4, 16, 64} {
		b.Run(fmt.Sprintf("memory/items=%d", items), func(b *testing.B) {
			st := mem.New(mem.Options{})
			defer st.Close()
			benchBatches(b, st, items, 1, Options{ScopeShare: -1})
		})
	}
	for _, items := range []int{1, 16, 64} {
		for _, opts := range []Options{{ScopeShare: -1}, {ScopeShare: -1, Origin: "dc1"}, {ScopeShare: 0.9}} {
			b.Run(fmt.Sprintf("wal/items=%d/origin=%s/share=%v", items, opts.Origin, opts.ScopeShare), func(b *testing.B) {
				st, err := mem.Open(context.Background(), b.TempDir(), mem.Options{})
				if err != nil {
					b.Fatal(err)
				}
				defer st.Close()
				benchBatches(b, st, items, benchCallers, opts)
			})
		}
	}
}

func benchBatches(b *testing.B, st store.Store, size, callers int, opts Options) {
	opts.MaxEntries, opts.MaxBytes = 20_000_000, 1<<40
	l, err := New(st, opts)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	result := answer(200, "0123456789012345678901234567890123456789")
	begun := cpuTime(b)
	b.ResetTimer()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			items := make([]Item, size)
			for first := next.Add(int64(size)); first-int64(size) < int64(b.N); first = next.Add(int64(size)) {
				for i := range items {
					items[i] = Item{Op: OpReserve, Reserve: *benchRequest()}
					items[i].Reserve.Key = benchKey(int(first) + i)
				}
				benchCall(b, l, items)
				for i := range items {
					req := &items[i].Reserve
					items[i] = Item{Op: OpCommit, Finish: FinishRequest{Key: req.Key, Scope: req.Scope, Token: req.Token, Result: result}}
				}
				benchCall(b, l, items)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(cpuTime(b)-begun)/float64(b.N), "cpu-ns/op")
}

// benchCall makes the calls of the items, one by itself as a single call.
func benchCall(b *testing.B, l *Ledger, items []Item) {
	if len(items) == 1 {
		one(context.Background(), l, &items[0])
	} else {
		l.Batch(context.Background(), items)
	}
	for i := range items {
		if items[i].Err != nil {
			b.Error(items[i].Err)
		}
	}
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
