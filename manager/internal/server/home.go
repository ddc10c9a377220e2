package server

import (
	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// boundReply sets for how long a gate may keep the outcome that answers a call; 0 for one that the gate itself reports.
func (h *ledgerHandlers) boundReply(form httpd.Form, it *ledger.Item) {
	if form != httpd.FormRaw || !it.Reply.State.Terminal() {
		return
	}
	if it.Op == ledger.OpCommit || it.Op == ledger.OpReject {
		// Without a TTL of its own the gate does not know how long the outcome lasts.
		if it.Reply.ExpiresIn = 0; it.Finish.TTL == 0 {
			it.Reply.ExpiresIn = h.ledger.OutcomeTTL(it.Reply.State, 0)
		}
	}
	if most := h.home.CacheFor(); most != 0 && (it.Reply.ExpiresIn == 0 || it.Reply.ExpiresIn > most) {
		it.Reply.ExpiresIn = most
	}
}

// atHome makes a call of another data centre, if this one is the key's home.
func (h *ledgerHandlers) atHome(r *httpd.Request, w *httpd.Response) error {
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
		return err
	}
	return at.call(r, w, op)
}
