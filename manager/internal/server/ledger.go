package server

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/journal"
	"github.com/oncegate/oncegate/manager/internal/shard"
)

// Sets of roles that several routes name.
const (
	gates      = httpd.Gate | httpd.Plain
	submitters = httpd.Submitter | httpd.Plain
	workers    = httpd.Worker | httpd.NamedWorker | httpd.Plain
	readers    = httpd.Operator | httpd.Plain
)

// LedgerRoutes are the calls of gates and other clients on a ledger, whose observer is j. me, if
// not nil, says what the ledger is. Reach says which durabilities the ledger can give.
func LedgerRoutes(l *ledger.Ledger, j *journal.Journal, me *shard.Keeper, reach home.Reach) []httpd.Route {
	h := &ledgerHandlers{ledger: l, journal: j, me: me, home: home.NewCalls(l, reach)}
	return []httpd.Route{
		{Method: "POST", Path: api.PathReserve, Roles: gates, Handle: h.reserve},
		{Method: "POST", Path: api.PathCommit, Roles: gates, Handle: func(r *httpd.Request, w *httpd.Response) { h.finish(r, w, api.StateCommitted) }},
		{Method: "POST", Path: api.PathReject, Roles: gates, Handle: func(r *httpd.Request, w *httpd.Response) { h.finish(r, w, api.StateRejected) }},
		{Method: "POST", Path: api.PathRelease, Roles: gates, Handle: h.release},
		{Method: "POST", Path: api.PathRenew, Roles: gates, Handle: func(r *httpd.Request, w *httpd.Response) { h.ask(r, w, h.home.Renew) }},
		{Method: "POST", Path: api.PathUnknown, Roles: gates, Handle: func(r *httpd.Request, w *httpd.Response) { h.ask(r, w, h.home.Unknown) }},
		{Method: "POST", Path: api.PathLookUp, Roles: gates, Handle: h.lookUp},
		{Method: "POST", Path: api.PathCalls, Roles: gates, Stream: h.calls},
		{Method: "POST", Path: api.PathHome + "{call}", Roles: httpd.Peer | httpd.Plain, Handle: h.atHome},
		// Proxies bring callers here who have no credentials for the manager.
		{Method: "POST", Path: api.PathAnswer, Roles: httpd.Anyone, Exempt: true, Handle: blank},
		{Method: "GET", Path: "/v1/ledger/entries", Roles: readers, Handle: h.list},
		{Method: "GET", Path: "/v1/ledger/entries/{key}", Roles: readers, Handle: h.get},
		// What these two take away is what keeps work from being done twice.
		{Method: "DELETE", Path: "/v1/ledger/entries/{key}", Roles: httpd.Admin, Handle: h.delete},
		{Method: "POST", Path: "/v1/ledger/entries/{key}/resolve", Roles: httpd.Operator, Handle: h.resolve},
		{Method: "GET", Path: "/v1/ledger/stats", Roles: readers, Handle: h.stats},
		{Method: "GET", Path: "/v1/ledger/entries/{key}/history", Roles: readers, Handle: h.history},
		{Method: "GET", Path: "/v1/ledger/incidents", Roles: readers, Handle: h.incidents},
		{Method: "GET", Path: "/v1/ledger/activity", Roles: readers, Handle: h.activity},
		{Method: "GET", Path: "/v1/ledger/shard", Roles: readers, Handle: h.shard},
	}
}

// blank is an answer that the gate fills in. It needs a body, because a recorded message replaces one.
func blank(_ *httpd.Request, w *httpd.Response) {
	w.Status, w.ContentType, w.Body = 200, "text/plain", append(w.Body, '-')
	w.SetHeader(api.HeaderBlank, "1")
}

type ledgerHandlers struct {
	ledger  *ledger.Ledger
	journal *journal.Journal
	me      *shard.Keeper
	home    *home.Calls
}

// ledgerCall is what the hot calls are read into; it is reused.
type ledgerCall struct {
	reserve api.ReserveRequest
	in      api.FinishRequest
	finish  ledger.FinishRequest
}

