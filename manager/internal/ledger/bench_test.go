package ledger

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

const benchCallers = 64

// BenchmarkDurableReserve is a reserve of a new key by 64 callers at once on
// the durable engine, and in turns with it the bare group commit of as many
// bytes: the two are to be compared within one run, and a machine changes its
// pace while it lasts. Reported are the medians of the turns and of their ratios.
func BenchmarkDurableReserve(b *testing.B) {
	body := make([]byte, reserveBytes(b))
	bareLogged := new(logged)
	bare, err := wal.Open(context.Background(), b.TempDir(), wal.Options{OnBatch: bareLogged.add})
	if err != nil {
		b.Fatal(err)
	}
	defer bare.Close()
	l, ledgerLogged := durableLedger(b)
	const turns = 9
	n := (b.N + turns - 1) / turns
	var bareRates, rates, ratios []float64
	for turn := range turns {
		bareRate := inParallel(b, n, func(int, *api.ReserveRequest) error {
			seq, err := bare.Append(body)
			if err != nil {
				return err
			}
			return bare.WaitDurable(context.Background(), seq)
		})
		rate := inParallel(b, n, func(i int, req *api.ReserveRequest) error {
			req.Key = benchKey(turn*n + i)
			_, err := l.Reserve(context.Background(), req, nil)
			return err
		})
		bareRates, rates, ratios = append(bareRates, bareRate), append(rates, rate), append(ratios, 100*rate/bareRate)
	}
	b.ReportMetric(0, "ns/op") // of both together, so of nothing
	b.ReportMetric(median(bareRates), "bare/s")
	b.ReportMetric(bareLogged.perSync(), "bare/sync")
	b.ReportMetric(median(rates), "reserves/s")
	b.ReportMetric(ledgerLogged.perSync(), "reserves/sync")
	b.ReportMetric(median(ratios), "%-of-bare")
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// logged counts what a log wrote, the headers of the records included.
type logged struct{ batches, records, bytes atomic.Int64 }

func (w *logged) add(b wal.Batch) {
	w.batches.Add(1)
	w.records.Add(int64(b.Records))
	w.bytes.Add(int64(b.Bytes))
}

func (w *logged) perSync() float64 {
	return float64(w.records.Load()) / float64(max(w.batches.Load(), 1))
}

func durableLedger(b *testing.B) (*Ledger, *logged) {
	b.Helper()
	w := new(logged)
	st, err := mem.Open(context.Background(), b.TempDir(), mem.Options{Log: wal.Options{OnBatch: w.add}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = st.Close() })
	l, err := New(st, Options{MaxEntries: 20_000_000, MaxBytes: 1 << 40, ScopeShare: -1})
	if err != nil {
		b.Fatal(err)
	}
	return l, w
}

const (
	benchScope = "c2NvcGUtb2YtdGhlLWNhbGxlcg"
	benchToken = "0123456789abcdef0123456789abcdef"
)

func benchKey(i int) string {
	var b [32]byte
	return string(strconv.AppendInt(append(b[:0], "host1.dc1:12345:"...), int64(1_000_000_000+i), 10))
}

func benchRequest() *api.ReserveRequest {
	return &api.ReserveRequest{Scope: benchScope, Token: benchToken, Fingerprint: "ZmluZ2VycHJpbnQ"}
}

func benchReserve(l *Ledger, i int) error {
	req := benchRequest()
	req.Key = benchKey(i)
	_, err := l.Reserve(context.Background(), req, nil)
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

// inParallel runs op n times from 64 goroutines, each with a request of its own,
// and returns how many there were per second.
func inParallel(b *testing.B, n int, op func(i int, req *api.ReserveRequest) error) (rate float64) {
	var next atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range benchCallers {
		wg.Go(func() {
			req := benchRequest()
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := op(int(i), req); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(n) / time.Since(start).Seconds()
}
