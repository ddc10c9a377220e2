package ledger

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/store/mem"
	"github.com/oncegate/oncegate/manager/wal"
)

const benchCallers = 64

// BenchmarkDurableReserve is a reserve of a new key by 64 callers at once on
// the durable engine. The bare group commit of as many bytes is run beside it:
// the two are to be compared within one run.
func BenchmarkDurableReserve(b *testing.B) {
	b.Run("log=bare", func(b *testing.B) {
		body := make([]byte, reserveBytes(b))
		w := new(logged)
		l, err := wal.Open(context.Background(), b.TempDir(), wal.Options{OnBatch: w.add})
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		inParallel(b, func(int) error {
			seq, err := l.Append(body)
			if err != nil {
				return err
			}
			return l.WaitDurable(context.Background(), seq)
		})
		w.report(b)
	})
	b.Run("log=ledger", func(b *testing.B) {
		l, w := durableLedger(b)
		inParallel(b, func(i int) error { return benchReserve(l, i) })
		w.report(b)
	})
}

// logged counts what a log wrote, the headers of the records included.
type logged struct{ batches, records, bytes atomic.Int64 }

func (w *logged) add(b wal.Batch) {
	w.batches.Add(1)
	w.records.Add(int64(b.Records))
	w.bytes.Add(int64(b.Bytes))
}

func (w *logged) report(b *testing.B) {
	b.ReportMetric(float64(w.records.Load())/float64(max(w.batches.Load(), 1)), "records/sync")
}

func durableLedger(b *testing.B) (*Ledger, *logged) {
	b.Helper()
	w := new(logged)
	st, err := mem.Open(context.Background(), b.TempDir(), mem.Options{Log: wal.Options{OnBatch: w.add}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = st.Close() })
	l, err := New(context.Background(), st, Options{MaxEntries: 20_000_000})
	if err != nil {
		b.Fatal(err)
	}
	return l, w
}

const (
	benchScope = "c2NvcGUtb2YtdGhlLWNhbGxlcg"
	benchToken = "0123456789abcdef0123456789abcdef"
)

func benchKey(i int) string { return "host1.dc1:12345:" + strconv.Itoa(1_000_000_000+i) }

func benchReserve(l *Ledger, i int) error {
	_, err := l.Reserve(context.Background(), &api.ReserveRequest{
		Key: benchKey(i), Scope: benchScope, Token: benchToken, Fingerprint: "ZmluZ2VycHJpbnQ",
	}, nil)
	return err
}

// reserveBytes is what a reserve writes to the log.
func reserveBytes(b *testing.B) int64 {
	l, w := durableLedger(b)
	if err := benchReserve(l, 0); err != nil {
		b.Fatal(err)
	}
	return w.bytes.Load()
}

// inParallel runs op from 64 goroutines until b.N operations are done.
func inParallel(b *testing.B, op func(i int) error) {
	b.ReportAllocs()
	b.ResetTimer()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range benchCallers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if err := op(int(i)); err != nil {
					b.Error(err)
					return
				}
			}
		}()
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}
