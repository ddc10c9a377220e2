package server

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/submit"
)

// JobRoutes are the calls of submitters, workers and operators on a queue. The
// queue and the ledger must be on st: a submission with an Idempotency-Key is
// one transaction of both.
func JobRoutes(st store.Store, l *ledger.Ledger, q *jobs.Queue) []httpd.Route {
	h := &jobHandlers{queue: q, ledger: l, submitter: submit.New(st, l, q, ProblemOf)}
	routes := []httpd.Route{
		{Method: "POST", Path: "/v1/jobs", Roles: submitters, Handle: h.submit},
		{Method: "GET", Path: "/v1/jobs", Roles: readers, Handle: h.list},
		{Method: "POST", Path: "/v1/jobs/batch", Roles: submitters, Handle: h.submitMany},
		{Method: "POST", Path: "/v1/jobs/bulk", Roles: readers, Handle: h.bulk},
		{Method: "POST", Path: "/v1/jobs/claim", Roles: workers, Handle: h.claim},
		{Method: "POST", Path: "/v1/jobs/finish", Roles: workers, Handle: h.finishMany},
		{Method: "GET", Path: "/v1/jobs/stats", Roles: readers, Handle: h.stats},
		{Method: "GET", Path: "/v1/jobs/{id}", Roles: submitters | readers, Handle: h.get},
		{Method: "DELETE", Path: "/v1/jobs/{id}", Roles: httpd.Admin, Handle: h.delete},
		{Method: "POST", Path: "/v1/jobs/{id}/heartbeat", Roles: workers, Handle: h.heartbeat},
		{Method: "POST", Path: "/v1/jobs/{id}/finish", Roles: workers, Handle: h.finish},
		{Method: "POST", Path: "/v1/jobs/{id}/retry", Roles: workers | httpd.Operator, Handle: h.retry},
		{Method: "POST", Path: "/v1/jobs/{id}/cancel", Roles: readers, Handle: h.cancel},
		{Method: "GET", Path: "/v1/functions", Roles: readers, Handle: h.functions},
		{Method: "POST", Path: "/v1/functions/{name}/pause", Roles: readers, Handle: h.pause(q.Pause, true)},
		{Method: "POST", Path: "/v1/functions/{name}/resume", Roles: readers, Handle: h.pause(q.Resume, false)},
		{Method: "GET", Path: "/v1/functions/{name}/dead-letters", Roles: readers, Handle: h.deadLetters},
		{Method: "POST", Path: "/v1/functions/{name}/dead-letters/{id}/replay", Roles: readers, Handle: h.replayDead},
	}
	for i := range routes {
		if routes[i].Method == "POST" {
			handle := routes[i].Handle
			routes[i].Handle = func(r *httpd.Request, w *httpd.Response) {
				if err := r.JSONOnly(); err != nil {
					r.Error(w, err)
					return
				}
				handle(r, w)
			}
		}
	}
	return routes
}

type jobHandlers struct {
	queue     *jobs.Queue
	ledger    *ledger.Ledger
	submitter *submit.Submitter
}

func (h *jobHandlers) claim(r *httpd.Request, w *httpd.Response) {
	c, err := parseClaim(r.Body)
	if err != nil {
		r.Error(w, err)
		return
	}
	if c.Functions, err = claimable(r, c.Functions); err != nil {
		r.Error(w, err)
		return
	}
	start := began(r)
	wait := c.Wait
	c.Wait = 0
	if wait < 0 || wait > jobs.MaxWait {
		c.Wait = wait // for the queue to refuse
	}
	got, err := h.queue.Claim(r.Context(), c)
	if err == nil && len(got) == 0 && wait > 0 {
		ctx, stop := r.Hold()
		c.Wait = wait
		got, err = h.queue.Claim(ctx, c)
		stop()
	}
	if err != nil {
		r.Error(w, err)
		return
	}
	if len(got) > 0 {
		// Nobody would work on the jobs of a client that is gone, until their leases run out.
		if r.Left() {
			_ = h.queue.PutBack(got)
			got = nil
		} else {
			w.Within, w.Undelivered = got[0].Lease.Duration, func() error { return h.queue.PutBack(got) }
		}
	}
	claimSpans(r, got, start)
	w.JSON(200)
	o := jsonObject{b: w.Body}
	o.open()
	o.jobs("jobs", got, formClaimed)
	o.close()
	w.Body = o.b
}

