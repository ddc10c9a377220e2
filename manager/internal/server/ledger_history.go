package server

import (
	"encoding/json"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// The calls that return what this manager has seen lately; see ledger.History.

type changeJSON struct {
	What  string    `json:"what"`
	Late  bool      `json:"late,omitempty"`
	From  string    `json:"from,omitempty"`
	Count int       `json:"count"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

type incidentJSON struct {
	Kind      string    `json:"kind"`
	Op        string    `json:"op"`
	Key       string    `json:"key"`
	Scope     string    `json:"scope"`
	From      string    `json:"from,omitempty"`
	Sent      string    `json:"fingerprint,omitempty"`
	Recorded  string    `json:"recorded_fingerprint,omitempty"`
	OverShare bool      `json:"over_share,omitempty"`
	At        time.Time `json:"at"`
}

func incidentOf(in *ledger.Incident) *incidentJSON {
	if in == nil {
		return nil
	}
	return &incidentJSON{in.Kind.String(), in.Op.String(), in.Key, in.Scope, in.From, in.Sent, in.Recorded, in.OverShare, in.At.UTC()}
}

// answerJSON answers 200 with v.
func answerJSON(r *httpd.Request, w *httpd.Response, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		r.Error(w, err)
		return
	}
	w.JSON(200)
	w.Body = append(w.Body, body...)
}

// history answers GET /v1/ledger/entries/{key}/history.
func (h *ledgerHandlers) history(r *httpd.Request, w *httpd.Response) {
	q, err := r.QueryValues("scope")
	if err == nil {
		err = api.ValidateKey(r.Param(0))
	}
	if err == nil {
		err = api.ValidateScope(q["scope"])
	}
	if err != nil {
		r.Error(w, err)
		return
	}
	got := h.ledger.History(q["scope"], r.Param(0))
	changes := make([]changeJSON, len(got.Changes))
	for i, c := range got.Changes {
		changes[i] = changeJSON{c.What, c.Late, c.From, c.Count, c.First.UTC(), c.Last.UTC()}
	}
	outcomes := got.Outcomes
	if outcomes == nil {
		outcomes = map[string]int{}
	}
	answerJSON(r, w, struct {
		Key      string         `json:"key"`
		Scope    string         `json:"scope"`
		Since    time.Time      `json:"since"`
		Changes  []changeJSON   `json:"changes"`
		Left     int            `json:"changes_left_out"`
		Outcomes map[string]int `json:"outcomes"`
		Waited   int            `json:"waited"`
		Waiting  int            `json:"waiting"`
		Mismatch *incidentJSON  `json:"last_mismatch,omitempty"`
	}{got.Key, got.Scope, h.ledger.Since().UTC(), changes, got.Left, outcomes, got.Waited, got.Waiting, incidentOf(got.Mismatch)})
}

// incidents answers GET /v1/ledger/incidents.
func (h *ledgerHandlers) incidents(r *httpd.Request, w *httpd.Response) {
	q, err := r.QueryValues("kind", "limit")
	if err != nil {
		r.Error(w, err)
		return
	}
	kind, ok := ledger.ParseIncidentKind(q["kind"])
	if !ok {
		r.Error(w, &api.FieldError{Field: "kind", Value: httpd.Clip(q["kind"]), Allowed: "must be mismatch, fenced or full"})
		return
	}
	limit, err := limitOf(q, ledger.MaxListLimit, defaultListLimit)
	if err != nil {
		r.Error(w, err)
		return
	}
	list, total := h.ledger.Incidents(kind, limit)
	incidents := make([]*incidentJSON, len(list))
	for i := range list {
		incidents[i] = incidentOf(&list[i])
	}
	answerJSON(r, w, struct {
		Since     time.Time       `json:"since"`
		Total     uint64          `json:"total"`
		Incidents []*incidentJSON `json:"incidents"`
	}{h.ledger.Since().UTC(), total, incidents})
}

type minuteJSON struct {
	Start    time.Time `json:"start"`
	New      uint64    `json:"new"`
	Hit      uint64    `json:"hit"`
	Wait     uint64    `json:"wait"`
	Unknown  uint64    `json:"unknown"`
	Mismatch uint64    `json:"mismatch"`
	Omitted  uint64    `json:"not_recorded"`
	Refused  uint64    `json:"refused"`
	Held     uint64    `json:"held"`
}

// activity answers GET /v1/ledger/activity.
func (h *ledgerHandlers) activity(r *httpd.Request, w *httpd.Response) {
	if _, err := r.QueryValues(); err != nil {
		r.Error(w, err)
		return
	}
	c, err := h.ledger.Capacity(r.Context())
	if err != nil {
		r.Error(w, err)
		return
	}
	minutes := []minuteJSON{}
	for _, m := range h.ledger.Funnel() {
		minutes = append(minutes, minuteJSON{m.Start.UTC(), m.New, m.Hit, m.Wait, m.Unknown, m.Mismatch, m.Omitted, m.Refused, m.Held})
	}
	answerJSON(r, w, struct {
		Minutes            []minuteJSON `json:"minutes"`
		Entries            int          `json:"entries"`
		MaxEntries         int          `json:"max_entries"`
		OldestMS           int64        `json:"oldest_ms"`
		KeysPerSecond      float64      `json:"keys_per_second"`
		ScopeKeysPerSecond float64      `json:"scope_keys_per_second"`
	}{minutes, c.Entries, c.MaxEntries, c.Oldest.Milliseconds(), c.KeysPerSecond, c.ScopeKeysPerSecond})
}
