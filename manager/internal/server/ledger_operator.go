package server

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/journal"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
	"github.com/oncegate/oncegate/manager/internal/quarantine"
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/shard"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// parseResolution reads an operator's decision. Without a body only the status is recorded, so that duplicates learn that the
// request was executed and not with what answer.
func parseResolution(b []byte) (res ledger.Resolution, err error) {
	var in schema.Resolution
	body, err := schema.Read(b)
	if err == nil {
		err = body.Parse(&in)
	}
	res.As, _ = api.ParseState(string(in.As)) // the schema has the names
	res.TTL = in.TTL
	switch {
	case err != nil:
		return res, err
	case in.As == "":
		return res, &api.FieldError{Field: "as", Allowed: "is missing: must be committed, rejected or released"}
	case in.TTL < 0 || in.TTL > api.MaxTTL:
		most := strconv.FormatInt(api.MaxTTL.Milliseconds(), 10)
		return res, &api.FieldError{Field: "ttl_ms", Value: strconv.FormatInt(in.TTL.Milliseconds(), 10), Allowed: "must be a whole number from 1 to " + most}
	case res.As == api.StateReleased:
		return res, withoutAnswer(&in)
	}
	result, err := answerOf(&in)
	res.Result = result.AppendRaw(nil)
	return res, err
}

// withoutAnswer refuses what does not go with as released.
func withoutAnswer(in *schema.Resolution) error {
	for _, f := range []struct {
		name  string
		given bool
	}{{"status", in.Status != 0}, {"headers", in.Headers != nil}, {"body", in.Body != nil}} {
		if f.given {
			return &api.FieldError{Field: f.name, Allowed: "does not go with as released: nothing ran, so there is no answer"}
		}
	}
	if in.TTL != 0 {
		return &api.FieldError{Field: "ttl_ms", Allowed: "does not go with as released: nothing is remembered"}
	}
	return nil
}

// answerOf is the answer that duplicates get.
func answerOf(in *schema.Resolution) (r api.Result, err error) {
	const allowedStatus = "must be 200 to 599" // a status below is of no final answer
	switch {
	case in.Status == 0:
		return r, &api.FieldError{Field: "status", Allowed: "is missing: " + allowedStatus}
	case in.Status < 200 || in.Status > api.MaxStatus:
		return r, &api.FieldError{Field: "status", Value: strconv.Itoa(in.Status), Allowed: allowedStatus}
	case in.Headers != nil && in.Body == nil:
		return r, &api.FieldError{Field: "headers", Allowed: "need a body, which may be empty"}
	}
	r = api.Result{Status: in.Status, Headers: in.Headers, Body: in.Body, BodyOmitted: in.Body == nil}
	err = r.Validate()
	var field *api.FieldError
	if errors.As(err, &field) {
		field.Field = strings.TrimPrefix(field.Field, "result.")
	}
	return r, err
}

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

func (h *ledgerHandlers) stats(r *httpd.Request, w *httpd.Response) error {
	s, err := h.ledger.Stats(r.Context())
	if err != nil {
		return err
	}
	all := statsOf(&s)
	all.LedgerIdentity, all.CommittedTTL, all.Durabilities = identity(h.me), h.ledger.OutcomeTTL(api.StateCommitted, 0), h.home.Durabilities()
	return answer(w, all)
}

// identity is who the ledger is; it is empty if the ledger has no identity.
func identity(me *shard.Keeper) schema.LedgerIdentity {
	if me == nil {
		return schema.LedgerIdentity{}
	}
	id := me.Identity()
	return schema.LedgerIdentity{LedgerID: id.ID, Name: id.Name, Shards: id.Shards, Version: id.Version}
}

func statsOf(s *ledger.Stats) schema.LedgerStats {
	all := schema.LedgerStats{
		Entries:    schema.EntryCounts(s.Counts),
		MaxEntries: s.MaxEntries, MaxResultBytes: s.MaxResultBytes, QuarantineFor: s.Quarantine, Waiters: s.Waiters, Calls: map[string]map[string]uint64{},
		FencedOutcomes: s.FencedOutcomes(), Expired: s.Expired, Lapsed: s.Lapsed, Deleted: s.Deleted, AnswersDropped: s.WithoutAnswer,
		WaitsRefused: s.WaitsRefused, WaitsTimedOut: s.WaitsTimedOut, SweepErrors: s.SweepErrors, Batches: s.Batches, BatchItems: s.BatchItems,
	}
	if r := s.Replication; r != nil {
		all.SyncStandbys = &schema.SyncStandbys{Connected: r.Connected, Required: r.Required}
	}
	if s.Bytes >= 0 {
		all.Bytes, all.MaxBytes = &s.Bytes, &s.MaxBytes
	}
	s.Each(func(op, outcome string, n uint64) {
		if all.Calls[op] == nil {
			all.Calls[op] = map[string]uint64{}
		}
		all.Calls[op][outcome] = n
	})
	return all
}

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

