package server

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/feed"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
	"github.com/oncegate/oncegate/manager/internal/peers"
)

// maxFeedWait bounds how long a call for changes is held.
const maxFeedWait = time.Minute

// Lists sends other data centres this one's list of them, and keeps theirs; see package home.
type Lists interface {
	Said() string
	Meet(said string)
	// Take returns why this data centre is the home of no new keys.
	Take() error
}

// OriginRoutes are the calls of other data centres, and of operators about them. p is nil without peers, and lists
// without an origin.
func OriginRoutes(l *ledger.Ledger, f *feed.Feed, p *peers.Puller, lists Lists) []httpd.Route {
	h := &originHandlers{ledger: l, feed: f, puller: p, lists: lists}
	if l != nil {
		h.origin = l.Options().Origin
	}
	return []httpd.Route{
		{Method: "GET", Path: "/v1/ledger/changes", Roles: httpd.Peer | httpd.Plain, Handle: h.call(h.changes)},
		{Method: "GET", Path: "/v1/ledger/digests", Roles: httpd.Peer | httpd.Plain, Handle: h.call(h.digests)},
		{Method: "GET", Path: "/v1/ledger/conflicts", Roles: readers | httpd.Peer, Handle: h.call(h.conflicts)},
		{Method: "GET", Path: "/v1/peers", Roles: readers, Handle: h.call(h.peers)},
	}
}

type originHandlers struct {
	ledger *ledger.Ledger
	feed   *feed.Feed
	origin string
	puller *peers.Puller
	lists  Lists
}

// call is a handler that answers the feed's errors.
func (h *originHandlers) call(handle httpd.Handler) httpd.Handler {
	return func(r *httpd.Request, w *httpd.Response) error {
		err := handle(r, w)
		var p *api.Problem
		switch {
		case errors.Is(err, feed.ErrNoOrigin) && h.origin == "":
			p = &api.Problem{Status: 404, Code: api.CodeNotFound, Title: "Not found", Detail: "this ledger has no origin, and so no change feed: its manager needs --origin"}
		case errors.Is(err, feed.ErrNoOrigin):
			p = &api.Problem{Status: 404, Code: api.CodeNotFound, Title: "Not found", Detail: fmt.Sprintf("the origin of this ledger is %q; it has changes of no other", h.origin)}
		case errors.Is(err, feed.ErrCursorGone):
			p = &api.Problem{Status: 410, Code: api.CodeCursorGone, Title: "Cursor too old", Detail: "the change feed does not go back to this cursor; begin again without one, which gives a full copy"}
		}
		if p != nil {
			return &httpd.Refusal{P: *p}
		}
		return err
	}
}

func badCursor(name, value string) error {
	return &api.FieldError{Field: name, Value: httpd.Clip(value), Allowed: "must be a cursor that this call returned, or empty for the beginning"}
}

// originOf is the origin that a call names, or this ledger's.
func (h *originHandlers) originOf(q map[string]string) (string, error) {
	origin := cmp.Or(q["origin"], h.origin)
	if h.origin == "" {
		return "", feed.ErrNoOrigin
	}
	if err := peers.CheckName(origin); err != nil {
		return "", &api.FieldError{Field: "origin", Value: httpd.Clip(origin), Allowed: err.Error()}
	}
	return origin, nil
}

func (h *originHandlers) changes(r *httpd.Request, w *httpd.Response) error {
	q, err := r.QueryValues("origin", "after", "wait_ms", "limit", "from_ms", "to_ms")
	if err != nil {
		return err
	}
	if h.lists != nil {
		h.lists.Meet(r.Header(api.HeaderDataCentres))
		w.SetHeader(api.HeaderDataCentres, h.lists.Said())
	}
	if h.puller != nil {
		from, _, _ := strings.Cut(r.Header(api.HeaderDataCentres), "=")
		if known, err := h.puller.Known(r.Context(), from, r.Header(api.HeaderPeerLedger)); err != nil {
			return err
		} else if known != "" {
			w.SetHeader(api.HeaderKnownLedger, known)
		}
	}
	const latest = int64(1) << 46
	wait, err := whole(q, "wait_ms", 0, maxFeedWait.Milliseconds(), 0)
	limit, limitErr := whole(q, "limit", 1, feed.MaxLimit, defaultListLimit)
	from, fromErr := whole(q, "from_ms", 0, latest, 0)
	to, toErr := whole(q, "to_ms", 0, latest, latest)
	if err := errors.Join(err, limitErr, fromErr, toErr); err != nil {
		return err
	}
	if to < from {
		return &api.FieldError{Field: "to_ms", Value: q["to_ms"], Allowed: "must not be less than from_ms"}
	}
	origin, err := h.originOf(q)
	if err != nil {
		return err
	}
	var f feed.Page
	if q["from_ms"] != "" || q["to_ms"] != "" {
		f, err = h.feed.Outcomes(r.Context(), origin, from, to, q["after"], int(limit))
	} else {
		f, err = h.feed.Next(r.Context(), origin, q["after"], int(limit), time.Duration(wait)*time.Millisecond, r.Hold)
	}
	if errors.Is(err, ledger.ErrCursor) {
		return badCursor("after", q["after"])
	}
	if err != nil {
		return err
	}
	w.JSON(200)
	w.Body, err = peers.AppendFeed(w.Body, &f)
	return err
}

