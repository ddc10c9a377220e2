package server

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/submit"
)

// eventRoutes are the calls of senders and subscribers.
func (h *jobHandlers) eventRoutes() []httpd.Route {
	return []httpd.Route{
		{Method: "GET", Path: "/v1/events", Roles: readers, Handle: h.events},
		{Method: "POST", Path: "/v1/events/{name}", Roles: submitters, Handle: h.send},
		{Method: "PUT", Path: "/v1/events/{name}/subscriptions/{function}", Roles: workers | httpd.Operator, Handle: h.subscribe},
		{Method: "DELETE", Path: "/v1/events/{name}/subscriptions/{function}", Roles: workers | httpd.Operator, Handle: h.unsubscribe},
	}
}

// send handles POST /v1/events/{name}.
func (h *jobHandlers) send(r *httpd.Request, w *httpd.Response) {
	var in schema.EventRequest
	call, err := submission(r)
	if err == nil {
		err = schema.Parse(r.Body, &in)
	}
	if err == nil && in.Key != "" {
		err = api.ValidateKey(in.Key)
		if err == nil && call.Key != "" && call.Key != in.Key {
			err = &api.FieldError{Field: "key", Value: httpd.Clip(in.Key), Allowed: "must be the same as the header " + api.HeaderIdempotencyKey}
		}
		call.Key = in.Key
	}
	if err != nil {
		r.Error(w, err)
		return
	}
	name := r.Param(0)
	s := jobs.Submission{Event: name, Function: name, Owner: r.Owner()}
	if in.Payload != nil {
		s.Payload = in.Payload.(json.RawMessage)
	}
	in.Key = "" // a repetition may have it in the header
	call.Body = schema.Append(nil, &in)
	span := produce(r, &s, false)
	p, err := h.queue.PrepareEvent(s)
	var a submit.Answer
	var out *jobs.Outcome
	if err == nil {
		if a, err = h.submitter.Event(calling(r), &call, name, p); err == nil && !a.Replayed {
			out = new(jobs.Outcome)
		}
	}
	span.end(out, err)
	submitted(r, w, a, err)
}

// sent is the answer to an event.
func sent(event string, outs []jobs.Outcome) (status int, body []byte) {
	status = 200
	all := make([]schema.EventJob, len(outs))
	for i := range outs {
		status = 202
		all[i] = schema.EventJob{ID: outs[i].Job.ID, Function: outs[i].Job.Function}
	}
	return status, schema.Append(nil, &schema.Sent{Event: event, Jobs: all})
}

// maySubscribe returns an error unless the caller may end and begin subscriptions of the function: an operator, or a
// worker of the function.
func maySubscribe(r *httpd.Request, function string) error {
	mine, limited := r.Functions()
	if !limited || r.May(readers) || slices.Contains(mine, function) {
		return nil
	}
	return httpd.Forbidden("these credentials do not allow work on the function " + strconv.QuoteToASCII(httpd.Clip(function)))
}

func (h *jobHandlers) subscribe(r *httpd.Request, w *httpd.Response) {
	name, function := r.Param(0), r.Param(1)
	err := parseNothing(r.Body)
	if err == nil {
		err = maySubscribe(r, function)
	}
	var s jobs.Subscription
	if err == nil {
		s, err = h.queue.Subscribe(r.Context(), name, function)
	}
	if err != nil {
		r.Error(w, err)
		return
	}
	r.Audit("function subscribed to an event", "event", name, "function", function)
	answer(w, &schema.Subscription{Function: s.Function, Since: s.Since})
}

func (h *jobHandlers) unsubscribe(r *httpd.Request, w *httpd.Response) {
	name, function := r.Param(0), r.Param(1)
	_, err := r.QueryValues()
	if err == nil {
		err = maySubscribe(r, function)
	}
	var s jobs.Subscription
	if err == nil {
		s, err = h.queue.Unsubscribe(r.Context(), name, function)
	}
	if err != nil {
		r.Error(w, err)
		return
	}
	r.Audit("subscription to an event ended", "event", name, "function", function)
	answer(w, &schema.Subscription{Function: s.Function, Since: s.Since})
}

func (h *jobHandlers) events(r *httpd.Request, w *httpd.Response) {
	cursor, limit, err := pageOf(r)
	if err != nil {
		r.Error(w, err)
		return
	}
	page, err := h.queue.Events(r.Context(), limit, cursor)
	if err != nil {
		r.Error(w, err)
		return
	}
	out := schema.EventPage{Events: make([]schema.EventInfo, len(page.Events)), Cursor: page.Cursor}
	for i, e := range page.Events {
		out.Events[i] = schema.EventInfo{Name: e.Name, Subscriptions: make([]schema.Subscription, len(e.Subscriptions))}
		for j, s := range e.Subscriptions {
			out.Events[i].Subscriptions[j] = schema.Subscription{Function: s.Function, Since: s.Since}
		}
	}
	answer(w, &out)
}
