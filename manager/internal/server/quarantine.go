package server

import (
	"context"

	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/quarantine"
)

// Quarantine is the ledger's; see package quarantine.
type Quarantine interface {
	State() quarantine.State
	// End ends it, whatever it is for, and returns the state before.
	End(ctx context.Context) (was quarantine.State, err error)
}

// QuarantineRoutes show the quarantine of a ledger and end it.
func QuarantineRoutes(q Quarantine) []httpd.Route {
	return []httpd.Route{
		{Method: "GET", Path: "/v1/ledger/quarantine", Roles: readers, Handle: func(r *httpd.Request, w *httpd.Response) error {
			if _, err := r.QueryValues(); err != nil {
				return err
			}
			return answerQuarantine(w, q.State())
		}},
		{Method: "DELETE", Path: "/v1/ledger/quarantine", Roles: httpd.Admin, Handle: func(r *httpd.Request, w *httpd.Response) error {
			if _, err := r.QueryValues(); err != nil {
				return err
			}
			was, err := q.End(r.Context())
			if err != nil {
				return err
			}
			if was.Remaining > 0 {
				r.Audit("quarantine ended by an administrator: keys and ids that the store does not know are taken, and what it forgot can run again",
					"remaining_seconds", was.Remaining.Seconds(), "why", was.Why)
			}
			return answerQuarantine(w, was)
		}},
	}
}

func answerQuarantine(w *httpd.Response, s quarantine.State) error {
	q := schema.Quarantine{Remaining: s.Remaining, Why: s.Why}
	if !s.RestoredTo.IsZero() {
		q.Began = &s.RestoredTo
	}
	return answer(w, q)
}
