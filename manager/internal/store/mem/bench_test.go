package mem

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// BenchmarkMemUpdate puts one record with a value of 300 bytes and two index
// entries per transaction, as a ledger does, and waits until it is durable.
// The bare group commit of the same bytes is run beside it: the two are to be
// compared within one run.
func BenchmarkMemUpdate(b *testing.B) {
	value := make([]byte, 300)
	for _, n := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("log=bare/callers=%d", n), func(b *testing.B) {
			l, err := wal.Open(context.Background(), b.TempDir(), wal.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			body := make([]byte, benchBodySize(value))
			callers(b, n, func(int) error {
				seq, err := l.Append(body)
				if err != nil {
					return err
				}
				return l.WaitDurable(context.Background(), seq)
			})
			reportBatches(b, l)
		})
		b.Run(fmt.Sprintf("log=store/callers=%d", n), func(b *testing.B) {
			s, err := Open(context.Background(), b.TempDir(), Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			callers(b, n, func(i int) error { return benchPut(s, i, value) })
			reportBatches(b, s.log)
		})
	}
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("log=none/callers=%d", n), func(b *testing.B) {
			s := New(Options{})
			callers(b, n, func(i int) error { return benchPut(s, i, value) })
		})
	}
}

// benchKey is a string of 60 bytes, scattered over the order of keys.
func benchKey(i int) string {
	const prefix = "api.example.com/v1/payments|"
	b := make([]byte, len(prefix), len(prefix)+32)
	copy(b, prefix)
	x := uint64(i) * 0x9e3779b97f4a7c15
	b = hex.AppendEncode(b, binary.BigEndian.AppendUint64(nil, x))
	b = hex.AppendEncode(b, binary.BigEndian.AppendUint64(nil, ^x))
	return string(b)
}

func benchPut(s *Store, i int, value []byte) error {
	key := benchKey(i)
	var sort [8]byte
	binary.BigEndian.PutUint64(sort[:], uint64(i))
	at := string(sort[:])
	return s.Update(context.Background(), func(tx store.Tx) error {
		return tx.Put("ledger", key, value, store.Entry{Index: "expiry", SortKey: at}, store.Entry{Index: "used", SortKey: at})
	})
}

// benchBodySize is the size of the log record of a benchPut.
func benchBodySize(value []byte) int {
	s := New(Options{})
	if err := benchPut(s, 0, value); err != nil {
		panic(err)
	}
	c := s.collections["ledger"]
	return len(appendPut(appendHeader(nil, s.opts.Clock()), c.name, c.indexes, c.hot.get(benchKey(0))))
}

func reportBatches(b *testing.B, l *wal.Log) {
	st := l.Stats()
	b.ReportMetric(float64(st.Records)/float64(max(st.Batches, 1)), "records/sync")
}

// callers runs op from n goroutines until b.N operations are done and reports
// the rate.
func callers(b *testing.B, n int, op func(i int) error) {
	b.ReportAllocs()
	cpu := cpuTime(b)
	b.ResetTimer()
	var wg sync.WaitGroup
	for w := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := w; i < b.N; i += n {
				if err := op(i); err != nil {
					b.Error(err)
					return
				}
			}
		}()
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
	b.ReportMetric(float64(cpuTime(b)-cpu)/float64(b.N), "cpu-ns/op")
}

// cpuTime is what the process used so far: on a busy machine it shows more
// than the time that passed.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