// claimable are the functions of a claim that names some, or none. A caller that is limited to functions claims only
// theirs.
func claimable(r *httpd.Request, named []string) ([]string, error) {
	mine, limited := r.Functions()
	if !limited {
		return named, nil
	}
	for _, name := range named {
		if !slices.Contains(mine, name) {
			return nil, httpd.Forbidden("these credentials do not allow work on the function " + strconv.QuoteToASCII(httpd.Clip(name)))
		}
	}
	if len(named) > 0 {
		return named, nil
	}
	if len(mine) == 0 {
		return nil, httpd.Forbidden("token and certificate have no function in common")
	}
	return mine, nil
}

// workable are the functions whose jobs the caller may work on, nil for all.
func workable(r *httpd.Request) []string {
	mine, limited := r.Functions()
	if limited && mine == nil {
		mine = []string{}
	}
	return mine
}

// mayRead reports whether the caller may see all of a job: a submitter sees its own.
func mayRead(r *httpd.Request, j *jobs.Job) bool {
	return r.May(readers) || r.Owner() != "" && j.Owner == r.Owner()
}

// hideSubmitter takes from an answer what only operators, and the submitter itself, need to know.
func hideSubmitter(r *httpd.Request, j *jobs.Job) {
	if !mayRead(r, j) {
		j.Owner = ""
	}
}

func (h *jobHandlers) get(r *httpd.Request, w *httpd.Response) {
	q, err := r.QueryValues("wait_ms")
	if err != nil {
		r.Error(w, err)
		return
	}
	wait, err := whole(q, "wait_ms", 0, jobs.MaxWait.Milliseconds(), 0)
	if err != nil {
		r.Error(w, err)
		return
	}
	j, err := h.queue.Get(r.Context(), r.Param(0))
	if err == nil && !mayRead(r, &j) {
		err = httpd.Forbidden("these credentials did not submit this job")
	}
	if err == nil && !j.State.Terminal() && wait > 0 {
		ctx, stop := r.Hold()
		j, err = h.queue.Wait(ctx, r.Param(0), millis(wait))
		stop()
	}
	if err != nil {
		r.Error(w, h.elsewhere(r, err))
		return
	}
	jobAnswer(w, 200, &j, formWhole)
}

// elsewhere names the data centre that took a job which is not here, if the ledger has the outcome of its submission.
func (h *jobHandlers) elsewhere(r *httpd.Request, err error) error {
	own := h.ledger.Options().Origin
	if own == "" || !errors.Is(err, jobs.ErrNotFound) {
		return err
	}
	e, missing := h.ledger.GetByRef(r.Context(), r.Param(0))
	if missing != nil || e.Origin == "" || e.Origin == own {
		return err
	}
	return &httpd.Refusal{P: api.Problem{Status: 404, Code: api.CodeNotFound, Title: "Not found",
		Detail: "the data centre " + e.Origin + " took this job, and only its managers have it; this is " + own}}
}

func (h *jobHandlers) heartbeat(r *httpd.Request, w *httpd.Response) {
	token, lease, err := parseHeartbeat(r.Body)
	if err != nil {
		r.Error(w, err)
		return
	}
	beat, err := h.queue.Heartbeat(r.Context(), r.Param(0), token, lease, workable(r))
	if err != nil {
		r.Error(w, err)
		return
	}
	w.JSON(200)
	o := jsonObject{b: w.Body}
	o.open()
	o.raw("cancelled", strconv.AppendBool(nil, beat.Cancelled))
	o.num("expires_in_ms", beat.ExpiresIn.Milliseconds())
	o.close()
	w.Body = o.b
}

func (h *jobHandlers) finish(r *httpd.Request, w *httpd.Response) {
	f := jobs.Finish{ID: r.Param(0), Only: workable(r)}
	if err := parseFinish(r.Body, &f, false); err != nil {
		r.Error(w, err)
		return
	}
	j, err := h.queue.Finish(r.Context(), f)
	if err != nil {
		r.Error(w, err)
		return
	}
	attemptSpan(r, &j, false)
	hideSubmitter(r, &j)
	jobAnswer(w, 200, &j, formBrief)
}

