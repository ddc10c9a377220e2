package server

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
	"github.com/oncegate/oncegate/manager/internal/submit"
)

// JobRoutes are the calls of submitters, workers and operators on a queue. The
// queue and the ledger must be on the same store: a submission with an Idempotency-Key is
// one transaction of both.
func JobRoutes(l *ledger.Ledger, q *jobs.Queue) []httpd.Route {
	h := &jobHandlers{queue: q, ledger: l, submitter: submit.New(l, q, submissions)}
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
		{Method: "PUT", Path: "/v1/functions/{name}", Roles: readers, Handle: h.setLimits},
		{Method: "POST", Path: "/v1/functions/{name}/pause", Roles: readers, Handle: h.pause(q.Pause, true)},
		{Method: "POST", Path: "/v1/functions/{name}/resume", Roles: readers, Handle: h.pause(q.Resume, false)},
		{Method: "GET", Path: "/v1/functions/{name}/dead-letters", Roles: readers, Handle: h.deadLetters},
		{Method: "POST", Path: "/v1/functions/{name}/dead-letters/{id}/replay", Roles: readers, Handle: h.replayDead},
	}
	routes = append(append(routes, h.eventRoutes()...), h.batchRoutes()...)
	for i := range routes {
		routes[i].JSON = routes[i].Method == "POST" || routes[i].Method == "PUT"
	}
	return routes
}

type jobHandlers struct {
	queue     *jobs.Queue
	ledger    *ledger.Ledger
	submitter *submit.Submitter
}

