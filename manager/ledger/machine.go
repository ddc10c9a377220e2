package ledger

import "github.com/oncegate/oncegate/manager/api"

// The state machine: pure functions from what is found and what is asked to
// what is to be done. See the table in the package documentation.

// verdict is what the state machine says about a call.
type verdict uint8

const (
	// refusals
	verdictMismatch verdict = iota // another fingerprint
	verdictFenced                  // another token
	verdictConflict                // same token, other outcome

	// answers that change nothing
	verdictOwn     // reserve: this token holds the entry
	verdictPending // reserve: another token holds it
	verdictFinal   // reserve: the outcome is recorded
	verdictSame    // commit, reject: recorded already, by this token
	verdictGone    // release: nothing is held

	// changes
	verdictInsert // reserve: nothing is there, insert PENDING
	verdictRecord // commit, reject: end this token's reservation
	verdictLate   // commit, reject: the reservation is gone, record anyway
	verdictDelete // release: give this token's reservation back
)

// live reports whether an entry is there at now (Unix milliseconds).
func live(e *record, now int64) bool { return e != nil && now < e.expires }

// mismatch compares fingerprints when both sides give one.
func mismatch(e *record, fingerprint string) bool {
	return fingerprint != "" && len(e.fingerprint) != 0 && string(e.fingerprint) != fingerprint
}

func decideReserve(e *record, now int64, token, fingerprint string) verdict {
	switch {
	case !live(e, now):
		return verdictInsert
	case mismatch(e, fingerprint):
		return verdictMismatch
	case e.state.Terminal():
		return verdictFinal
	case string(e.token) == token:
		return verdictOwn
	default:
		return verdictPending
	}
}

func decideFinish(e *record, now int64, outcome api.State, token, fingerprint string) verdict {
	switch {
	case !live(e, now):
		return verdictLate
	case string(e.token) != token:
		return verdictFenced
	case e.state == outcome:
		return verdictSame
	case e.state.Terminal():
		return verdictConflict
	case mismatch(e, fingerprint):
		return verdictMismatch
	default:
		return verdictRecord
	}
}

func decideRelease(e *record, now int64, token string) verdict {
	switch {
	case !live(e, now):
		return verdictGone
	case string(e.token) != token:
		return verdictFenced
	case e.state.Terminal():
		return verdictConflict
	default:
		return verdictDelete
	}
}
