package server

import (
	"context"
	"errors"
	"sync"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/journal"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
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
	call := func(op api.Op) httpd.Route {
		return httpd.Route{Method: "POST", Path: op.Path(), Roles: gates, Handle: func(r *httpd.Request, w *httpd.Response) error { return h.call(r, w, op) }}
	}
	return []httpd.Route{
		call(api.OpReserve), call(api.OpCommit), call(api.OpReject), call(api.OpRelease), call(api.OpRenew), call(api.OpUnknown),
		{Method: "POST", Path: api.PathLookUp, Roles: gates, Handle: h.lookUp},
		{Method: "POST", Path: api.PathCalls, Roles: gates, Stream: h.calls},
		{Method: "POST", Path: api.PathHome + "{call}", Roles: httpd.Peer | httpd.Plain, Handle: h.atHome},
		// Proxies bring callers here who have no credentials for the manager.
		{Method: "POST", Path: api.PathAnswer, Roles: httpd.Anyone, Exempt: true, Handle: blank},
		{Method: "GET", Path: "/v1/ledger/entries", Roles: readers, Handle: h.list},
		{Method: "GET", Path: "/v1/ledger/entries/{key}", Roles: readers, Handle: h.get},
		// What these two take away is what keeps work from being done twice.
		{Method: "DELETE", Path: "/v1/ledger/entries/{key}", Roles: httpd.Admin, Handle: h.delete},
		{Method: "POST", Path: "/v1/ledger/entries/{key}/resolve", Roles: httpd.Operator, JSON: true, Handle: h.resolve},
		{Method: "GET", Path: "/v1/ledger/stats", Roles: readers, Handle: h.stats},
		{Method: "GET", Path: "/v1/ledger/entries/{key}/history", Roles: readers, Handle: h.history},
		{Method: "GET", Path: "/v1/ledger/incidents", Roles: readers, Handle: h.incidents},
		{Method: "GET", Path: "/v1/ledger/activity", Roles: readers, Handle: h.activity},
		{Method: "GET", Path: "/v1/ledger/shard", Roles: readers, Handle: h.shard},
	}
}

// blank is an answer that the gate fills in. It needs a body, because a recorded message replaces one.
func blank(_ *httpd.Request, w *httpd.Response) error {
	w.Status, w.ContentType, w.Body = 200, "text/plain", append(w.Body, '-')
	w.SetHeader(api.HeaderBlank, "1")
	return nil
}

type ledgerHandlers struct {
	ledger  *ledger.Ledger
	journal *journal.Journal
	me      *shard.Keeper
	home    *home.Calls
}

// ledgerCall is what a call over HTTP is read into; it is reused.
type ledgerCall struct {
	in   api.FinishRequest
	item ledger.Item
}

var ledgerCalls = sync.Pool{New: func() any { return new(ledgerCall) }}

func (c *ledgerCall) free() {
	*c = ledgerCall{}
	ledgerCalls.Put(c)
}

// read reads the request of the item's call. In the raw form it aliases body: the ledger is done with the request when it
// has answered.
func (c *ledgerCall) read(form httpd.Form, body []byte) error {
	if form == httpd.FormRaw {
		return readRequest(&c.item, body)
	}
	v, err := schema.Read(body)
	if err != nil {
		return err
	}
	switch c.item.Op {
	case ledger.OpRelease:
		return v.Parse(&c.item.Release)
	case ledger.OpCommit, ledger.OpReject:
		if err := v.Parse(&c.in); err != nil {
			return err
		}
		if c.in.Result.Status == 0 && !v.Has("result") {
			return &api.FieldError{Field: "result", Allowed: "is missing: must be {status, headers, body}"}
		}
		if err := c.in.Validate(); err != nil {
			return err
		}
		c.item.Finish = *ledger.NewFinish(&c.in)
		return nil
	default:
		return v.Parse(&c.item.Reserve)
	}
}

