package server

import (
	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger/journal"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
)

// The calls that return what this manager has seen lately; see package journal.

func incidentOf(in *journal.Incident) schema.Incident {
	return schema.Incident{
		Kind: in.Kind.String(), Op: in.Op.String(), Key: in.Key, Scope: in.Scope, From: in.From,
		Sent: in.Sent, Recorded: in.Recorded, OverShare: in.OverShare, At: in.At,
	}
}

// history answers GET /v1/ledger/entries/{key}/history.
func (h *ledgerHandlers) history(r *httpd.Request, w *httpd.Response) error {
	q, err := r.QueryValues("scope")
	if err == nil {
		err = api.ValidateKey(r.Param(0))
	}
	if err == nil {
		err = api.ValidateScope(q["scope"])
	}
	if err != nil {
		return err
	}
	got := h.journal.History(q["scope"], r.Param(0))
	seen := schema.EntryHistory{
		Key: got.Key, Scope: got.Scope, Since: h.journal.Since(), Changes: make([]schema.EntryChange, len(got.Changes)), LeftOut: got.Left,
		Outcomes: got.Outcomes, Waited: got.Waited, Waiting: h.ledger.Waiting(got.Scope, got.Key),
	}
	for i, c := range got.Changes {
		seen.Changes[i] = schema.EntryChange(c)
	}
	if got.Mismatch != nil {
		last := incidentOf(got.Mismatch)
		seen.Mismatch = &last
	}
	return answer(w, seen)
}

// incidents answers GET /v1/ledger/incidents.
func (h *ledgerHandlers) incidents(r *httpd.Request, w *httpd.Response) error {
	q, err := r.QueryValues("kind", "limit")
	if err != nil {
		return err
	}
	kind, ok := journal.ParseIncidentKind(q["kind"])
	if !ok {
		return &api.FieldError{Field: "kind", Value: httpd.Clip(q["kind"]), Allowed: "must be mismatch, fenced or full"}
	}
	limit, err := limitOf(q, views.MaxLimit, defaultListLimit)
	if err != nil {
		return err
	}
	list, total := h.journal.Incidents(kind, limit)
	return answer(w, schema.Incidents{Since: h.journal.Since(), Total: total, Incidents: convert(list, incidentOf)})
}

// activity answers GET /v1/ledger/activity.
func (h *ledgerHandlers) activity(r *httpd.Request, w *httpd.Response) error {
	if _, err := r.QueryValues(); err != nil {
		return err
	}
	c, err := views.CapacityOf(r.Context(), h.ledger)
	if err != nil {
		return err
	}
	var minutes []schema.Minute
	for _, m := range h.ledger.Funnel() {
		minutes = append(minutes, schema.Minute{
			Start: m.Start, New: m.New, Hit: m.Hit, Wait: m.Wait, Unknown: m.Unknown, Mismatch: m.Mismatch, Omitted: m.Omitted, Refused: m.Refused, Held: m.Held,
		})
	}
	return answer(w, schema.Activity{
		Minutes: minutes, Entries: c.Total(), MaxEntries: c.MaxEntries, Oldest: c.Oldest, KeysPerSecond: c.KeysPerSecond, ScopeKeysPerSecond: c.ScopeKeysPerSecond,
	})
}
