package journal

import (
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// site is a ledger and its journal.
type site struct {
	*ledger.Ledger
	*Journal
}

func siteOn(t testing.TB, st store.Store, keys int, o ledger.Options) *site {
	t.Helper()
	j := New(keys)
	o.Observer = j
	l, err := ledger.New(st, o)
	if err != nil {
		t.Fatal(err)
	}
	return &site{l, j}
}

// newSite opens a ledger on a volatile store with a clock of its own.
func newSite(t testing.TB, keys int, o ledger.Options) (*site, *clock) {
	t.Helper()
	c := newClock()
	st := mem.New(mem.Options{Clock: c.Now})
	t.Cleanup(func() { _ = st.Close() })
	return siteOn(t, st, keys, o), c
}

// answer is a recorded answer in the raw form.
func answer(status int, body string) []byte {
	r := api.Result{Status: status, Body: []byte(body)}
	return r.AppendRaw(nil)
}

func reserveReq(key, token string) *api.ReserveRequest {
	return &api.ReserveRequest{Key: key, Scope: "s", Token: token}
}

func finishReq(key, token, body string) *ledger.FinishRequest {
	return &ledger.FinishRequest{Key: key, Scope: "s", Token: token, Result: answer(201, body)}
}

func releaseReq(key, token string) *api.ReleaseRequest {
	return &api.ReleaseRequest{Key: key, Scope: "s", Token: token}
}

func mustReserve(t testing.TB, l *site, key, token string) {
	t.Helper()
	if reply, err := l.Reserve(t.Context(), reserveReq(key, token), nil); err != nil || reply.State != api.StateReserved {
		t.Fatalf("reserve %s by %s: %v, %v", key, token, reply.State, err)
	}
}

func mustCommit(t testing.TB, l *site, key, token, body string) {
	t.Helper()
	if err := l.Commit(t.Context(), finishReq(key, token, body)); err != nil {
		t.Fatalf("commit %s by %s: %v", key, token, err)
	}
}
