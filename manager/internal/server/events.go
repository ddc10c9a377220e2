package server

import (
	"context"
	"encoding/json"
	"slices"

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
func (h *jobHandlers) send(r *httpd.Request, w *httpd.Response) error {
	call, err := submission(r)
	if err != nil {
		return err
	}
	in, err := parse[schema.EventRequest](r)
	if err != nil {
		return err
	}
	if in.Key != "" {
		if err := api.ValidateKey(in.Key); err != nil {
			return err
		}
		if call.Key != "" && call.Key != in.Key {
			return &api.FieldError{Field: "key", Value: httpd.Clip(in.Key), Allowed: "must be the same as the header " + api.HeaderIdempotencyKey}
		}
		call.Key = in.Key
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
	return submitted(w, a, err)
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

// changeSubscription begins or ends a subscription of a function. The caller must be an operator, or a worker of the function.
func changeSubscription(r *httpd.Request, w *httpd.Response, done string, change func(ctx context.Context, event, function string) (jobs.Subscription, error)) error {
	name, function := r.Param(0), r.Param(1)
	if mine, limited := r.Functions(); limited && !r.May(readers) && !slices.Contains(mine, function) {
		return notYours(function)
	}
	s, err := change(r.Context(), name, function)
	if err != nil {
		return err
	}
	r.Audit(done, "event", name, "function", function)
	return answer(w, schema.Subscription(s))
}

func (h *jobHandlers) subscribe(r *httpd.Request, w *httpd.Response) error {
	if _, err := parse[struct{}](r); err != nil {
		return err
	}
	return changeSubscription(r, w, "function subscribed to an event", h.queue.Subscribe)
}

func (h *jobHandlers) unsubscribe(r *httpd.Request, w *httpd.Response) error {
	if _, err := r.QueryValues(); err != nil {
		return err
	}
	return changeSubscription(r, w, "subscription to an event ended", h.queue.Unsubscribe)
}

func (h *jobHandlers) events(r *httpd.Request, w *httpd.Response) error {
	cursor, limit, err := pageOf(r)
	if err != nil {
		return err
	}
	page, err := h.queue.Events(r.Context(), limit, cursor)
	if err != nil {
		return err
	}
	return answer(w, schema.EventPage{Cursor: page.Cursor, Events: convert(page.Events, func(e *jobs.Event) schema.EventInfo {
		return schema.EventInfo{Name: e.Name, Subscriptions: convert(e.Subscriptions, func(s *jobs.Subscription) schema.Subscription { return schema.Subscription(*s) })}
	})})
}