var ledgerCalls = sync.Pool{New: func() any { return new(ledgerCall) }}

func (c *ledgerCall) free() {
	*c = ledgerCall{}
	ledgerCalls.Put(c)
}

// readFinish reads a commit or a reject. In the raw form it aliases body: the
// ledger is done with the request when it has answered.
func (c *ledgerCall) readFinish(form httpd.Form, body []byte) error {
	if form != httpd.FormRaw {
		if err := c.in.ParseJSON(body); err != nil {
			return err
		}
		if err := c.in.Validate(); err != nil {
			return err
		}
		c.finish = *ledger.NewFinish(&c.in)
		return nil
	}
	result, err := c.in.ViewRawFinish(body)
	if err != nil {
		return err
	}
	c.finish = rawFinish(&c.in, result)
	return nil
}

// rawFinish is the ledger's form of a commit or reject whose result is raw already.
func rawFinish(in *api.FinishRequest, result []byte) ledger.FinishRequest {
	return ledger.FinishRequest{
		Key: in.Key, Scope: in.Scope, Token: in.Token, Fingerprint: in.Fingerprint, TTL: in.TTL, Durability: in.Durability, Result: result,
	}
}

// readReserve reads a reserve, renew or unknown; in the raw form it aliases body.
func (c *ledgerCall) readReserve(form httpd.Form, body []byte) error {
	if form == httpd.FormRaw {
		return c.reserve.ViewRaw(body)
	}
	return c.reserve.ParseJSON(body)
}

// calling is the context of a request whose caller the ledger records in its journal.
func calling(r *httpd.Request) context.Context { return ledger.WithCaller(r.Context(), r.Remote()) }

func (h *ledgerHandlers) reserve(r *httpd.Request, w *httpd.Response) {
	h.ask(r, w, func(ctx context.Context, req *api.ReserveRequest) (ledger.Reply, error) {
		reply, err := h.home.Reserve(ctx, req, r.Hold)
		w.Status, w.RetryAfter = reserveStatus(reply.State)
		return reply, err
	})
}

// reserveStatus is how a reserve that was not refused is answered.
func reserveStatus(state api.State) (status, retryAfter int) {
	switch state {
	case api.StateReserved:
		return 201, 0
	case api.StatePending:
		return 202, httpd.RetrySoon
	default:
		return 200, 0
	}
}

// answerReply answers with the ledger's reply and the status that is set.
func answerReply(r *httpd.Request, w *httpd.Response, form httpd.Form, reply *ledger.Reply, token string) {
	if form == httpd.FormRaw {
		w.ContentType = api.ContentTypeRaw
		w.Body = api.AppendRawReply(w.Body[:0], reply.State, reply.ExpiresIn, reply.Result)
		return
	}
	w.JSON(w.Status)
	answer := api.ReserveReply{State: reply.State, ExpiresIn: reply.ExpiresIn}
	if len(reply.Result) != 0 {
		if err := answer.Result.ParseRaw(reply.Result); err != nil {
			r.Error(w, err)
			return
		}
	}
	w.Body = answer.AppendJSON(w.Body, token)
}

// ask is for reserve, renew and unknown, which differ in what they ask of the ledger. It
// answers 200 where the call does not set another status.
func (h *ledgerHandlers) ask(r *httpd.Request, w *httpd.Response, call func(context.Context, *api.ReserveRequest) (ledger.Reply, error)) {
	form, err := r.Form()
	if err != nil {
		r.Error(w, err)
		return
	}
	in := ledgerCalls.Get().(*ledgerCall)
	defer in.free()
	if err = in.readReserve(form, r.Body); err != nil {
		r.Error(w, err)
		return
	}
	if err = h.home.Admit(in.reserve.Scope, in.reserve.Key); err != nil {
		r.Error(w, err)
		return
	}
	w.Status = 200
	start := began(r)
	reply, err := call(calling(r), &in.reserve)
	ledgerSpan(r, strings.TrimPrefix(r.Path, "/v1/ledger/"), start, reply.State, err)
	if err != nil {
		r.Error(w, err)
		return
	}
	reply.ExpiresIn = h.cacheable(form, reply.State, reply.ExpiresIn)
	answerReply(r, w, form, &reply, in.reserve.Token)
}