func (h *jobHandlers) claim(r *httpd.Request, w *httpd.Response) error {
	in, err := parse[schema.ClaimRequest](r)
	if err != nil {
		return err
	}
	c := jobs.ClaimRequest{Worker: in.Worker, Limit: in.Limit, Lease: in.Lease, Wait: in.Wait}
	if c.Functions, err = claimable(r, in.Functions); err != nil {
		return err
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
		return err
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
	return answer(w, schema.Claimed{Jobs: jobsOf(got, formClaimed)})
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
			return nil, notYours(name)
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

// notYours refuses work on a function.
func notYours(function string) error {
	return httpd.Forbidden("these credentials do not allow work on the function " + strconv.QuoteToASCII(httpd.Clip(function)))
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

func (h *jobHandlers) get(r *httpd.Request, w *httpd.Response) error {
	wait, err := waitOf(r)
	if err != nil {
		return err
	}
	j, err := h.queue.Get(r.Context(), r.Param(0))
	if err == nil && !mayRead(r, &j) {
		err = httpd.Forbidden("these credentials did not submit this job")
	}
	if err == nil && !j.State.Terminal() && wait > 0 {
		ctx, stop := r.Hold()
		j, err = h.queue.Wait(ctx, r.Param(0), wait)
		stop()
	}
	if err != nil {
		return h.elsewhere(r, err)
	}
	return answer(w, jobOf(&j, formWhole))
}

// elsewhere names the data centre that took a job which is not here, if the ledger has the outcome of its submission.
func (h *jobHandlers) elsewhere(r *httpd.Request, err error) error {
	own := h.ledger.Options().Origin
	if own == "" || !errors.Is(err, jobs.ErrNotFound) {
		return err
	}
	e, missing := views.ByRef(r.Context(), h.ledger, r.Param(0))
	if missing != nil || e.Origin == "" || e.Origin == own {
		return err
	}
	return &httpd.Refusal{P: api.Problem{Status: 404, Code: api.CodeNotFound, Title: "Not found",
		Detail: "the data centre " + e.Origin + " took this job, and only its managers have it; this is " + own}}
}

func (h *jobHandlers) heartbeat(r *httpd.Request, w *httpd.Response) error {
	in, err := parse[schema.HeartbeatRequest](r)
	if err != nil {
		return err
	}
	beat, err := h.queue.Heartbeat(r.Context(), r.Param(0), in.LeaseToken, in.Lease, workable(r))
	if err != nil {
		return err
	}
	return answer(w, schema.Beat{Cancelled: beat.Cancelled, ExpiresIn: beat.ExpiresIn})
}

func (h *jobHandlers) finish(r *httpd.Request, w *httpd.Response) error {
	in, err := parse[schema.FinishRequest](r, "id")
	if err != nil {
		return err
	}
	in.ID = r.Param(0)
	j, err := h.queue.Finish(r.Context(), finishOf(&in, workable(r)))
	if err != nil {
		return err
	}
	attemptSpan(r, &j, false)
	hideSubmitter(r, &j)
	return answer(w, jobOf(&j, formBrief))
}

// finishMany finishes several jobs; each has its own answer.
func (h *jobHandlers) finishMany(r *httpd.Request, w *httpd.Response) error {
	// A call that cannot be read makes the whole request fail: it says nothing about its own job.
	in, err := parse[schema.Finishes](r)
	if err != nil {
		return err
	}
	only := workable(r)
	fs := convert(in.Finishes, func(f *schema.FinishRequest) jobs.Finish { return finishOf(f, only) })
	out, err := h.queue.FinishMany(r.Context(), fs)
	if err != nil {
		return err
	}
	results := make([]schema.FinishResult, len(out))
	for i := range out {
		results[i].ID = fs[i].ID
		if out[i].Err != nil {
			p := r.Problem(out[i].Err, nil)
			results[i].Problem = &p
		} else {
			attemptSpan(r, &out[i].Job, false)
			results[i].State = stateOf(&out[i].Job)
		}
	}
	return answer(w, schema.Finished{Results: results})
}

func (h *jobHandlers) retry(r *httpd.Request, w *httpd.Response) error {
	in, err := parse[schema.RetryRequest](r)
	if err != nil {
		return err
	}
	req := jobs.Retry{ID: r.Param(0), Token: in.LeaseToken, Delay: in.Delay, Error: in.Error, Uncounted: in.Uncounted, Only: workable(r)}
	switch {
	case req.Token == "" && !r.May(readers):
		return httpd.Forbidden("without a lease_token, which hands a job back, this call is an operator's")
	case req.Token != "" && !r.May(workers):
		return httpd.Forbidden("with a lease_token this call is a worker's")
	}
	j, err := h.queue.Retry(r.Context(), req)
	if err != nil {
		return err
	}
	if req.Token != "" {
		attemptSpan(r, &j, true)
	} else {
		auditJob(r, "retried", &j)
	}
	hideSubmitter(r, &j)
	return answer(w, jobOf(&j, formBrief))
}

func (h *jobHandlers) cancel(r *httpd.Request, w *httpd.Response) error {
	if _, err := parse[struct{}](r); err != nil {
		return err
	}
	j, err := h.queue.Cancel(r.Context(), r.Param(0))
	if err != nil {
		return h.elsewhere(r, err)
	}
	auditJob(r, "cancelled", &j)
	return answer(w, jobOf(&j, formBrief))
}

// pageOf reads the query of a list that has no filter. A limit of 0 means that the caller named none.
func pageOf(r *httpd.Request) (cursor string, limit int, err error) {
	q, err := r.QueryValues("limit", "cursor")
	if err == nil {
		limit, err = limitOf(q, jobs.MaxLimit, 0)
	}
	return q["cursor"], limit, err
}

func (h *jobHandlers) functions(r *httpd.Request, w *httpd.Response) error {
	cursor, limit, err := pageOf(r)
	if err != nil {
		return err
	}
	page, err := h.queue.Functions(r.Context(), limit, cursor)
	if err != nil {
		return err
	}
	return answer(w, schema.FunctionPage{Functions: convert(page.Functions, h.functionOf), Cursor: page.Cursor})
}

func (h *jobHandlers) functionOf(f *jobs.Function) schema.Function {
	return schema.Function{
		Name: f.Name, Paused: f.Paused, PausedAt: f.PausedAt, Queued: f.Queued, Scheduled: f.Scheduled, Active: f.Active, Dead: f.Dead,
		AtLeast: f.AtLeast, OldestQueued: f.Oldest, LastDeadAt: f.DeadAt, Limits: limitsOf(f.Limits), LastMinute: schema.FunctionRates(h.queue.LastMinute(f.Name)),
	}
}

// limitsOf is what answers show of limits, nil if there are none.
func limitsOf(l jobs.Limits) *schema.Limits {
	if l == (jobs.Limits{}) {
		return nil
	}
	s := &schema.Limits{MaxRunning: l.MaxRunning, MaxRunningPerKey: l.MaxRunningPerKey}
	if l.Rate != (jobs.Rate{}) {
		s.Rate = &schema.Rate{Count: l.Rate.Count, Per: l.Rate.Per}
	}
	return s
}

// setLimits handles PUT /v1/functions/{name}. Limits that the body does not have are removed.
func (h *jobHandlers) setLimits(r *httpd.Request, w *httpd.Response) error {
	in, err := parse[schema.Limits](r)
	if err != nil {
		return err
	}
	l := jobs.Limits{MaxRunning: in.MaxRunning, MaxRunningPerKey: in.MaxRunningPerKey}
	if in.Rate != nil {
		l.Rate = jobs.Rate{Count: in.Rate.Count, Per: in.Rate.Per}
		if l.Rate == (jobs.Rate{}) {
			return &api.FieldError{Field: "rate.count", Value: "0", Allowed: "must be at least 1"}
		}
	}
	if err := h.queue.SetLimits(r.Context(), r.Param(0), l); err != nil {
		return err
	}
	r.Audit("limits of a function set by an operator", "function", r.Param(0), "limits", string(r.Body))
	return answer(w, schema.FunctionLimits{Name: r.Param(0), Limits: limitsOf(l)})
}

// pause handles pause and resume.
func (h *jobHandlers) pause(call func(context.Context, string) error, paused bool) httpd.Handler {
	return func(r *httpd.Request, w *httpd.Response) error {
		if _, err := parse[struct{}](r); err != nil {
			return err
		}
		if err := call(r.Context(), r.Param(0)); err != nil {
			return err
		}
		r.Audit("function "+map[bool]string{true: "paused", false: "resumed"}[paused]+" by an operator", "function", r.Param(0))
		return answer(w, schema.Paused{Name: r.Param(0), Paused: paused})
	}
}

func (h *jobHandlers) deadLetters(r *httpd.Request, w *httpd.Response) error {
	cursor, limit, err := pageOf(r)
	if err != nil {
		return err
	}
	if err := jobs.CheckName("function", r.Param(0)); err != nil {
		return err
	}
	page, err := h.queue.List(r.Context(), jobs.ListQuery{Function: r.Param(0), State: jobs.Failed, Limit: limit, Cursor: cursor, Payloads: true})
	if err != nil {
		return err
	}
	return answer(w, schema.DeadPage{Cursor: page.Cursor, DeadLetters: convert(page.Jobs, func(j *jobs.Job) schema.DeadLetter {
		return schema.DeadLetter{ID: j.ID, Job: jobOf(j, formWhole), Reason: cmp.Or(j.Error, "the worker gave no reason"), FailedAt: j.FinishedAt}
	})})
}

func (h *jobHandlers) replayDead(r *httpd.Request, w *httpd.Response) error {
	if _, err := parse[struct{}](r); err != nil {
		return err
	}
	out, err := h.queue.Replay(r.Context(), r.Param(0), r.Param(1))
	if err != nil {
		return err
	}
	if out.Created() {
		r.Audit("job replayed by an operator", "job", r.Param(1), "function", r.Param(0), "copy", out.Job.ID)
	}
	status, body := submissions.Outcome(&out, true)
	w.JSON(status)
	w.Body = append(w.Body, body...)
	return nil
}

// auditJob writes to the audit log what an operator did with a job.
func auditJob(r *httpd.Request, done string, j *jobs.Job) {
	r.Audit("job "+done+" by an operator", "job", j.ID, "function", j.Function)
}

func (h *jobHandlers) stats(r *httpd.Request, w *httpd.Response) error {
	if _, err := r.QueryValues(); err != nil {
		return err
	}
	d, err := h.queue.Depth(r.Context())
	if err != nil {
		return err
	}
	used, err := h.queue.Usage(r.Context())
	if err != nil {
		return err
	}
	counters := h.queue.Counters()
	return answer(w, schema.JobStats{
		Jobs: map[string]int64{
			"scheduled": int64(d.Scheduled), "queued": int64(d.Queued), "active": int64(d.Active), "dead": int64(d.Dead), "done": int64(d.Done),
		},
		Calls: jobCounts(counters), Waiting: counters.Waiting, Bytes: used.Total, RetainedBytes: used.Retained, MaxBytes: used.MaxTotal,
	})
}
