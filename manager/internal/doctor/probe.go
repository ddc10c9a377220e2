package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
)

const checkProbe = "probe"

// Probe is a request that the doctor sends through a gate, twice under one new key. The upstream runs it once.
type Probe struct {
	// URL is what to POST to; empty: no request is sent.
	URL string
	// Header has what the request needs besides the key, such as the caller's credential.
	Header http.Header
}

// probe sends a request with a new key, and its retry, and checks the answers to both.
func (t Target) probe(ctx context.Context, r *report, gates []gate) {
	if t.Probe.URL == "" {
		return
	}
	header := t.Probe.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	name := "Idempotency-Key"
	if len(gates) > 0 {
		name = cmp.Or(gates[0].rules()[0].at("key").text("header"), name)
	}
	header.Set(name, newUUID())
	q := request{method: http.MethodPost, url: t.Probe.URL, body: "{}", header: header, noRedirect: true}
	first, err := t.call(ctx, q)
	if err != nil {
		r.fail(checkProbe, oneLine(err.Error()), "correct --probe: it is a URL that leads through the gate")
		return
	}
	if !executed(r, first) {
		return
	}
	second, err := t.call(ctx, q)
	switch status := second.header.Get("Idempotency-Status"); {
	case err != nil:
		r.fail(checkProbe, "the retry got no answer: "+oneLine(err.Error()), "see Envoy's log")
	case status == "replayed":
		r.ok(checkProbe, "the request ran (status %d), and its retry got the recorded answer", first.status)
	case status == "executed" && (first.status == 408 || first.status == 425 || first.status == 429 || first.status == 503):
		r.warn(checkProbe, fmt.Sprintf("the upstream asked for a retry (status %d), so the retry ran as well", first.status), "name a URL whose work succeeds")
	case status == "executed":
		r.fail(checkProbe, fmt.Sprintf("the retry ran again (statuses %d and %d)", first.status, second.status), `look at "scope" and "outcomes" of the gate, and whether the managers' cluster is one ledger`)
	default:
		r.fail(checkProbe, fmt.Sprintf("the retry got %d %s", second.status, oneLine(cmp.Or(status, "without a word of the gate"))), `see "Access logs" in docs/reference/METRICS.md`)
	}
}

// executed reports whether the first request ran under a reservation. Otherwise it says why not.
func executed(r *report, a answer) bool {
	switch status := a.header.Get("Idempotency-Status"); status {
	case "executed":
		return true
	case "":
		r.fail(checkProbe, fmt.Sprintf("no gate protected the request (status %d)", a.status), "look whether the URL leads to the gate's listener, and whether a rule of \"match\" takes a POST to its path")
	case "bypassed":
		r.fail(checkProbe, fmt.Sprintf("the request passed without protection (status %d)", a.status), `look at the managers ("failure_mode": "open") and at "unsupported"`)
	case "not-sent", "unknown":
		r.fail(checkProbe, fmt.Sprintf("Envoy answered %d (%s)", a.status, status), "look at the routes, at the upstream, and at the inner listener")
	case "scope-ambiguous":
		r.warn(checkProbe, "the request lacks what identifies its caller, and got 400 scope-ambiguous", "give a caller's credential with --probe-header")
	default:
		var problem struct{ Detail string }
		_ = json.Unmarshal(a.body, &problem) // a gate may be configured to answer in another form
		r.fail(checkProbe, fmt.Sprintf("the gate answered %d %s: %s", a.status, oneLine(status), oneLine(cmp.Or(problem.Detail, "no details"))), `see "Access logs" in docs/reference/METRICS.md`)
	}
	return false
}

// newUUID is a key that no request has had.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
