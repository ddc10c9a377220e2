package ledger

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// TestDay fills a ledger on the engine wal with DAY_KEYS keys (make test-long), each with an answer of 256 bytes, by four
// callers with batches of 64 calls. The process's memory must not grow with the keys, beyond their fingerprints, and a
// start reads the log's end only. It prints the rates.
func TestDay(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("DAY_KEYS"))
	if n == 0 {
		t.Skip("DAY_KEYS is not set; make test-long sets it")
	}
	dir := t.TempDir()
	st, l := openDay(t, dir, mem.Options{})
	const part = 500_000
	var first, last float64
	for from := 0; from < n; from += part {
		began := time.Now()
		took := dayPart(t, l, from, min(part, n-from), 4, 64, nil)
		rate := float64(min(part, n-from)) / time.Since(began).Seconds()
		if first == 0 {
			first = rate
		}
		last = rate
		slices.Sort(took)
		slowest := took[len(took)*99/100]
		t.Logf("%8d keys: %6.0f keys/s, 99 of 100 batches of reserves within %4.1f ms, %4d MB resident, %5d MB on disk, state behind %d",
			from+part, rate, slowest.Seconds()*1000, resident(t)>>20, used(t, dir)>>20, st.Log().Last()-st.StateSequence())
	}
	bound := int64(900<<20) + 3*int64(n)
	if r := resident(t); r > bound {
		t.Errorf("%d MB are resident, want at most %d", r>>20, bound>>20)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	st, l = openDay(t, dir, mem.Options{})
	took := time.Since(began)
	for i := range 1000 {
		r := benchRequest()
		r.Key = dayKey(i * (n / 1000))
		if got, err := l.Reserve(t.Context(), r, nil); err != nil || got.State != api.StateCommitted {
			t.Fatalf("key %d of %d is %v, %v", i*(n/1000), n, got.State, err)
		}
	}
	t.Logf("a start takes %v, its first 1000 answers %v; the last keys came at %.2f of the first ones' rate", took, time.Since(began)-took, last/first)
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}

// dayKey is a key as clients draw it: the next one may be anywhere in the order of keys.
func dayKey(i int) string {
	return fmt.Sprintf("%016x-%012d", uint64(i)*0x9e3779b97f4a7c15, i)
}

// openDay opens a ledger of a day's keys.
func openDay(t testing.TB, dir string, o mem.Options) (*mem.Store, *Ledger) {
	t.Helper()
	st, err := mem.Open(t.Context(), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := New(st, Options{MaxEntries: 1_000_000_000, MaxBytes: 1 << 44, ScopeShare: -1, CommittedTTL: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return st, l
}

// dayPart reserves and commits n keys by callers with batches of size calls. Each caller calls pause, if it is not nil, before
// each pair of batches. dayPart returns how long each batch of reserves took.
func dayPart(t testing.TB, l *Ledger, from, n, callers, size int, pause func()) (took []time.Duration) {
	result := answer(200, strings.Repeat("0123456789abcdef", 16))
	var next atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for first := int(next.Add(int64(size))) - size; first < n; first = int(next.Add(int64(size))) - size {
				if pause != nil {
					pause()
				}
				items := make([]Item, min(size, n-first))
				for _, op := range []Op{OpReserve, OpCommit} {
					for i := range items {
						r := benchRequest()
						r.Key = dayKey(from + first + i)
						if op == OpReserve {
							items[i] = Item{Op: op, Reserve: *r}
						} else {
							items[i] = Item{Op: op, Finish: FinishRequest{Key: r.Key, Scope: r.Scope, Token: r.Token, Result: result}}
						}
					}
					began := time.Now()
					l.Batch(context.Background(), items)
					if op == OpReserve {
						mu.Lock()
						took = append(took, time.Since(began))
						mu.Unlock()
					}
					for i := range items {
						if items[i].Err != nil {
							t.Error(items[i].Err)
							return
						}
					}
				}
			}
		})
	}
	wg.Wait()
	return took
}

// resident is the memory of the process that is neither the kernel's cache nor swapped out.
func resident(t *testing.T) (bytes int64) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if rest, ok := strings.CutPrefix(sc.Text(), "VmRSS:"); ok {
			_, _ = fmt.Sscan(rest, &bytes)
		}
	}
	return bytes << 10
}

// used is the size of all files of a directory.
func used(t *testing.T, dir string) (bytes int64) {
	err := filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			bytes += info.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}