// readRequest reads the request of a call in the raw form, which it aliases.
func readRequest(it *ledger.Item, message []byte) error {
	switch it.Op {
	case ledger.OpRelease:
		return it.Release.ViewRaw(message)
	case ledger.OpCommit, ledger.OpReject:
		var in api.FinishRequest
		result, err := in.ViewRawFinish(message)
		it.Finish = ledger.FinishRequest{
			Key: in.Key, Scope: in.Scope, Token: in.Token, Fingerprint: in.Fingerprint, TTL: in.TTL, Durability: in.Durability, Result: result,
		}
		return err
	default:
		return it.Reserve.ViewRaw(message)
	}
}

// calling is the context of a request whose caller the ledger records in its journal.
func calling(r *httpd.Request) context.Context { return ledger.WithCaller(r.Context(), r.Remote()) }

// call makes a call that changes the ledger, and may wait if it is a reserve.
func (h *ledgerHandlers) call(r *httpd.Request, w *httpd.Response, op api.Op) error {
	form, err := r.Form()
	if err != nil {
		return err
	}
	c := ledgerCalls.Get().(*ledgerCall)
	defer c.free()
	it := &c.item
	it.Op = ledgerOps[op]
	if err := c.read(form, r.Body); err != nil {
		return err
	}
	a := it.Attempt()
	if err := h.home.Admit(a.Scope, a.Key); err != nil {
		return err
	}
	start := began(r)
	if op == api.OpReserve {
		it.Reply, it.Err = h.home.Reserve(calling(r), &it.Reserve, r.Hold)
	} else {
		h.home.Make(calling(r), it)
	}
	ledgerSpan(r, op.String(), start, it.Reply.State, it.Err)
	if it.Err != nil {
		return it.Err
	}
	h.boundReply(form, it)
	switch op {
	case api.OpCommit, api.OpReject, api.OpRelease:
		return answerState(w, form, &it.Reply)
	default:
		w.Status, w.RetryAfter = itemStatus(it)
		return answerReply(w, form, &it.Reply, it.Reserve.Token)
	}
}

// itemStatus is how a call that was not refused is answered.
func itemStatus(it *ledger.Item) (status, retryAfter int) {
	switch {
	case it.Op == ledger.OpReserve && it.Reply.State == api.StateReserved:
		return 201, 0
	case it.Op == ledger.OpReserve && it.Reply.State == api.StatePending:
		return 202, httpd.RetrySoon
	default:
		return 200, 0
	}
}

// answerReply answers with the ledger's reply and the status that is set.
func answerReply(w *httpd.Response, form httpd.Form, reply *ledger.Reply, token string) error {
	if form == httpd.FormRaw {
		w.ContentType = api.ContentTypeRaw
		w.Body = api.AppendRawReply(w.Body[:0], reply.State, reply.ExpiresIn, reply.Result)
		return nil
	}
	w.JSON(w.Status)
	answer := schema.LedgerReply{State: reply.State}
	if reply.State == api.StateReserved {
		answer.Token = token
	}
	if reply.State != api.StateReleased && reply.State != api.StateNone {
		answer.ExpiresIn = &reply.ExpiresIn
	}
	var err error
	if len(reply.Result) != 0 {
		answer.Result, err = recorded(reply.Result)
	}
	w.Body = schema.Append(w.Body, &answer)
	return err
}

// lookUp returns what became of a key.
func (h *ledgerHandlers) lookUp(r *httpd.Request, w *httpd.Response) error {
	c := ledgerCalls.Get().(*ledgerCall)
	defer c.free()
	it := &c.item
	it.Op = ledger.OpRelease // whose request has the same fields
	form, err := r.Form()
	if err == nil {
		err = c.read(form, r.Body)
	}
	if err == nil {
		h.lookUpItem(r.Context(), it)
		err = it.Err
	}
	switch {
	case err != nil:
		return err
	case it.Reply.State == api.StateNone:
		return answerState(w, form, &it.Reply)
	default:
		w.Status = 200
		return answerReply(w, form, &it.Reply, "")
	}
}

