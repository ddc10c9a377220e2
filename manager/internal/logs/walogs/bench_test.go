package walogs

import (
	"fmt"
	"log/slog"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/logs/logstest"
)

// BenchmarkAppend appends entries of 256 bytes with 64 callers, each durable before it is
// acknowledged, one by one and in batches of 16.
func BenchmarkAppend(b *testing.B) {
	for _, batch := range []int{1, 16} {
		b.Run(fmt.Sprint("batch=", batch), func(b *testing.B) {
			e, err := Open(b.Context(), b.TempDir(), Options{Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			logstest.BenchmarkAppend(b, e, batch)
		})
	}
}

// BenchmarkRecovery opens a log whose window holds a million ids, once from the records alone and once
// from a snapshot and the records after it, which is what a manager has by default. It reports the heap
// that an id takes and the processor's time as well, which a busy machine disturbs less.
func BenchmarkRecovery(b *testing.B) {
	const keys, batch = 1_000_000, 1000
	for _, snapshots := range []bool{false, true} {
		name, opts := "records", Options{Logger: slog.New(slog.DiscardHandler), DutyEvery: time.Millisecond, SnapshotBytes: 1 << 40, SnapshotEntries: 1 << 40}
		if snapshots {
			name, opts.SnapshotBytes, opts.SnapshotEntries = "snapshot", 0, 0
		}
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			e, err := Open(b.Context(), dir, opts)
			if err != nil {
				b.Fatal(err)
			}
			if _, _, err := e.Put(b.Context(), "log", logs.Change{}); err != nil {
				b.Fatal(err)
			}
			payload := make([]byte, 256)
			for n := 0; n < keys; {
				items := make([]logs.Item, batch)
				for i := range items {
					items[i] = logs.Item{ID: fmt.Sprint("order-", n), Payload: payload}
					n++
				}
				if _, err := e.Append(b.Context(), "log", items, false); err != nil {
					b.Fatal(err)
				}
			}
			if err := e.Close(); err != nil {
				b.Fatal(err)
			}
			var each float64
			var cpu time.Duration
			for b.Loop() {
				b.StopTimer()
				before, spent := heapInUse(), processorTime(b)
				b.StartTimer()
				e, err := Open(b.Context(), dir, Options{Logger: slog.New(slog.DiscardHandler)})
				b.StopTimer()
				cpu += processorTime(b) - spent
				if err != nil {
					b.Fatal(err)
				}
				each = float64(heapInUse()-before) / keys
				if info, err := e.Get(b.Context(), "log"); err != nil || info.Keys != keys {
					b.Fatalf("%d ids, %v", info.Keys, err)
				}
				if err := e.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(each, "bytes/id")
			b.ReportMetric(cpu.Seconds()/float64(b.N), "cpu-s/op")
		})
	}
}

// heapInUse is the heap after a collection.
func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
