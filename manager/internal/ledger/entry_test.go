package ledger

import (
	"errors"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

func TestDeletedKeyIsFree(t *testing.T) {
	l, _ := newTestLedger(t, Options{})
	mustReserve(t, l, "p0", "t", api.StateReserved)
	mustReserve(t, l, "p1", "t", api.StateReserved)
	mustCommit(t, l, "c0", "t", "x")
	if err := l.Reject(t.Context(), finishReq("r0", "t", "x")); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"p0", "c0", "r0"} {
		e, err := l.Delete(t.Context(), "s", k)
		if err != nil || e.Key != k || e.Scope != "s" {
			t.Errorf("%s: %+v %v", k, e, err)
		}
		if _, err := l.Delete(t.Context(), "s", k); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s again: %v", k, err)
		}
		mustReserve(t, l, k, "u", api.StateReserved)
	}
	// An attempt whose entry was deleted and reserved by another is fenced, one
	// whose entry is just gone is accepted late.
	if err := l.Commit(t.Context(), finishReq("p0", "t", "x")); !errors.Is(err, ErrFenced) {
		t.Error(err)
	}
	if _, err := l.Delete(t.Context(), "s", "p1"); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, l, "p1", "t", "x")
	if got := stats(t, l); got.Deleted != 4 {
		t.Errorf("%+v", got)
	}
	var field *api.FieldError
	if _, err := l.Delete(t.Context(), "s", ""); !errors.As(err, &field) {
		t.Error(err)
	}
	if _, err := l.Get(t.Context(), "s p", "k"); !errors.As(err, &field) {
		t.Error(err)
	}
}