func (h *ledgerHandlers) finish(r *httpd.Request, w *httpd.Response, outcome api.State) {
	form, err := r.Form()
	if err != nil {
		r.Error(w, err)
		return
	}
	call := ledgerCalls.Get().(*ledgerCall)
	defer call.free()
	if err = call.readFinish(form, r.Body); err != nil {
		r.Error(w, err)
		return
	}
	start, op := began(r), "commit"
	if outcome == api.StateRejected {
		op = "reject"
	}
	if err = h.home.Admit(call.finish.Scope, call.finish.Key); err == nil {
		err = h.home.Finish(calling(r), &call.finish, outcome)
	}
	ledgerSpan(r, op, start, outcome, err)
	if err != nil {
		r.Error(w, err)
		return
	}
	answerState(w, form, outcome, h.cacheable(form, outcome, h.untold(form, outcome, call.finish.TTL)))
}

func (h *ledgerHandlers) release(r *httpd.Request, w *httpd.Response) {
	form, err := r.Form()
	if err != nil {
		r.Error(w, err)
		return
	}
	var req api.ReleaseRequest
	if form == httpd.FormRaw {
		err = req.ViewRaw(r.Body)
	} else {
		err = req.ParseJSON(r.Body)
	}
	if err == nil {
		err = h.home.Admit(req.Scope, req.Key)
	}
	if err == nil {
		start := began(r)
		err = h.home.Release(calling(r), &req)
		ledgerSpan(r, "release", start, api.StateReleased, err)
	}
	if err != nil {
		r.Error(w, err)
		return
	}
	answerState(w, form, api.StateReleased, 0)
}

// lookUp returns what became of a key.
func (h *ledgerHandlers) lookUp(r *httpd.Request, w *httpd.Response) {
	form, err := r.Form()
	var req api.ReleaseRequest
	switch {
	case err != nil:
	case form == httpd.FormRaw:
		err = req.ViewRaw(r.Body)
	default:
		err = req.ParseJSON(r.Body)
	}
	var e ledger.Entry
	if err == nil {
		e, err = h.ledger.Get(r.Context(), req.Scope, req.Key)
	}
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		answerState(w, form, api.StateNone, 0)
	case err != nil:
		r.Error(w, err)
	default:
		w.Status = 200
		answerReply(r, w, form, &ledger.Reply{State: e.State, ExpiresIn: e.ExpiresIn, Result: e.Result}, "")
	}
}

// answerState answers with a state alone. A gate may keep it for that long; 0: without a bound.
func answerState(w *httpd.Response, form httpd.Form, state api.State, keep time.Duration) {
	w.JSON(200)
	if form == httpd.FormRaw {
		w.ContentType = api.ContentTypeRaw
		w.Body = api.AppendRawReply(w.Body, state, keep, nil)
		return
	}
	w.Body = append(w.Body, `{"state":"`+state.String()+`"}`...)
}

func (h *ledgerHandlers) get(r *httpd.Request, w *httpd.Response) {
	q, err := r.QueryValues("scope")
	if err != nil {
		r.Error(w, err)
		return
	}
	e, err := h.ledger.Get(r.Context(), q["scope"], r.Param(0))
	if err != nil {
		r.Error(w, err)
		return
	}
	answerEntry(r, w, &e, true)
}

// answerEntry answers with an entry, with the whole result or only its status and size.
func answerEntry(r *httpd.Request, w *httpd.Response, e *ledger.Entry, whole bool) {
	entry, err := entryOf(e, whole)
	if err != nil {
		r.Error(w, err)
		return
	}
	answer(w, &entry)
}

func (h *ledgerHandlers) delete(r *httpd.Request, w *httpd.Response) {
	q, err := r.QueryValues("scope", "origin")
	if err != nil {
		r.Error(w, err)
		return
	}
	e, err := h.ledger.DeleteImported(calling(r), q["scope"], r.Param(0), q["origin"])
	if err != nil {
		r.Error(w, err)
		return
	}
	r.Audit("entry deleted by an administrator", "scope", e.Scope, "key", e.Key, "state", e.State.String())
	answerEntry(r, w, &e, false)
}

