package ledger

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// TestUpgrade opens data that the release before UNKNOWN wrote (testdata/version1: a
// snapshot and a log after it) and goes on with them, over restarts of its own.
func TestUpgrade(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/version1")); err != nil {
		t.Fatal(err)
	}
	c := &clock{t: time.UnixMilli(1_700_000_002_000)}
	open := func() (*Ledger, func()) {
		st, err := mem.Open(t.Context(), dir, mem.Options{Clock: c.Now, Log: wal.Options{SegmentBytes: 64 << 10}})
		if err != nil {
			t.Fatal(err)
		}
		return ledgerOn(t, st, Options{}), func() {
			if err := st.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	l, stop := open()
	if s := stats(t, l); s.Pending != 2 || s.Committed != 1 || s.Rejected != 1 || s.Unknown != 0 {
		t.Errorf("%+v", s)
	}
	mustReserve(t, l, "pending", "t2", api.StatePending)
	mustReserve(t, l, "pending", "t1", api.StateReserved)
	mustReserve(t, l, "released", "t2", api.StateReserved)
	if r := mustReserve(t, l, "committed", "t2", api.StateCommitted); !bytes.Equal(r.Result, answer(201, "paid")) {
		t.Errorf("replay %q", r.Result)
	}
	if r := mustReserve(t, l, "rejected", "t2", api.StateRejected); !bytes.Equal(r.Result, answer(402, "no")) {
		t.Errorf("replay %q", r.Result)
	}
	if e, err := l.GetByRef(t.Context(), "job-committed"); err != nil || e.Key != "committed" {
		t.Errorf("%+v %v", e, err)
	}
	stop()

	// One reservation has run out while no manager was there; the other is renewed.
	c.advance(10 * time.Second)
	l, stop = open()
	for range 2 {
		expectUnknown(t, l, "short", "t2")
		mustRenew(t, l, "pending", "t1", time.Hour)
		if _, err := l.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop()
		l, stop = open()
	}
	if e, err := l.Get(t.Context(), "s", "short"); err != nil || e.State != api.StateUnknown || e.ExpiresIn != 299*time.Second || e.Fingerprint != "f" {
		t.Errorf("%+v %v", e, err)
	}
	mustCommit(t, l, "short", "t1", "late")
	mustReserve(t, l, "short", "t2", api.StateCommitted)
	c.advance(59 * time.Minute)
	mustReserve(t, l, "pending", "t2", api.StatePending)
	if err := l.Commit(t.Context(), finishReq("pending", "t2", "x")); !errors.Is(err, ErrFenced) {
		t.Errorf("a stranger's commit: %v", err)
	}
	mustCommit(t, l, "pending", "t1", "x")
	stop()
}

// TestWayBack: what the release before can say is written as it wrote it, so that it can
// read that again; and only the rest is beyond it.
func TestWayBack(t *testing.T) {
	versions := func(l *Ledger, key string) (v byte) {
		err := l.Update(t.Context(), func(tx *Tx) error {
			value, err := tx.Get(collection, recordKey("s", key))
			if err == nil {
				v = value[0]
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	l, c := newTestLedger(t, Options{})
	for _, k := range []string{"default", "renewed", "committed", "explicit", "lapsed"} {
		req := reserveReq(k, "t")
		if k == "explicit" {
			req.UnknownTTL = time.Minute
		}
		if _, err := l.Reserve(t.Context(), req, nil); err != nil {
			t.Fatal(err)
		}
	}
	c.advance(time.Second)
	mustRenew(t, l, "renewed", "t", 0)
	mustRenew(t, l, "explicit", "t", time.Hour)
	mustCommit(t, l, "committed", "t", "x")
	want := map[string]byte{"default": 1, "renewed": 1, "committed": 1, "explicit": 2, "lapsed": 1}
	for k, v := range want {
		if got := versions(l, k); got != v {
			t.Errorf("%s: version %d, want %d", k, got, v)
		}
	}
	c.advance(59 * time.Second)
	if _, err := l.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := versions(l, "lapsed"); got != 2 {
		t.Errorf("an entry that is UNKNOWN: version %d", got)
	}
	mustCommit(t, l, "explicit", "t", "x")
	mustCommit(t, l, "lapsed", "t", "x")
	for _, k := range []string{"explicit", "lapsed"} {
		if got := versions(l, k); got != 1 {
			t.Errorf("%s, committed: version %d", k, got)
		}
	}
}
