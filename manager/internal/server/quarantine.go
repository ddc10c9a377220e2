package server

import (
	"context"
	"time"

	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/quarantine"
)

// Quarantine is the ledger's; see package quarantine.
type Quarantine interface {
	State() quarantine.State
	// End ends it, whatever it is for, and returns the state before.
	End(ctx context.Context) (was quarantine.State, err error)
}

// QuarantineRoutes show the quarantine of a ledger and end it. ended is told what an administrator ended, and from where.
func QuarantineRoutes(q Quarantine, ended func(was quarantine.State, remote string)) []httpd.Route {
	return []httpd.Route{
		{Method: "GET", Path: "/v1/ledger/quarantine", Roles: readers, Handle: func(r *httpd.Request, w *httpd.Response) {
			if _, err := r.QueryValues(); err != nil {
				r.Error(w, err)
				return
			}
			answerQuarantine(w, q.State())
		}},
		{Method: "DELETE", Path: "/v1/ledger/quarantine", Handle: func(r *httpd.Request, w *httpd.Response) {
			if _, err := r.QueryValues(); err != nil {
				r.Error(w, err)
				return
			}
			was, err := q.End(r.Context())
			if err != nil {
				r.Error(w, err)
				return
			}
			if was.Remaining > 0 {
				ended(was, r.Remote())
			}
			answerQuarantine(w, was)
		}},
	}
}

func answerQuarantine(w *httpd.Response, s quarantine.State) {
	w.JSON(200)
	o := jsonObject{b: w.Body}
	o.open()
	o.num("remaining_ms", s.Remaining.Milliseconds())
	if !s.RestoredTo.IsZero() {
		o.str("began", s.RestoredTo.UTC().Format(time.RFC3339Nano))
	}
	o.list("why", s.Why)
	o.close()
	w.Body = o.b
}