// finishMany finishes several jobs; each has its own answer.
func (h *jobHandlers) finishMany(r *httpd.Request, w *httpd.Response) {
	fs, err := parseFinishes(r.Body)
	if err != nil {
		r.Error(w, err)
		return
	}
	only := workable(r)
	for i := range fs {
		fs[i].Only = only
	}
	out, err := h.queue.FinishMany(r.Context(), fs)
	if err != nil {
		r.Error(w, err)
		return
	}
	w.JSON(200)
	b := append(w.Body, `{"results":[`...)
	for i := range out {
		if i > 0 {
			b = append(b, ',')
		}
		o := jsonObject{b: b}
		o.open()
		o.str("id", fs[i].ID)
		if out[i].Err != nil {
			p := r.Problem(out[i].Err, nil)
			o.name("problem")
			o.b = p.AppendJSON(o.b)
		} else {
			attemptSpan(r, &out[i].Job, false)
			o.str("state", out[i].Job.State.String())
		}
		o.close()
		b = o.b
	}
	w.Body = append(b, `]}`...)
}

func (h *jobHandlers) retry(r *httpd.Request, w *httpd.Response) {
	req, err := parseRetry(r.Body)
	if err != nil {
		r.Error(w, err)
		return
	}
	req.ID, req.Only = r.Param(0), workable(r)
	switch {
	case req.Token == "" && !r.May(readers):
		err = httpd.Forbidden("without a lease_token, which hands a job back, this call is an operator's")
	case req.Token != "" && !r.May(workers):
		err = httpd.Forbidden("with a lease_token this call is a worker's")
	}
	if err != nil {
		r.Error(w, err)
		return
	}
	j, err := h.queue.Retry(r.Context(), req)
	if err != nil {
		r.Error(w, err)
		return
	}
	if req.Token != "" {
		attemptSpan(r, &j, true)
	} else {
		auditJob(r, "retried", &j)
	}
	hideSubmitter(r, &j)
	jobAnswer(w, 200, &j, formBrief)
}

func (h *jobHandlers) cancel(r *httpd.Request, w *httpd.Response) {
	if err := parseNothing(r.Body); err != nil {
		r.Error(w, err)
		return
	}
	j, err := h.queue.Cancel(r.Context(), r.Param(0))
	if err != nil {
		r.Error(w, h.elsewhere(r, err))
		return
	}
	auditJob(r, "cancelled", &j)
	jobAnswer(w, 200, &j, formBrief)
}

// pageOf reads the query of a list that has no filter. A limit of 0 means that the caller named none.
func pageOf(r *httpd.Request) (cursor string, limit int, err error) {
	q, err := r.QueryValues("limit", "cursor")
	if err == nil {
		limit, err = limitOf(q, jobs.MaxLimit, 0)
	}
	return q["cursor"], limit, err
}

func (h *jobHandlers) list(r *httpd.Request, w *httpd.Response) {
	q, err := r.QueryValues("function", "state", "submitter", "older_than_ms", "error", "limit", "cursor", "payloads")
	if err != nil {
		r.Error(w, err)
		return
	}
	l := jobs.ListQuery{Function: q["function"], Owner: q["submitter"], Error: q["error"], Cursor: q["cursor"]}
	if l.Limit, err = limitOf(q, jobs.MaxLimit, 0); err != nil {
		r.Error(w, err)
		return
	}
	age, err := whole(q, "older_than_ms", 0, jobs.MaxDelay.Milliseconds(), 0)
	if err != nil {
		r.Error(w, err)
		return
	}
	l.OlderThan = millis(age)
	if s := q["state"]; s != "" {
		if l.State, err = jobs.ParseState("state", s); err != nil {
			r.Error(w, err)
			return
		}
	}
	switch q["payloads"] {
	case "", "false":
	case "true":
		l.Payloads = true
	default:
		r.Error(w, &api.FieldError{Field: "payloads", Value: httpd.Clip(q["payloads"]), Allowed: "must be true or false"})
		return
	}
	page, err := h.queue.List(r.Context(), l)
	if err != nil {
		r.Error(w, err)
		return
	}
	form := formBrief
	if l.Payloads {
		form = formWhole
	}
	w.JSON(200)
	o := jsonObject{b: w.Body}
	o.open()
	o.jobs("jobs", page.Jobs, form)
	o.str("cursor", page.Cursor)
	o.close()
	w.Body = o.b
}

