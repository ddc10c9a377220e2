package ledger

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
	"github.com/oncegate/oncegate/manager/managertest/metered"
)

// TestStartReadsLittle: what a start reads does not grow with the entries.
func TestStartReadsLittle(t *testing.T) {
	const entries, scopes, most = 4000, 300, 300
	clock := newClock()
	m := metered.New(clockedStoreOn(t, new(faultfs.FS), clock.Now))
	o := Options{Origin: "dc1", CommittedTTL: time.Hour}
	l := ledgerOn(t, m, o)
	for i := range entries {
		f := finishReq(name("k", i), "t", "x")
		f.Scope = name("scope", i%scopes)
		if err := l.Commit(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	m.Reads()
	clock.advance(-time.Minute)
	l = ledgerOn(t, m, o)
	if err := l.maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := m.Reads(); n > most {
		t.Errorf("a start with %d entries read %d records and hits, want at most %d", entries, n, most)
	}
	mustReserve(t, l, "new", "t", api.StateReserved)
}
