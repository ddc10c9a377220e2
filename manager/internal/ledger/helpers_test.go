package ledger

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ListEntries and EntryByRef are those of package views, which imports this one. An external test file sets them.
var (
	ListEntries func(ctx context.Context, l *Ledger, state api.State, limit int, cursor string) ([]Entry, string, error)
	EntryByRef  func(ctx context.Context, l *Ledger, ref string) (Entry, error)
)

// clock is moved by the test.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.UnixMilli(1_700_000_000_000)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// newTestLedger returns a ledger on a volatile store with a clock of its own.
func newTestLedger(t testing.TB, opts Options) (*Ledger, *clock) {
	t.Helper()
	c := newClock()
	st := mem.New(mem.Options{Clock: c.Now})
	t.Cleanup(func() { _ = st.Close() })
	return ledgerOn(t, st, opts), c
}

func ledgerOn(t testing.TB, st store.Store, opts Options) *Ledger {
	t.Helper()
	l, err := New(st, opts)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// answer is a recorded answer in the raw form.
func answer(status int, body string) []byte {
	r := api.Result{Status: status, Headers: []api.Header{{Name: "content-type", Value: "text/plain"}}, Body: []byte(body)}
	return r.AppendRaw(nil)
}

func reserveReq(key, token string) *api.ReserveRequest {
	return &api.ReserveRequest{Key: key, Scope: "s", Token: token}
}

func finishReq(key, token, body string) *FinishRequest {
	return &FinishRequest{Key: key, Scope: "s", Token: token, Result: answer(201, body)}
}

func releaseReq(key, token string) *api.ReleaseRequest {
	return &api.ReleaseRequest{Key: key, Scope: "s", Token: token}
}

func mustReserve(t testing.TB, l *Ledger, key, token string, want api.State) Reply {
	t.Helper()
	reply, err := l.Reserve(t.Context(), reserveReq(key, token), nil)
	if err != nil || reply.State != want {
		t.Fatalf("reserve %s by %s: %v, %v; want %v", key, token, reply.State, err, want)
	}
	return reply
}

func mustCommit(t testing.TB, l *Ledger, key, token, body string) {
	t.Helper()
	if err := l.Commit(t.Context(), finishReq(key, token, body)); err != nil {
		t.Fatalf("commit %s by %s: %v", key, token, err)
	}
}

func stats(t testing.TB, l *Ledger) Stats {
	t.Helper()
	s, err := l.Stats(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// bytesOf adds up what is stored, for comparison with what the engine counted.
func bytesOf(t testing.TB, l *Ledger) int64 {
	t.Helper()
	total, err := bytesIn(l.store)
	if err == nil {
		err = usageIs(l)
	}
	if err != nil {
		t.Fatal(err)
	}
	return total
}

func bytesIn(st store.Store) (total int64, err error) {
	err = st.View(context.Background(), func(tx store.Tx) error {
		total = 0
		for _, state := range storedStates {
			hits, err := tx.Scan(Collection, indexOf(state), store.Range{Limit: 10000})
			if err != nil {
				return err
			}
			for _, h := range hits {
				value, err := tx.Get(Collection, h.Key)
				if err != nil {
					return err
				}
				total += int64(len(h.Key)+len(value)) + EntryOverhead
			}
		}
		return nil
	})
	return total, err
}

func name(prefix string, i int) string { return fmt.Sprintf("%s%d", prefix, i) }