// lookUpItem answers a look-up.
func (h *ledgerHandlers) lookUpItem(ctx context.Context, it *ledger.Item) {
	e, err := h.ledger.Get(ctx, it.Release.Scope, it.Release.Key)
	it.Reply, it.Err = ledger.Reply{State: e.State, ExpiresIn: e.ExpiresIn, Result: e.Result}, err
	if errors.Is(err, ledger.ErrNotFound) {
		it.Reply, it.Err = ledger.Reply{State: api.StateNone}, nil
	}
}

// answerState answers with a state, and in the raw form for how long a gate may keep it; 0: without a bound.
func answerState(w *httpd.Response, form httpd.Form, reply *ledger.Reply) error {
	w.JSON(200)
	if form == httpd.FormRaw {
		w.ContentType = api.ContentTypeRaw
		w.Body = api.AppendRawReply(w.Body, reply.State, reply.ExpiresIn, nil)
		return nil
	}
	w.Body = append(w.Body, `{"state":"`+reply.State.String()+`"}`...)
	return nil
}

func (h *ledgerHandlers) get(r *httpd.Request, w *httpd.Response) error {
	q, err := r.QueryValues("scope")
	if err != nil {
		return err
	}
	e, err := h.ledger.Get(r.Context(), q["scope"], r.Param(0))
	if err != nil {
		return err
	}
	return answerEntry(w, &e, true)
}

// answerEntry answers with an entry, with the whole result or only its status and size.
func answerEntry(w *httpd.Response, e *ledger.Entry, whole bool) error {
	entry, err := entryOf(e, whole)
	if err != nil {
		return err
	}
	return answer(w, entry)
}

func (h *ledgerHandlers) delete(r *httpd.Request, w *httpd.Response) error {
	q, err := r.QueryValues("scope", "origin")
	if err != nil {
		return err
	}
	e, err := h.ledger.DeleteImported(calling(r), q["scope"], r.Param(0), q["origin"])
	if err != nil {
		return err
	}
	r.Audit("entry deleted by an administrator", "scope", e.Scope, "key", e.Key, "state", e.State.String())
	return answerEntry(w, &e, false)
}

func (h *ledgerHandlers) resolve(r *httpd.Request, w *httpd.Response) error {
	q, err := r.QueryValues("scope")
	if err != nil {
		return err
	}
	res, err := parseResolution(r.Body)
	if err != nil {
		return err
	}
	e, err := h.ledger.Resolve(calling(r), q["scope"], r.Param(0), res)
	if err != nil {
		return err
	}
	r.Audit("entry resolved as "+res.As.String()+" by an operator", "scope", e.Scope, "key", e.Key, "state", api.StateUnknown.String())
	return answerEntry(w, &e, false)
}

// defaultListLimit is the size of a page when none is asked for.
const defaultListLimit = 100

func (h *ledgerHandlers) list(r *httpd.Request, w *httpd.Response) error {
	entries, cursor, err := h.page(r)
	if err != nil {
		return err
	}
	page := schema.EntryPage{Entries: make([]schema.Entry, len(entries)), Cursor: cursor}
	for i := range entries {
		if page.Entries[i], err = entryOf(&entries[i], false); err != nil {
			return err
		}
	}
	return answer(w, page)
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
		e, err := views.ByRef(r.Context(), h.ledger, id)
		if err != nil {
			return nil, "", err
		}
		return []ledger.Entry{e}, "", nil
	}
	state := api.StateNone
	if name := q["state"]; name != "" {
		var ok bool
		if state, ok = api.ParseState(name); !ok || !views.Listed(state) {
			return nil, "", &api.FieldError{Field: "state", Value: name, Allowed: views.AllowedStates}
		}
	}
	limit, err := limitOf(q, views.MaxLimit, defaultListLimit)
	if err != nil {
		return nil, "", err
	}
	if key := q["key"]; key != "" {
		return views.Find(r.Context(), h.ledger, key, state, limit, q["cursor"])
	}
	return views.List(r.Context(), h.ledger, state, limit, q["cursor"])
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
	a := new(schema.Answer)
	return a, a.ParseRaw(raw)
}

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
