package gate

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// An outcome that the ledger returned to a duplicate answers others that have no other part of a fingerprint. About the rest the
// ledger decides, where there is one.
func TestLearnedOutcomeAnswersWhatTheLedgerCompared(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	id := uint32(0)
	send := func(p *Plugin, length string) (status func() int) {
		id++
		s, f := h.open(p, id, "k")
		if length != "" {
			f.request = append(f.request, [2]string{headerContentLength, length})
		}
		s.OnRequestHeaders(false)
		h.ready(p)
		return func() int {
			h.Select(s.id)
			s.OnRequestBody(0, true)
			return f.replies[0].status
		}
	}
	known := api.ReserveReply{State: api.StateCommitted, ExpiresIn: time.Minute, Result: api.Result{Status: 201}}
	status := send(p, "4")
	h.respond(p, 0, "200", known)
	expect(t, "learned from the ledger", status(), 201)
	expect(t, "from the cache", send(p, "4")(), 201)
	expect(t, "calls", len(h.calls), 1)

	status = send(p, "5")
	expect(t, "calls", len(h.calls), 2)
	h.refuseWith(p, 1, "422", api.CodeFingerprintMismatch)
	expect(t, "another length", status(), 422)
	expect(t, "chunked", send(p, "")(), 201) // it has no part that the ledger has not compared
	expect(t, "calls", len(h.calls), 2)

	// An update of the configuration has taken the ledger away, so the entry is all that there is.
	p = started(t, h, `{"ledger": "none"}`)
	expect(t, "without a ledger", send(p, "5")(), 422)
	expect(t, "without a ledger, chunked", send(p, "")(), 201)
	expect(t, "calls", len(h.calls), 2)
}
