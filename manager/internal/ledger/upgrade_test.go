package ledger

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// TestRecordsHaveTheLowestVersion that can hold them.
func TestRecordsHaveTheLowestVersion(t *testing.T) {
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

// TestResultOfALaterVersion: a manager after this one may record results in another form.
// All that this one cannot do is to replay them.
func TestResultOfALaterVersion(t *testing.T) {
	l, c := newTestLedger(t, Options{})
	later := func(key string) {
		t.Helper()
		mustReserve(t, l, key, "t", api.StateReserved)
		mustCommit(t, l, key, "t", "x")
		err := l.Update(t.Context(), func(tx *Tx) error {
			var r record
			e, err := l.load(tx.Tx, recordKey("s", key), &r)
			if err == nil {
				e.form, e.result = 2, []byte("in a form of its own")
				err = tx.put(recordKey("s", key), e)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	value := func(key string) (b []byte) {
		t.Helper()
		err := l.store.View(t.Context(), func(tx store.Tx) error {
			v, err := tx.Get(collection, recordKey("s", key))
			b = bytes.Clone(v)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	unreadable := func(what string, err error) {
		t.Helper()
		var u *store.UnreadableError
		if !errors.As(err, &u) || u.Reason != "its result has version 2, this program reads 1" {
			t.Errorf("%s: %v", what, err)
		}
	}

	later("a")
	before := value("a")
	if before[0] != recordVersion3 {
		t.Fatalf("version %d", before[0])
	}
	_, err := l.Reserve(t.Context(), reserveReq("a", "t2"), nil)
	unreadable("a duplicate", err)
	unreadable("a duplicate in another's transaction", l.Update(t.Context(), func(tx *Tx) error {
		_, err := tx.Reserve(reserveReq("a", "t2"))
		return err
	}))
	_, err = l.Get(t.Context(), "s", "a")
	unreadable("an operator's look", err)
	_, err = ReadRecord(recordKey("s", "a"), before)
	unreadable("a check of the stored record", err)
	mustCommit(t, l, "a", "t", "again")
	if err := l.Commit(t.Context(), finishReq("a", "t2", "x")); !errors.Is(err, ErrFenced) {
		t.Errorf("a stranger's commit: %v", err)
	}
	if err := l.Reject(t.Context(), finishReq("a", "t", "x")); !errors.Is(err, ErrConflict) {
		t.Errorf("another outcome: %v", err)
	}
	if err := l.Release(t.Context(), releaseReq("a", "t")); !errors.Is(err, ErrConflict) {
		t.Errorf("a release: %v", err)
	}
	if !bytes.Equal(value("a"), before) {
		t.Errorf("%x became %x", before, value("a"))
	}

	// It leaves the window as others do.
	c.advance(l.Options().CommittedTTL)
	mustReserve(t, l, "a", "t3", api.StateReserved)
}
