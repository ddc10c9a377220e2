package feed

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

// site is a ledger and its feed.
type site struct {
	*ledger.Ledger
	*Feed
}

// ledgerOn opens a ledger, whose feed is not open.
func ledgerOn(t testing.TB, st store.Store, o ledger.Options) *site {
	t.Helper()
	l, err := ledger.New(st, o)
	if err != nil {
		t.Fatal(err)
	}
	return &site{l, New(st, l, Options{})}
}

// feedOn opens a ledger with the origin dc1 and its feed.
func feedOn(t testing.TB, st store.Store, o ledger.Options) *site {
	t.Helper()
	o.Origin = "dc1"
	l := ledgerOn(t, st, o)
	if err := l.Open(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	return l
}

// newFeed opens a ledger and its feed on a volatile store with a clock of its own.
func newFeed(t testing.TB, o ledger.Options) (*site, *clock) {
	t.Helper()
	c := newClock()
	st := mem.New(mem.Options{Clock: c.Now})
	t.Cleanup(func() { _ = st.Close() })
	return feedOn(t, st, o), c
}

// sharedStore says that other processes use the same data.
type sharedStore struct{ store.Store }

func (s sharedStore) Capabilities() store.Capabilities {
	c := s.Store.Capabilities()
	c.Shared, c.Sizes = true, false
	return c
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
