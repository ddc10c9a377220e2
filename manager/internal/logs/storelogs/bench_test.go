package storelogs

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/postgres"
	"github.com/oncegate/oncegate/manager/internal/store/redis"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// benchmarked are the engines to measure. Each function prepares empty data, and returns what opens it.
var benchmarked = map[string]func(b *testing.B) func() (store.Store, error){
	"wal": func(b *testing.B) func() (store.Store, error) {
		dir := b.TempDir()
		return func() (store.Store, error) { return mem.Open(b.Context(), dir, mem.Options{}) }
	},
	"sqlite": func(b *testing.B) func() (store.Store, error) {
		file := filepath.Join(b.TempDir(), "db")
		return func() (store.Store, error) { return sqlite.Open(b.Context(), file, sqlite.Options{}) }
	},
	"postgres": func(b *testing.B) func() (store.Store, error) {
		o := postgres.Options{DSN: servers.SharedPostgres(b).URL}
		return func() (store.Store, error) { return postgres.Open(b.Context(), o) }
	},
	"redis": func(b *testing.B) func() (store.Store, error) {
		o := redis.Options{URL: servers.SharedRedis(b).URL}
		return func() (store.Store, error) { return redis.Open(b.Context(), o) }
	},
}

// start opens a store and the logs in it.
func start(b *testing.B, open func() (store.Store, error)) (*Engine, func()) {
	st, err := open()
	if err != nil {
		b.Fatal(err)
	}
	e, err := Open(b.Context(), st, Options{Logger: slog.New(slog.DiscardHandler), CallTimeout: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	return e, func() {
		if err := e.Close(); err != nil {
			b.Error(err)
		}
		if err := st.Close(); err != nil {
			b.Error(err)
		}
	}
}

// BenchmarkAppend appends entries of 256 bytes with 64 callers, each durable before it is
// acknowledged, one by one and in batches of 16.
func BenchmarkAppend(b *testing.B) {
	for name, prepare := range benchmarked {
		for _, batch := range []int{1, 16} {
			b.Run(fmt.Sprint(name, "/batch=", batch), func(b *testing.B) {
				e, stop := start(b, prepare(b))
				defer stop()
				appendAll(b, e, batch)
			})
		}
	}
}

// appendAll appends entries of 256 bytes with 64 callers on two processors, in batches of a size. Each is durable
// before it is acknowledged. It reports entries/s.
func appendAll(b *testing.B, e *Engine, batch int) {
	if _, _, err := e.Put(b.Context(), logName, logs.Change{}); err != nil {
		b.Fatal(err)
	}
	var number atomic.Int64
	payload := make([]byte, 256)
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		items := make([]logs.Item, batch)
		for pb.Next() {
			for i := range items {
				items[i] = logs.Item{ID: fmt.Sprint("id-", number.Add(1)), Payload: payload}
			}
			if _, err := e.Append(b.Context(), logName, items, false); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "entries/s")
}

// BenchmarkRecovery opens a store with a log whose window holds a million ids, until a retry of the oldest entry is
// answered and a new one is durable. The entries were appended one by one, so there are as many records as can be.
// It reports the heap that an id takes as well.
func BenchmarkRecovery(b *testing.B) {
	const keys = 1_000_000
	for name, prepare := range benchmarked {
		b.Run(name, func(b *testing.B) {
			open := prepare(b)
			e, stop := start(b, open)
			hour := time.Hour
			if _, _, err := e.Put(b.Context(), "log", logs.Change{Window: &hour}); err != nil {
				b.Fatal(err)
			}
			for n := 0; n < keys; n += 500 {
				fill(b, e, n, n+500)
			}
			stop()
			var each float64
			fresh := keys
			for b.Loop() {
				b.StopTimer()
				before := heapInUse()
				b.StartTimer()
				e, stop := start(b, open)
				out, err := e.Append(b.Context(), "log", []logs.Item{orderItem(fresh - keys), orderItem(fresh)}, false)
				b.StopTimer()
				fresh++
				if err != nil || out[0].Err != nil || !out[0].Duplicate || out[1].Err != nil || out[1].Number != uint64(fresh) {
					b.Fatalf("%+v, %v", out, err)
				}
				each = max(each, float64(heapInUse()-before)/keys)
				stop()
				b.StartTimer()
			}
			b.ReportMetric(each, "bytes/id")
		})
	}
}

func orderItem(n int) logs.Item {
	return logs.Item{ID: fmt.Sprint("order-", n), Payload: make([]byte, 256)}
}

// fill appends each entry by itself, but commits all of them at once.
func fill(b *testing.B, e *Engine, from, to int) {
	by, err := e.preparer(b.Context(), e.line("log"))
	if err != nil {
		b.Fatal(err)
	}
	if err := e.update(b.Context(), func(tx store.Tx) error {
		for n := from; n < to; n++ {
			r := &request{items: []logs.Item{orderItem(n)}}
			r.prepare(by)
			t := &transaction{engine: e, name: "log", key: by.Settings().Key, group: []*request{r}}
			if err := t.run(tx); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}

// heapInUse is the heap after a collection.
func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
