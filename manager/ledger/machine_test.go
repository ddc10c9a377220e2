package ledger

import (
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

// TestMachine is the table of the package documentation, cell by cell.
func TestMachine(t *testing.T) {
	const now = 1000
	entry := func(s api.State, expires int64) *record {
		return &record{state: s, expires: expires, token: []byte("t"), fingerprint: []byte("f")}
	}
	found := map[string]*record{
		"nothing":           nil,
		"pending":           entry(api.StatePending, now+1),
		"pending expired":   entry(api.StatePending, now),
		"committed":         entry(api.StateCommitted, now+1),
		"committed expired": entry(api.StateCommitted, now),
		"rejected":          entry(api.StateRejected, now+1),
		"rejected expired":  entry(api.StateRejected, now-1),
	}
	for _, c := range []struct {
		found, token, fingerprint        string
		reserve, commit, reject, release verdict
	}{
		{"nothing", "t", "f", verdictInsert, verdictLate, verdictLate, verdictGone},
		{"nothing", "u", "", verdictInsert, verdictLate, verdictLate, verdictGone},
		{"pending", "t", "f", verdictOwn, verdictRecord, verdictRecord, verdictDelete},
		{"pending", "t", "", verdictOwn, verdictRecord, verdictRecord, verdictDelete},
		{"pending", "t", "g", verdictMismatch, verdictMismatch, verdictMismatch, verdictDelete},
		{"pending", "u", "f", verdictPending, verdictFenced, verdictFenced, verdictFenced},
		{"pending", "u", "g", verdictMismatch, verdictFenced, verdictFenced, verdictFenced},
		{"pending expired", "t", "g", verdictInsert, verdictLate, verdictLate, verdictGone},
		{"pending expired", "u", "f", verdictInsert, verdictLate, verdictLate, verdictGone},
		{"committed", "t", "f", verdictFinal, verdictSame, verdictConflict, verdictConflict},
		{"committed", "t", "g", verdictMismatch, verdictSame, verdictConflict, verdictConflict},
		{"committed", "u", "f", verdictFinal, verdictFenced, verdictFenced, verdictFenced},
		{"committed", "u", "", verdictFinal, verdictFenced, verdictFenced, verdictFenced},
		{"committed", "u", "g", verdictMismatch, verdictFenced, verdictFenced, verdictFenced},
		{"committed expired", "u", "g", verdictInsert, verdictLate, verdictLate, verdictGone},
		{"rejected", "t", "f", verdictFinal, verdictConflict, verdictSame, verdictConflict},
		{"rejected", "u", "f", verdictFinal, verdictFenced, verdictFenced, verdictFenced},
		{"rejected expired", "t", "f", verdictInsert, verdictLate, verdictLate, verdictGone},
	} {
		e := found[c.found]
		if got := decideReserve(e, now, c.token, c.fingerprint); got != c.reserve {
			t.Errorf("%s: reserve(%s, %q) = %d, want %d", c.found, c.token, c.fingerprint, got, c.reserve)
		}
		if got := decideFinish(e, now, api.StateCommitted, c.token, c.fingerprint); got != c.commit {
			t.Errorf("%s: commit(%s, %q) = %d, want %d", c.found, c.token, c.fingerprint, got, c.commit)
		}
		if got := decideFinish(e, now, api.StateRejected, c.token, c.fingerprint); got != c.reject {
			t.Errorf("%s: reject(%s, %q) = %d, want %d", c.found, c.token, c.fingerprint, got, c.reject)
		}
		if got := decideRelease(e, now, c.token); got != c.release {
			t.Errorf("%s: release(%s) = %d, want %d", c.found, c.token, got, c.release)
		}
	}
	// A fingerprint that only one side gives is not compared.
	bare := entry(api.StatePending, now+1)
	bare.fingerprint = nil
	if got := decideReserve(bare, now, "t", "f"); got != verdictOwn {
		t.Errorf("entry without a fingerprint: %d", got)
	}
}