func (h *ledgerHandlers) resolve(r *httpd.Request, w *httpd.Response) {
	q, err := r.QueryValues("scope")
	if err == nil {
		err = r.JSONOnly()
	}
	var res ledger.Resolution
	if err == nil {
		res, err = parseResolution(r.Body)
	}
	var e ledger.Entry
	if err == nil {
		e, err = h.ledger.Resolve(calling(r), q["scope"], r.Param(0), res)
	}
	if err != nil {
		r.Error(w, err)
		return
	}
	r.Audit("entry resolved as "+res.As.String()+" by an operator", "scope", e.Scope, "key", e.Key, "state", api.StateUnknown.String())
	answerEntry(r, w, &e, false)
}

// defaultListLimit is the size of a page when none is asked for.
const defaultListLimit = 100

func (h *ledgerHandlers) list(r *httpd.Request, w *httpd.Response) {
	entries, cursor, err := h.page(r)
	if err != nil {
		r.Error(w, err)
		return
	}
	page := schema.EntryPage{Entries: make([]schema.Entry, len(entries)), Cursor: cursor}
	for i := range entries {
		if page.Entries[i], err = entryOf(&entries[i], false); err != nil {
			r.Error(w, err)
			return
		}
	}
	answer(w, &page)
}

// page reads the query of a listing: key, state, limit and cursor, or job_id.
func (h *ledgerHandlers) page(r *httpd.Request) ([]ledger.Entry, string, error) {
	q, err := r.QueryValues("key", "state", "limit", "cursor", "job_id")
	if err != nil {
		return nil, "", err
	}
	if id, ok := q["job_id"]; ok {
		if len(q) > 1 {
			return nil, "", &api.FieldError{Field: "job_id", Value: id, Allowed: "goes with no other parameter"}
		}
		e, err := h.ledger.GetByRef(r.Context(), id)
		if err != nil {
			return nil, "", err
		}
		return []ledger.Entry{e}, "", nil
	}
	state := api.StateNone
	if name := q["state"]; name != "" {
		var ok bool
		if state, ok = api.ParseState(name); !ok || !ledger.Listed(state) {
			return nil, "", &api.FieldError{Field: "state", Value: name, Allowed: ledger.AllowedStates}
		}
	}
	limit, err := limitOf(q, ledger.MaxListLimit, defaultListLimit)
	if err != nil {
		return nil, "", err
	}
	if key := q["key"]; key != "" {
		return h.ledger.Find(r.Context(), key, state, limit, q["cursor"])
	}
	return h.ledger.List(r.Context(), state, limit, q["cursor"])
}

// entryOf is what an answer shows of an entry, with the whole result or only its status and size.
func entryOf(e *ledger.Entry, whole bool) (schema.Entry, error) {
	s := schema.Entry{
		Key: e.Key, Scope: e.Scope, State: schema.EntryState(e.State.String()), Fingerprint: e.Fingerprint, JobID: e.Ref,
		Origin: e.Origin, Home: e.Home, Age: e.Age, ExpiresIn: e.ExpiresIn,
	}
	var err error
	switch {
	case len(e.Result) == 0:
	case whole:
		s.Result, err = recorded(e.Result)
	default:
		s.BodyBytes = new(int)
		s.Status, *s.BodyBytes, err = api.CheckRawResult(e.Result)
	}
	return s, err
}

// recorded is a result of the ledger.
func recorded(raw []byte) (*schema.Answer, error) {
	var r api.Result
	if err := r.ParseRaw(raw); err != nil {
		return nil, err
	}
	a := &schema.Answer{Status: r.Status, Body: r.Body, BodyOmitted: r.BodyOmitted}
	for _, h := range r.Headers {
		a.Headers = append(a.Headers, [2]string{h.Name, h.Value})
	}
	return a, nil
}
