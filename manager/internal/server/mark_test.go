package server

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/quarantine"
	"github.com/oncegate/oncegate/manager/internal/shard"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// markSite is a server of a new ledger, of which callers may remember another one.
type markSite struct {
	*site
	me       *shard.Keeper
	restored *quarantine.Quarantine
	position atomic.Uint64
	now      atomic.Int64
}

func newMarkSite(t *testing.T) *markSite {
	t.Helper()
	m := new(markSite)
	m.now.Store(time.Now().UnixMilli())
	st := mem.New(mem.Options{Clock: func() time.Time { return time.UnixMilli(m.now.Load()) }})
	var err error
	if m.restored, err = quarantine.Open(""); err != nil {
		t.Fatal(err)
	}
	if m.me, _, err = shard.Open(t.Context(), st, shard.Want{}); err != nil {
		t.Fatal(err)
	}
	m.position.Store(7)
	if err := m.me.Watch(t.Context(), shard.Past{
		Position: m.position.Load, Longest: func() time.Duration { return time.Hour }, Begin: func(ctx context.Context, d time.Duration, why string) error { return m.restored.Begin(ctx, d, 0, why) },
		Restored: func() string { return m.restored.State().RestoredTo.String() },
	}); err != nil {
		t.Fatal(err)
	}
	m.site = newSite(t, siteOptions{
		store: st, ledger: ledger.Options{Quarantine: m.restored}, server: Options{Ledger: m.me},
		routes: QuarantineRoutes(m.restored),
	})
	return m
}

// reserve returns the status, and the mark of the answer.
func (m *markSite) reserve(key, mark string) (status int, code, answered string) {
	m.t.Helper()
	var header []string
	if mark != "" {
		header = []string{api.HeaderLedger, mark}
	}
	a := m.Do("POST", api.PathReserve, "application/json", `{"key":"`+key+`","token":"t"}`, header...)
	_, code, _ = strings.Cut(a.Body, `"code":"`)
	code, _, _ = strings.Cut(code, `"`)
	return a.Status, code, a.Header.Get(api.HeaderLedger)
}

const otherLedger = "0123456789abcdef0123456789abcdef"

// TestLedgerThatForgot: a ledger that has less than its callers remember runs nothing that may have run.
func TestLedgerThatForgot(t *testing.T) {
	t.Run("all of it", func(t *testing.T) {
		m := newMarkSite(t)
		if status, _, mark := m.reserve("early", ""); status != 201 || mark != m.me.MarkAt(7).String() || !strings.Contains(mark, ".1.") {
			t.Fatalf("%d, %s", status, mark)
		}
		for range 2 { // the second call finds it settled
			if status, code, mark := m.reserve("lost", otherLedger+".3.99"); status != 503 || code != "quarantine" || mark != m.me.Mark().String() {
				t.Errorf("%d %s, %s", status, code, mark)
			}
		}
		if status, _, _ := m.reserve("early", ""); status != 201 {
			t.Errorf("a key that it knows: %d", status)
		}
		if s := m.restored.State(); s.Remaining < 59*time.Minute || len(s.Why) != 1 || !strings.Contains(s.Why[0], otherLedger+".3.99") {
			t.Errorf("%+v", s)
		}
		for _, route := range []struct{ method, want string }{{"GET", `"why":["the ledger is new, `}, {"DELETE", otherLedger + ".3.99"}, {"GET", `"why":[]`}} {
			a := m.JSON(route.method, "/v1/ledger/quarantine", "")
			if a.Status != 200 || !strings.Contains(a.Body, route.want) {
				t.Errorf("%s: %d %s", route.method, a.Status, a.Body)
			}
		}
		for _, mark := range []string{otherLedger + ".3.100", otherLedger + ".9.1"} {
			if status, code, _ := m.reserve("after"+mark[32:], mark); status != 201 {
				t.Errorf("after its end: %d %s", status, code)
			}
		}
	})
	t.Run("some of it", func(t *testing.T) {
		m := newMarkSite(t)
		id := m.me.Identity().ID
		for _, known := range []string{m.me.MarkAt(7).String(), m.me.MarkAt(1).String()} {
			if status, code, _ := m.reserve("k", known); status != 201 {
				t.Fatalf("%s: %d %s", known, status, code)
			}
		}
		if status, code, mark := m.reserve("lost", m.me.MarkAt(8).String()); status != 503 || code != "quarantine" || !strings.HasPrefix(mark, id+".2.") {
			t.Errorf("%d %s, %s", status, code, mark)
		}
		if s := m.restored.State(); len(s.Why) != 1 || !strings.Contains(s.Why[0], "put back to an earlier state") {
			t.Errorf("%+v", s)
		}
		if status, code, mark := m.reserve("lost", id+".5.1"); status != 503 || code != "quarantine" || !strings.HasPrefix(mark, id+".6.") {
			t.Errorf("a later epoch: %d %s, %s", status, code, mark)
		}
	})
	t.Run("nothing, it is old", func(t *testing.T) {
		m := newMarkSite(t)
		m.now.Add(time.Hour.Milliseconds())
		if status, code, mark := m.reserve("k", otherLedger+".1.1"); status != 421 || code != "wrong-ledger" || mark != m.me.Mark().String() {
			t.Errorf("%d %s, %s", status, code, mark)
		}
		a := m.Do("POST", api.PathReserve, "application/json", `{"key":"k","token":"t"}`, api.HeaderLedger, otherLedger+".1.1")
		if got := a.Header.Get("Retry-After"); got != "3601" { // for longer than that, nobody has met the other one
			t.Errorf("Retry-After is %q", got)
		}
		if m.restored.Longest() != 0 {
			t.Error("a caller of another ledger began a quarantine")
		}
		if !strings.Contains(m.log.String(), "ALARM: a caller last met another ledger") {
			t.Error(m.log)
		}
	})
	t.Run("no mark", func(t *testing.T) {
		m := newMarkSite(t)
		for _, bad := range []string{"x", otherLedger, otherLedger + ".0.1", otherLedger + ".1", strings.ToUpper(otherLedger) + ".1.1", otherLedger + ".1.99999999999999999999"} {
			if status, code, _ := m.reserve("k", bad); status != 400 {
				t.Errorf("%s: %d %s", bad, status, code)
			}
		}
	})
}
