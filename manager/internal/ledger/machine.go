package ledger

import "github.com/oncegate/oncegate/manager/api"

// The state machine: pure functions from the entry that is found and the call to what the ledger does. See the tables
// in the package documentation.

// verdict is the state machine's decision about a call.
type verdict uint8

const (
	// refusals
	verdictMismatch verdict = iota // another fingerprint
	verdictFenced                  // another token
	verdictConflict                // same token, other outcome

	verdictUnknown // reserve: the work may have run, its outcome is not known
	verdictMoved   // reserve: nothing is there, and another ledger owns the key

	// answers that change nothing
	verdictOwn     // reserve: this token holds the entry
	verdictPending // reserve: another token holds it
	verdictFinal   // reserve: the outcome is recorded
	verdictSame    // commit, reject, unknown: recorded already, by this token
	verdictGone    // release, resolve: there is no reservation

	// changes
	verdictInsert // reserve: nothing is there, insert PENDING
	verdictRecord // commit, reject, unknown, resolve: end the reservation
	verdictLate   // commit, reject, unknown, renew: the reservation is gone, record anyway
	verdictDelete // release: end this token's reservation
	verdictExtend // renew: extend this token's reservation
)

// standing returns what an entry is at now (Unix milliseconds): its state, and the first millisecond at which it is no
// longer in that state. A reservation that ran out without an outcome is UNKNOWN from that instant on, whether or not
// the sweeper has stored that. StateNone: there is no entry, or it has expired.
func standing(e *record, now int64) (state api.State, expires int64) {
	switch {
	case e == nil:
		return api.StateNone, 0
	case now < e.expires:
		return e.state, e.expires
	case e.state == api.StatePending && now < e.expires+e.unknown:
		return api.StateUnknown, e.expires + e.unknown
	default:
		return api.StateNone, 0
	}
}

// live reports whether there is an entry at now.
func live(e *record, now int64) bool {
	state, _ := standing(e, now)
	return state != api.StateNone
}

// mismatch reports whether a call is about another request than the entry.
func mismatch(e *record, fingerprint string) bool {
	// Nearly all are equal byte by byte. Only that comparison allocates nothing.
	return string(e.fingerprint) != fingerprint && !api.SameRequest(string(e.fingerprint), fingerprint)
}

// decideReserve decides about a reserve. elsewhere says that another ledger owns the key. It matters only if there is
// no entry: what began here ends here.
func decideReserve(e *record, now int64, token, fingerprint string, elsewhere bool) verdict {
	switch state, _ := standing(e, now); {
	case state == api.StateNone && elsewhere:
		return verdictMoved
	case state == api.StateNone:
		return verdictInsert
	case mismatch(e, fingerprint):
		return verdictMismatch
	case state.Terminal():
		return verdictFinal
	case state == api.StateUnknown:
		return verdictUnknown
	case string(e.token) == token:
		return verdictOwn
	default:
		return verdictPending
	}
}

// decideFinish decides about calls that end a reservation in another state: COMMITTED, REJECTED or UNKNOWN.
func decideFinish(e *record, now int64, outcome api.State, token, fingerprint string) verdict {
	switch state, _ := standing(e, now); {
	case state == api.StateNone:
		return verdictLate
	case string(e.token) != token:
		return verdictFenced
	case state == outcome:
		return verdictSame
	case state.Terminal():
		return verdictConflict
	case mismatch(e, fingerprint):
		return verdictMismatch
	default:
		return verdictRecord
	}
}

func decideRenew(e *record, now int64, token, fingerprint string) verdict {
	switch state, _ := standing(e, now); {
	case state == api.StateNone:
		return verdictLate
	case string(e.token) != token:
		return verdictFenced
	case state.Terminal():
		return verdictConflict
	case mismatch(e, fingerprint):
		return verdictMismatch
	default:
		return verdictExtend
	}
}

func decideRelease(e *record, now int64, token string) verdict {
	switch state, _ := standing(e, now); {
	case state == api.StateNone:
		return verdictGone
	case string(e.token) != token:
		return verdictFenced
	case state.Terminal():
		return verdictConflict
	default:
		return verdictDelete
	}
}

// decideResolve decides about an operator's call, which has no token.
func decideResolve(e *record, now int64) verdict {
	switch state, _ := standing(e, now); state {
	case api.StateNone:
		return verdictGone
	case api.StateUnknown:
		return verdictRecord
	default:
		return verdictConflict
	}
}