func (h *jobHandlers) functions(r *httpd.Request, w *httpd.Response) {
	cursor, limit, err := pageOf(r)
	if err != nil {
		r.Error(w, err)
		return
	}
	page, err := h.queue.Functions(r.Context(), limit, cursor)
	if err != nil {
		r.Error(w, err)
		return
	}
	writePage(w, "functions", page.Functions, page.Cursor, func(o *jsonObject, f *jobs.Function) {
		o.open()
		o.str("name", f.Name)
		o.raw("paused", strconv.AppendBool(nil, f.Paused))
		o.time("paused_at", f.PausedAt)
		for _, s := range jobStates(f) {
			o.num(s.name, int64(s.n))
		}
		o.flag("at_least", f.AtLeast)
		o.num("oldest_queued_ms", f.Oldest.Milliseconds())
		o.time("last_dead_at", f.DeadAt)
		o.name("last_minute")
		o.open()
		for _, c := range rateCounts(h.queue.LastMinute(f.Name)) {
			o.num(c.name, c.n)
		}
		o.close()
		o.close()
	})
}

// pause handles pause and resume.
func (h *jobHandlers) pause(call func(context.Context, string) error, paused bool) httpd.Handler {
	return func(r *httpd.Request, w *httpd.Response) {
		err := parseNothing(r.Body)
		if err == nil {
			err = call(r.Context(), r.Param(0))
		}
		if err != nil {
			r.Error(w, err)
			return
		}
		r.Audit("function "+map[bool]string{true: "paused", false: "resumed"}[paused]+" by an operator", "function", r.Param(0))
		w.JSON(200)
		o := jsonObject{b: w.Body}
		o.open()
		o.str("name", r.Param(0))
		o.raw("paused", strconv.AppendBool(nil, paused))
		o.close()
		w.Body = o.b
	}
}

func (h *jobHandlers) deadLetters(r *httpd.Request, w *httpd.Response) {
	cursor, limit, err := pageOf(r)
	if err != nil {
		r.Error(w, err)
		return
	}
	page, err := h.queue.DeadLetters(r.Context(), r.Param(0), limit, cursor)
	if err != nil {
		r.Error(w, err)
		return
	}
	writePage(w, "dead_letters", page.DeadLetters, page.Cursor, func(o *jsonObject, l *jobs.DeadLetter) {
		o.open()
		o.str("id", l.ID)
		o.name("job")
		o.b = appendJob(o.b, &l.Job, formWhole)
		o.str("reason", l.Reason)
		o.time("failed_at", l.FailedAt)
		o.close()
	})
}

func (h *jobHandlers) replayDead(r *httpd.Request, w *httpd.Response) {
	err := parseNothing(r.Body)
	var out jobs.Outcome
	if err == nil {
		out, err = h.queue.Replay(r.Context(), r.Param(0), r.Param(1))
	}
	if err != nil {
		r.Error(w, err)
		return
	}
	w.JSON(202)
	if out.Created() {
		r.Audit("job replayed by an operator", "job", r.Param(1), "function", r.Param(0), "copy", out.Job.ID)
	} else {
		w.Status = 200
	}
	w.Body = outcomeJSON(w.Body, &out, formSubmitted)
}

// auditJob writes to the audit log what an operator did with a job.
func auditJob(r *httpd.Request, done string, j *jobs.Job) {
	r.Audit("job "+done+" by an operator", "job", j.ID, "function", j.Function)
}

func (h *jobHandlers) stats(r *httpd.Request, w *httpd.Response) {
	if _, err := r.QueryValues(); err != nil {
		r.Error(w, err)
		return
	}
	d, err := h.queue.Depth(r.Context())
	var used jobs.Usage
	if err == nil {
		used, err = h.queue.Usage(r.Context())
	}
	if err != nil {
		r.Error(w, err)
		return
	}
	w.JSON(200)
	o := jsonObject{b: w.Body}
	o.open()
	o.name("jobs")
	o.open()
	for _, x := range []struct {
		name string
		n    int
	}{{"scheduled", d.Scheduled}, {"queued", d.Queued}, {"active", d.Active}, {"dead", d.Dead}, {"done", d.Done}} {
		o.num(x.name, int64(x.n))
	}
	o.close()
	o.name("calls")
	o.open()
	for _, c := range jobCounts(h.queue.Counters()) {
		o.num(c.name, c.n)
	}
	o.close()
	o.num("waiting", h.queue.Counters().Waiting)
	o.num("bytes", used.Total)
	o.num("retained_bytes", used.Retained)
	o.num("max_bytes", used.MaxTotal)
	o.close()
	w.Body = o.b
}
