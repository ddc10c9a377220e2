package config

import (
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
)

// Outcome says what an upstream's answer means for the entry.
type Outcome uint8

// The outcomes.
const (
	// OutcomeNone: the status is not final (below 200) and decides nothing.
	OutcomeNone Outcome = iota
	// OutcomeCommit: the work ran; the answer is recorded.
	OutcomeCommit
	// OutcomeReject: the work was refused; the answer is recorded for a shorter
	// time.
	OutcomeReject
	// OutcomeRelease: nothing is recorded and the key is free again.
	OutcomeRelease
	// OutcomeHold: the answer leaves the outcome open. The key stays taken as for a request
	// whose outcome is unknown.
	OutcomeHold
)

// Outcomes maps final statuses to outcomes. The zero value maps everything to
// OutcomeNone.
type Outcomes struct {
	terms []term
}

// term is one element of a list: which answers it covers and what they mean.
type term struct {
	code       int  // 200 to 599, 0 for a whole class
	class      int  // 2 to 5
	retryAfter bool // only answers with Retry-After
	outcome    Outcome
}

// same reports whether two terms cover the same answers.
func (t term) same(o term) bool {
	return t.code == o.code && t.class == o.class && t.retryAfter == o.retryAfter
}

// text is the term as configured.
func (t term) text() string {
	s := string([]byte{byte('0' + t.class), 'x', 'x'})
	if t.code != 0 {
		s = strconv.Itoa(t.code)
	}
	if t.retryAfter {
		s += retryAfterSuffix
	}
	return s
}

// rank orders terms: a code beats its class, and a term with "+retry-after" beats
// the same term without it.
func (t term) rank() int {
	rank := 1
	if t.code != 0 {
		rank += 2
	}
	if t.retryAfter {
		rank++
	}
	return rank
}

// Outcome returns the outcome of an answer that came from the upstream. said is the value of
// the outcome header. It decides if it names an outcome and the answer is final; otherwise the
// status decides.
func (t *Route) Outcome(status int, retryAfter bool, said string) Outcome {
	o := t.Outcomes.Classify(status, retryAfter)
	if t.OutcomeHeader == "" || o == OutcomeNone {
		return o
	}
	switch said {
	case "commit":
		return OutcomeCommit
	case "reject":
		return OutcomeReject
	case "release":
		return OutcomeRelease
	case "hold":
		return OutcomeHold
	}
	return o
}

// Classify returns the outcome that a status has.
// retryAfter reports whether it carries a Retry-After header.
func (o *Outcomes) Classify(status int, retryAfter bool) Outcome {
	if status < 200 || status > api.MaxStatus {
		return OutcomeNone
	}
	class := min(status/100, 5) // a status that nothing defines counts as 5xx
	best, outcome := 0, OutcomeNone
	for _, t := range o.terms {
		if t.class != class || (t.code != 0 && t.code != status) || (t.retryAfter && !retryAfter) {
			continue
		}
		if rank := t.rank(); rank > best {
			best, outcome = rank, t.outcome
		}
	}
	return outcome
}

// defaultOutcomes returns the default outcomes. The first answer counts, also if it is
// a 500. Refusals are remembered for a shorter time. The key is free again if upstream asks for a retry, and after
// answers about other preconditions (412, 428) or for another server (421): the same request may succeed next.
func defaultOutcomes() Outcomes {
	return Outcomes{terms: []term{
		{class: 2, outcome: OutcomeCommit},
		{class: 3, outcome: OutcomeCommit},
		{class: 5, outcome: OutcomeCommit},
		{class: 4, outcome: OutcomeReject},
		{class: 4, code: 408, outcome: OutcomeRelease},
		{class: 4, code: 412, outcome: OutcomeRelease},
		{class: 4, code: 421, outcome: OutcomeRelease},
		{class: 4, code: 425, outcome: OutcomeRelease},
		{class: 4, code: 428, outcome: OutcomeRelease},
		{class: 4, code: 429, outcome: OutcomeRelease},
		{class: 5, code: 503, retryAfter: true, outcome: OutcomeRelease},
	}}
}

const (
	retryAfterSuffix = "+retry-after"
	maxTerms         = 64
	termAllowed      = `a class ("2xx" to "5xx") or a code ("200" to "599"), each with "` + retryAfterSuffix + `" for answers that carry the header`
)

func parseTerm(s string) (t term, ok bool) {
	if n := len(s) - len(retryAfterSuffix); n > 0 && s[n:] == retryAfterSuffix {
		t.retryAfter = true
		s = s[:n]
	}
	if len(s) != 3 || s[0] < '2' || s[0] > '5' {
		return t, false
	}
	t.class = int(s[0] - '0')
	if s[1:] == "xx" {
		return t, true
	}
	if s[1] < '0' || s[1] > '9' || s[2] < '0' || s[2] > '9' {
		return t, false
	}
	t.code = t.class*100 + int(s[1]-'0')*10 + int(s[2]-'0')
	return t, true
}

// read merges the given lists into the inherited terms. A given list replaces
// the inherited list of its outcome. Its terms are removed from the inherited lists
// of other outcomes. A code or class without "+retry-after" removes both of its
// forms.
func (o *Outcomes) read(r *reader, path string, v gjson.Result) {
	var given []term
	var replaced [OutcomeHold + 1]bool
	list := func(name string, outcome Outcome) field {
		return field{name, func(path string, v gjson.Result) {
			replaced[outcome] = true
			r.list(path, v, 0, maxTerms, "classes and codes", func(path string, v gjson.Result) {
				var t term
				r.text(path, v, termAllowed, func(s string) (ok bool) {
					t, ok = parseTerm(s)
					return ok
				})
				t.outcome = outcome
				for _, have := range given {
					if have.same(t) {
						r.fail(path, show(v.Raw)+" is listed twice; allowed: once, in one list")
					}
				}
				given = append(given, t)
			})
		}}
	}
	r.object(path, v, []field{
		list("commit", OutcomeCommit),
		list("reject", OutcomeReject),
		list("release", OutcomeRelease),
		list("hold", OutcomeHold),
	})
	for _, t := range o.terms {
		if replaced[t.outcome] {
			continue
		}
		overridden := false
		for _, g := range given {
			plain := t
			plain.retryAfter = false
			overridden = overridden || g.same(t) || g.same(plain)
		}
		if !overridden {
			given = append(given, t)
		}
	}
	o.terms = given
}

// check refuses outcomes that leave out a final status.
func (o *Outcomes) check(r *reader, path string) {
	for class := 2; class <= 5; class++ {
		found := false
		for _, t := range o.terms {
			found = found || t.same(term{class: class})
		}
		if !found {
			name := string([]byte{byte('0' + class), 'x', 'x'})
			r.fail(path, `"`+name+`" is in no list; allowed: each of "2xx", "3xx", "4xx" and "5xx" in one of commit, reject, release and hold`)
		}
	}
}
