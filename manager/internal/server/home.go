package server

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
)

// cacheable returns how long a gate may cache an outcome with this TTL; 0 for an outcome that the gate itself reports.
func (h *ledgerHandlers) cacheable(form httpd.Form, state api.State, lasts time.Duration) time.Duration {
	most := h.home.CacheFor()
	switch {
	case most == 0 || form != httpd.FormRaw || !state.Terminal():
		return lasts
	case lasts == 0:
		return most
	default:
		return min(lasts, most)
	}
}

// untold returns how long an outcome lasts that a gate reports without a TTL, which therefore does not know it; else 0.
func (h *ledgerHandlers) untold(form httpd.Form, outcome api.State, asked time.Duration) time.Duration {
	if form != httpd.FormRaw || asked != 0 {
		return 0
	}
	return h.ledger.OutcomeTTL(outcome, 0)
}

// atHome makes a call of another data centre, if this one is the key's home.
func (h *ledgerHandlers) atHome(r *httpd.Request, w *httpd.Response) {
	op, ok := api.ParseOp(r.Param(0))
	q, err := r.QueryValues("home", "from", "of")
	at := *h
	switch {
	case err != nil:
	case !ok:
		err = &api.FieldError{Field: "call", Value: httpd.Clip(r.Param(0)), Allowed: "must be reserve, commit, reject, release, renew or unknown"}
	default:
		at.home, err = h.home.Visit(op, q["from"], q["home"], q["of"])
	}
	if err != nil {
		r.Error(w, err)
		return
	}
	switch op {
	case api.OpReserve:
		at.reserve(r, w)
	case api.OpRenew:
		at.ask(r, w, at.home.Renew)
	case api.OpUnknown:
		at.ask(r, w, at.home.Unknown)
	case api.OpRelease:
		at.release(r, w)
	case api.OpReject:
		at.finish(r, w, api.StateRejected)
	default:
		at.finish(r, w, api.StateCommitted)
	}
}
