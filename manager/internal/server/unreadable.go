package server

import (
	"encoding/base64"
	"errors"
	"slices"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

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