func (h *originHandlers) digests(r *httpd.Request, w *httpd.Response) error {
	q, err := r.QueryValues("origin", "span_ms")
	if err != nil {
		return err
	}
	span, err := whole(q, "span_ms", feed.LeastSpan, 1<<46, 0)
	if err != nil {
		return err
	}
	origin, err := h.originOf(q)
	if err != nil {
		return err
	}
	digests, span, err := h.feed.Digests(r.Context(), origin, span)
	if err != nil {
		return err
	}
	w.JSON(200)
	w.Body = peers.AppendDigests(w.Body, origin, span, digests)
	return nil
}

func (h *originHandlers) conflicts(r *httpd.Request, w *httpd.Response) error {
	q, err := r.QueryValues("limit", "cursor", "key", "scope")
	if err != nil {
		return err
	}
	limit, err := whole(q, "limit", 1, views.MaxLimit, defaultListLimit)
	if err != nil {
		return err
	}
	var list []views.Conflict
	next := ""
	if q["key"] != "" || q["scope"] != "" {
		var c *views.Conflict
		if c, err = views.ConflictOf(r.Context(), h.ledger, q["scope"], q["key"]); c != nil {
			list = []views.Conflict{*c}
		}
	} else {
		list, next, err = views.Conflicts(r.Context(), h.ledger, int(limit), q["cursor"])
	}
	if errors.Is(err, ledger.ErrCursor) {
		return badCursor("cursor", q["cursor"])
	}
	if err != nil {
		return err
	}
	page := schema.ConflictPage{Conflicts: make([]schema.Conflict, len(list)), Cursor: next}
	for i := range list {
		if page.Conflicts[i], err = conflictOf(&list[i]); err != nil {
			return err
		}
	}
	return answer(w, page)
}

func conflictOf(c *views.Conflict) (schema.Conflict, error) {
	s := schema.Conflict{Key: c.Key, Scope: c.Scope, Winner: c.Winner, ExpiresIn: c.ExpiresIn}
	for _, out := range c.Outcomes {
		result, err := recorded(out.Result)
		if err != nil {
			return s, err
		}
		s.Outcomes = append(s.Outcomes, schema.ConflictOutcome{Origin: out.Origin, State: schema.EntryState(out.State.String()), Result: *result})
	}
	return s, nil
}

// listed returns the names in what a data centre said of its list.
func listed(said string) []string {
	_, list, _ := strings.Cut(said, "=")
	return strings.Split(list, ",")
}

func (h *originHandlers) peers(r *httpd.Request, w *httpd.Response) error {
	if _, err := r.QueryValues(); err != nil {
		return err
	}
	all := schema.Peers{Origin: h.origin}
	if h.lists != nil {
		all.DataCentres = listed(h.lists.Said())
		if err := h.lists.Take(); err != nil {
			all.Refuses = err.Error()
		}
	}
	if h.puller != nil {
		for _, s := range h.puller.Status() {
			lag := time.Duration(s.LagSeconds * float64(time.Second)).Round(time.Millisecond)
			p := schema.Peer{Name: s.Name, URL: s.URL, Lag: lag, LagEntries: int64(s.LagEntries), Error: s.Error}
			if !s.Answered.IsZero() {
				ago := time.Since(s.Answered).Round(time.Millisecond)
				p.AnsweredAgo = &ago
			}
			if s.Said != "" {
				p.DataCentres = listed(s.Said)
			}
			all.Peers = append(all.Peers, p)
		}
	}
	return answer(w, all)
}