// RecordCheck reads a record as unread.Finder's Check does, if it is of a collection that the check knows.
type RecordCheck func(tx store.Tx, c store.Collection, key string) (known bool, err error)

// UnreadableRoutes are operators' calls about records that cannot be read. The ledger, the queue and the schedules must be on
// st. Records that more knows are listed
// once they were met, and are not deleted by themselves.
func UnreadableRoutes(st store.Store, l *ledger.Ledger, q *jobs.Queue, s *schedules.Schedules, t *unread.Tracker, more ...RecordCheck) []httpd.Route {
	h := &unreadableHandlers{ledger: l, queue: q, schedules: s, finder: unread.Finder{
		Store: st, Tracker: t, Places: slices.Concat(ledger.Places(), jobs.Places(), schedules.Places()),
		Check: func(tx store.Tx, c store.Collection, key string) error {
			switch c {
			case ledger.Collection:
				return ledger.CheckStored(tx, key)
			case schedules.Collection:
				return schedules.CheckStored(tx, key)
			}
			for _, check := range more {
				if known, err := check(tx, c, key); known {
					return err
				}
			}
			return jobs.CheckStored(tx, c, key)
		},
	}}
	return []httpd.Route{
		{Method: "GET", Path: "/v1/unreadable", Roles: readers, Handle: h.list},
		{Method: "DELETE", Path: "/v1/unreadable/{collection}/{id}", Roles: httpd.Admin, Handle: h.delete},
	}
}

type unreadableHandlers struct {
	ledger    *ledger.Ledger
	queue     *jobs.Queue
	schedules *schedules.Schedules
	finder    unread.Finder
}

func (h *unreadableHandlers) list(r *httpd.Request, w *httpd.Response) error {
	q, err := r.QueryValues("limit", "cursor")
	if err != nil {
		return err
	}
	limit, err := limitOf(q, views.MaxLimit, defaultListLimit)
	if err != nil {
		return err
	}
	page, next, err := h.finder.Find(r.Context(), limit, q["cursor"])
	if errors.Is(err, unread.ErrCursor) {
		err = &api.FieldError{Field: "cursor", Value: httpd.Clip(q["cursor"]), Allowed: "must be the cursor of the page before"}
	}
	if err != nil {
		return err
	}
	records := convert(page, func(u **store.UnreadableError) schema.UnreadableRecord { return recordOf(*u) })
	return answer(w, schema.UnreadablePage{Records: records, Cursor: next})
}

// recordOf is a record: its id for calls, and what people can read.
func recordOf(u *store.UnreadableError) schema.UnreadableRecord {
	id := base64.RawURLEncoding.EncodeToString([]byte(u.Key))
	return schema.UnreadableRecord{Collection: string(u.Collection), ID: id, Key: u.Key, Reason: u.Reason}
}

func (h *unreadableHandlers) delete(r *httpd.Request, w *httpd.Response) error {
	c := store.Collection(r.Param(0))
	key, err := base64.RawURLEncoding.DecodeString(r.Param(1))
	if err != nil || store.CheckKey("any", string(key)) != nil {
		return &api.FieldError{Field: "id", Value: httpd.Clip(r.Param(1)), Allowed: "must be the id of a record, as the list shows it"}
	}
	var u *store.UnreadableError
	switch {
	case c == ledger.Collection:
		u, err = h.ledger.DeleteUnreadable(r.Context(), string(key))
	case jobs.Owns(c):
		u, err = h.queue.DeleteUnreadable(r.Context(), c, string(key))
	case c == schedules.Collection:
		u, err = h.schedules.DeleteUnreadable(r.Context(), string(key))
	default:
		err = &api.FieldError{Field: "collection", Value: httpd.Clip(string(c)), Allowed: "must be one of the ledger, the queue or the schedules; no record of a log is deleted by itself"}
	}
	if errors.Is(err, unread.ErrReadable) {
		detail := "the record can be read; it was not deleted"
		if errors.As(err, &u) {
			detail = "other managers can read the record; it was not deleted: " + u.Reason
		}
		err = &httpd.Refusal{P: api.Problem{
			Status: 409, Code: api.CodeConflict, Title: "Record readable", Detail: detail,
		}}
	}
	if err != nil {
		return err
	}
	r.Audit("unreadable record deleted by an administrator", "collection", string(u.Collection), "key", u.Key, "reason", u.Reason)
	return answer(w, recordOf(u))
}
