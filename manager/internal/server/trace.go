package server

import (
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
)

// began is when what a span shows began; zero, without a look at the clock, when the request makes no spans.
func began(r *httpd.Request) (start time.Time) {
	if r.Traced() {
		start = time.Now()
	}
	return start
}

// ledgerSpan makes the span of a call to the ledger. Neither the key nor the scope is in it: they may be secrets.
func ledgerSpan(r *httpd.Request, op string, start time.Time, state api.State, err error) {
	if r.Traced() {
		r.Span("ledger "+op, start, failed(err), ledgerAttributes(op, state, err)...)
	}
}

// ledgerAttributes say what a call was and how it ended.
func ledgerAttributes(op string, state api.State, err error) []attribute.KeyValue {
	end := attribute.String("oncegate.ledger.state", state.String())
	if err != nil {
		end = attribute.String("error.type", string(ProblemOf(err).Code))
	}
	return []attribute.KeyValue{attribute.String("oncegate.ledger.operation", op), end}
}

// failed reports whether the manager, not the caller, is to blame.
func failed(err error) bool { return err != nil && ProblemOf(err).Status >= 500 }
