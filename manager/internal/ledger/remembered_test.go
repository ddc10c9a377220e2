package ledger

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// TestRememberedByEntries: the index entries of an outcome say what its value says. Those of a reservation do not.
func TestRememberedByEntries(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC).UnixMilli()
	for _, state := range storedStates {
		r := record{state: state, created: now - 5, touched: now, expires: now + 90_000, token: []byte("t")}
		if state.Terminal() {
			r.result = answer(201, "x")
		}
		byIndex := make(map[string]string)
		for _, e := range r.appendEntries(nil) {
			byIndex[e.Index] = e.SortKey
		}
		got, ok := RememberedByEntries(func(index string) string { return byIndex[index] })
		want := Remembered("k", appendRecord(nil, &r))
		if state == api.StatePending {
			want = 0
		}
		if got != want || ok != (state != api.StatePending) {
			t.Errorf("%s: %v %v, want %v", state, got, ok, want)
		}
	}
}
