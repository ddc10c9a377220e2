package config

// Outcome says what an upstream's answer means for the entry.
type Outcome uint8

// The outcomes.
const (
	// OutcomeNone: not a final status (below 200 or above 599); it decides nothing.
	OutcomeNone Outcome = iota
	// OutcomeCommit: the work ran; the answer is recorded.
	OutcomeCommit
	// OutcomeReject: the work was refused; the answer is recorded for a shorter time.
	OutcomeReject
	// OutcomeRelease: nothing is recorded and the key is free again.
	OutcomeRelease
)

// Outcomes maps final statuses to outcomes.
type Outcomes struct {
	plain, retryAfter [400]Outcome // by status-200
}

// Classify returns the outcome of an answer that came from the upstream.
// retryAfter tells whether it carries a Retry-After header. A code beats its
// class, and a code with "+retry-after" beats the plain code.
func (o *Outcomes) Classify(status int, retryAfter bool) Outcome {
	if status < 200 || status > 599 {
		return OutcomeNone
	}
	if retryAfter {
		return o.retryAfter[status-200]
	}
	return o.plain[status-200]
}
