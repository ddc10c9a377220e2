package app

import (
	"bytes"
	"context"
	"encoding/base64"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/feed"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/sealed"
)

// TestSchedulesAreEncrypted: the payload of a schedule is unreadable in the store, and the schedule still fires under a new key.
func TestSchedulesAreEncrypted(t *testing.T) {
	now := time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC)
	plain := mem.New(mem.Options{Clock: func() time.Time { return now }})
	defer plain.Close()
	open := func(keys string) (*schedules.Schedules, *jobs.Queue, *sealed.Store) {
		ring, err := crypt.Parse([]byte(keys))
		if err != nil {
			t.Fatal(err)
		}
		st, _, err := sealed.Open(t.Context(), plain, sealed.Options{Ring: ring, Places: sealedPlaces()})
		if err != nil {
			t.Fatal(err)
		}
		q, err := jobs.New(st, jobs.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(q.Close)
		s, err := schedules.New(st, q, schedules.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return s, q, st.(*sealed.Store)
	}
	s, _, _ := open(keyLine("k1", 1))
	if _, _, err := s.Put(t.Context(), "s", schedules.Spec{Cron: "@hourly", Function: "f", Payload: []byte(`"secret"`)}); err != nil {
		t.Fatal(err)
	}
	stored := func() {
		t.Helper()
		err := plain.View(t.Context(), func(tx store.Tx) error {
			v, err := tx.Get(schedules.Collection, "s")
			if bytes.Contains(v, []byte("secret")) {
				t.Error("the store has the payload")
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	stored()
	_, _, st := open(keyLine("k1", 1) + keyLine("k2", 2))
	if r, err := st.Rewrite(t.Context()); err != nil || r.Failed != 0 || r.Rewritten == 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	stored()
	s, q, _ := open(keyLine("k2", 2)) // the first key is gone
	now = now.Add(time.Hour)
	if _, err := s.RunDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if page, err := q.List(t.Context(), jobs.ListQuery{Payloads: true}); err != nil || len(page.Jobs) != 1 || string(page.Jobs[0].Payload) != `"secret"` {
		t.Errorf("%+v, %v", page, err)
	}
}

// keyLine is a line of a file of keys.
func keyLine(id string, fill byte) string {
	return id + ":" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, crypt.KeyBytes)) + "\n"
}

// TestConflictsAreEncrypted: outcomes that lost a conflict are unreadable in the store, are stored again under a new key
// with the indexes that they had, and go when they expire.
func TestConflictsAreEncrypted(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	plain := mem.New(mem.Options{Clock: func() time.Time { return now }})
	defer plain.Close()
	var changes *feed.Feed // of the ledger that was opened last
	open := func(keys string) (*ledger.Ledger, *sealed.Store) {
		ring, err := crypt.Parse([]byte(keys))
		if err != nil {
			t.Fatal(err)
		}
		st, _, err := sealed.Open(t.Context(), plain, sealed.Options{Ring: ring, Places: sealedPlaces()})
		if err != nil {
			t.Fatal(err)
		}
		l, err := ledger.New(st, ledger.Options{Origin: "dc1", CleanupInterval: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		changes = feed.New(st, l, feed.Options{})
		if err := changes.Open(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		return l, st.(*sealed.Store)
	}
	answer := func(body string) []byte {
		return (&api.Result{Status: 200, Body: []byte(body)}).AppendRaw(nil)
	}
	l, _ := open(keyLine("k1", 1))
	if err := l.Commit(t.Context(), &ledger.FinishRequest{Scope: "s", Key: "k", Token: "own", Result: answer("secret-own"), TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	other := ledger.FeedChange{Origin: "dc2", Scope: "s", Key: "k", Token: "other", State: api.StateCommitted, HLC: 1, ExpiresIn: time.Hour, Result: answer("secret-other")}
	if _, err := changes.Import(t.Context(), []ledger.FeedChange{other}, nil); err != nil {
		t.Fatal(err)
	}
	want := func(l *ledger.Ledger) {
		t.Helper()
		list, _, err := views.Conflicts(t.Context(), l, 10, "")
		if err != nil || len(list) != 1 || list[0].Winner != "dc2" || len(list[0].Outcomes) != 2 ||
			!bytes.Contains(list[0].Outcomes[0].Result, []byte("secret-other")) || !bytes.Contains(list[0].Outcomes[1].Result, []byte("secret-own")) {
			t.Fatalf("%+v, %v", list, err)
		}
	}
	want(l)
	stored := func() (values int) {
		err := plain.View(t.Context(), func(tx store.Tx) error {
			hits, err := tx.Scan(ledger.ConflictCollection, ledger.ConflictIndex, store.Range{Limit: 10})
			for _, h := range hits {
				v, err := tx.Get(ledger.ConflictCollection, h.Key)
				if err != nil {
					return err
				}
				if bytes.Contains(v, []byte("secret")) {
					t.Error("the store has the answer")
				}
				values++
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return values
	}
	if stored() != 1 {
		t.Fatal("no conflict is stored")
	}
	_, st := open(keyLine("k1", 1) + keyLine("k2", 2))
	if r, err := st.Rewrite(t.Context()); err != nil || r.Failed != 0 || r.Rewritten < 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	l, _ = open(keyLine("k2", 2)) // the first key is gone
	want(l)
	if digests, _, err := changes.Digests(t.Context(), "dc1", 0); err != nil || len(digests) != 1 || digests[0].Outcomes != 1 {
		t.Errorf("digests %v, %v", digests, err)
	}
	now = now.Add(2 * time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		changes.Run(ctx, func(err error) { t.Error(err) })
	}()
	for deadline := time.Now().Add(time.Minute); stored() > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-done
	if n := stored(); n != 0 {
		t.Errorf("%d outcomes stay", n)
	}
}
