package views_test

import (
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is moved by the test. It has milliseconds.
type clock struct{ atomic.Int64 }

func (c *clock) advance(d time.Duration) { c.Add(d.Milliseconds()) }

// newLedger returns a ledger on a volatile store with a clock of its own.
func newLedger(t testing.TB, opts ledger.Options) (*ledger.Ledger, *clock) {
	t.Helper()
	c := new(clock)
	c.Store(1_700_000_000_000)
	st := mem.New(mem.Options{Clock: func() time.Time { return time.UnixMilli(c.Load()) }})
	t.Cleanup(func() { _ = st.Close() })
	l, err := ledger.New(st, opts)
	if err != nil {
		t.Fatal(err)
	}
	return l, c
}

// reserve reserves a key of scope s.
func reserve(t testing.TB, l *ledger.Ledger, key string) {
	t.Helper()
	reply, err := l.Reserve(t.Context(), &api.ReserveRequest{Key: key, Scope: "s", Token: "t"}, nil)
	if err != nil || reply.State != api.StateReserved {
		t.Fatalf("reserve %s: %v, %v", key, reply.State, err)
	}
}

// finish is the outcome of a key that was reserved.
func finish(key string) *ledger.FinishRequest {
	return ledger.NewFinish(&api.FinishRequest{Key: key, Scope: "s", Token: "t", Result: api.Result{Status: 201, Body: []byte("x")}})
}

func commit(t testing.TB, l *ledger.Ledger, key string) {
	t.Helper()
	if err := l.Commit(t.Context(), finish(key)); err != nil {
		t.Fatalf("commit %s: %v", key, err)
	}
}
