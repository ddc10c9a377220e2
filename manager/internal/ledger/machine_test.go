package ledger

import (
	"errors"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

// TestEveryCellOfTheStateTable is the table of the package documentation, cell by cell.
func TestEveryCellOfTheStateTable(t *testing.T) {
	const now = 1000
	entry := func(s api.State, expires, unknown int64) *record {
		return &record{state: s, expires: expires, unknown: unknown, token: []byte("t"), fingerprint: []byte("f")}
	}
	found := map[string]*record{
		"nothing":                  nil,
		"pending":                  entry(api.StatePending, now+1, 5),
		"pending expired":          entry(api.StatePending, now, 0),
		"pending lapsed":           entry(api.StatePending, now, 1),
		"pending lapsed, in time":  entry(api.StatePending, now-4, 5),
		"pending lapsed, too long": entry(api.StatePending, now-5, 5),
		"unknown":                  entry(api.StateUnknown, now+1, 5),
		"unknown expired":          entry(api.StateUnknown, now, 5),
		"committed":                entry(api.StateCommitted, now+1, 5),
		"committed expired":        entry(api.StateCommitted, now, 5),
		"rejected":                 entry(api.StateRejected, now+1, 5),
		"rejected expired":         entry(api.StateRejected, now-1, 5),
	}
	for _, c := range []struct {
		found, token, fingerprint                        string
		reserve, commit, reject, release, renew, unknown verdict
		resolve                                          verdict
	}{
		{"nothing", "t", "f", verdictInsert, verdictLate, verdictLate, verdictGone, verdictLate, verdictLate, verdictGone},
		{"nothing", "u", "", verdictInsert, verdictLate, verdictLate, verdictGone, verdictLate, verdictLate, verdictGone},
		{"pending", "t", "f", verdictOwn, verdictRecord, verdictRecord, verdictDelete, verdictExtend, verdictRecord, verdictConflict},
		{"pending", "t", "", verdictOwn, verdictRecord, verdictRecord, verdictDelete, verdictExtend, verdictRecord, verdictConflict},
		{"pending", "t", "g", verdictMismatch, verdictMismatch, verdictMismatch, verdictDelete, verdictMismatch, verdictMismatch, verdictConflict},
		{"pending", "u", "f", verdictPending, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictConflict},
		{"pending", "u", "g", verdictMismatch, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictConflict},
		{"pending expired", "t", "g", verdictInsert, verdictLate, verdictLate, verdictGone, verdictLate, verdictLate, verdictGone},
		{"pending expired", "u", "f", verdictInsert, verdictLate, verdictLate, verdictGone, verdictLate, verdictLate, verdictGone},
		{"pending lapsed", "t", "f", verdictUnknown, verdictRecord, verdictRecord, verdictDelete, verdictExtend, verdictSame, verdictRecord},
		{"pending lapsed", "t", "g", verdictMismatch, verdictMismatch, verdictMismatch, verdictDelete, verdictMismatch, verdictSame, verdictRecord},
		{"pending lapsed", "u", "f", verdictUnknown, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictRecord},
		{"pending lapsed", "u", "g", verdictMismatch, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictRecord},
		{"pending lapsed, in time", "u", "", verdictUnknown, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictRecord},
		{"pending lapsed, too long", "u", "g", verdictInsert, verdictLate, verdictLate, verdictGone, verdictLate, verdictLate, verdictGone},
		{"unknown", "t", "f", verdictUnknown, verdictRecord, verdictRecord, verdictDelete, verdictExtend, verdictSame, verdictRecord},
		{"unknown", "t", "g", verdictMismatch, verdictMismatch, verdictMismatch, verdictDelete, verdictMismatch, verdictSame, verdictRecord},
		{"unknown", "u", "f", verdictUnknown, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictRecord},
		{"unknown", "u", "", verdictUnknown, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictRecord},
		{"unknown", "u", "g", verdictMismatch, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictRecord},
		{"unknown expired", "u", "g", verdictInsert, verdictLate, verdictLate, verdictGone, verdictLate, verdictLate, verdictGone},
		{"committed", "t", "f", verdictFinal, verdictSame, verdictConflict, verdictConflict, verdictConflict, verdictConflict, verdictConflict},
		{"committed", "t", "g", verdictMismatch, verdictSame, verdictConflict, verdictConflict, verdictConflict, verdictConflict, verdictConflict},
		{"committed", "u", "f", verdictFinal, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictConflict},
		{"committed", "u", "", verdictFinal, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictConflict},
		{"committed", "u", "g", verdictMismatch, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictConflict},
		{"committed expired", "u", "g", verdictInsert, verdictLate, verdictLate, verdictGone, verdictLate, verdictLate, verdictGone},
		{"rejected", "t", "f", verdictFinal, verdictConflict, verdictSame, verdictConflict, verdictConflict, verdictConflict, verdictConflict},
		{"rejected", "u", "f", verdictFinal, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictFenced, verdictConflict},
		{"rejected expired", "t", "f", verdictInsert, verdictLate, verdictLate, verdictGone, verdictLate, verdictLate, verdictGone},
	} {
		e := found[c.found]
		moved := c.reserve
		if moved == verdictInsert {
			moved = verdictMoved // and nothing else is
		}
		for call, v := range map[string][2]verdict{
			"reserve":                  {decideReserve(e, now, c.token, c.fingerprint, false), c.reserve},
			"reserve of another's key": {decideReserve(e, now, c.token, c.fingerprint, true), moved},
			"commit":                   {decideFinish(e, now, api.StateCommitted, c.token, c.fingerprint), c.commit},
			"reject":                   {decideFinish(e, now, api.StateRejected, c.token, c.fingerprint), c.reject},
			"release":                  {decideRelease(e, now, c.token), c.release},
			"renew":                    {decideRenew(e, now, c.token, c.fingerprint), c.renew},
			"unknown":                  {decideFinish(e, now, api.StateUnknown, c.token, c.fingerprint), c.unknown},
			"resolve":                  {decideResolve(e, now), c.resolve},
		} {
			if v[0] != v[1] {
				t.Errorf("%s: %s(%s, %q) = %d, want %d", c.found, call, c.token, c.fingerprint, v[0], v[1])
			}
		}
	}
	// A fingerprint that only one side gives is not compared.
	bare := entry(api.StatePending, now+1, 5)
	bare.fingerprint = nil
	if got := decideReserve(bare, now, "t", "f", false); got != verdictOwn {
		t.Errorf("entry without a fingerprint: %d", got)
	}
}

// A gate that knows more about a request than the entry's gate gets its answer, and the entry keeps what it has.
func TestEntryKeepsItsFirstFingerprint(t *testing.T) {
	l, _ := newTestLedger(t, Options{})
	base, body := strings.Repeat("a", 32), strings.Repeat("b", 32)
	first := base + ".00000001"
	for _, token := range []string{"pending", "final"} {
		for fp, want := range map[string]error{
			first: nil, base: nil, first + "." + body: nil, first + "." + base: nil,
			base + ".00000002." + body: ErrFingerprintMismatch, body + ".00000001": ErrFingerprintMismatch,
		} {
			req := reserveReq("k", "t")
			req.Fingerprint = first
			if token == "pending" {
				if _, err := l.Reserve(t.Context(), req, nil); err != nil {
					t.Fatal(err)
				}
			}
			req.Token, req.Fingerprint = token, fp
			if _, err := l.Reserve(t.Context(), req, nil); !errors.Is(err, want) {
				t.Errorf("%s, reserve with %s: %v, want %v", token, fp, err, want)
			}
			if e, err := l.Get(t.Context(), "s", "k"); err != nil || e.Fingerprint != first {
				t.Errorf("%s, after %s: %+v, %v", token, fp, e, err)
			}
		}
		req := finishReq("k", "t", "x")
		req.Fingerprint = first + "." + body
		if err := l.Commit(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
}
