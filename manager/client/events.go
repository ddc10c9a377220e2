package client

import (
	"context"
	"net/url"

	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Event is sent to the functions that subscribe to its name.
type Event struct {
	Name string
	// Payload is encoded as JSON. Use a json.RawMessage for a value that is JSON already.
	Payload any
	// IdempotencyKey of the call; drawn from the client's Keys when empty.
	IdempotencyKey string
	// Traceparent as in Submission.
	Traceparent string
}

// SendIdempotent sends an event at most once. The event becomes one job for each function that subscribes to it, in one
// transaction. A repetition with the same key enqueues nothing and gets the first call's answer, whatever subscribed in
// between. Errors as for SubmitIdempotent.
func (c *Client) SendIdempotent(ctx context.Context, e Event) (*Sent, error) {
	if e.IdempotencyKey == "" {
		e.IdempotencyKey = c.opts.Keys.Next()
	}
	call := wire.Call{Method: "POST", Path: "/v1/events/" + url.PathEscape(e.Name), Key: e.IdempotencyKey, Trace: e.Traceparent, Body: schema.EventRequest{Payload: e.Payload}}
	complete := func(out *Sent) bool { return out.Jobs != nil }
	return wire.AskReplayed(ctx, c, call, "no list of jobs", complete, func(out *Sent) *bool { return &out.Replayed })
}

// Subscribe makes each event of this name that is sent from now on a job of the function. The subscription lasts until
// Unsubscribe. Subscribing twice is not an error.
func (c *Client) Subscribe(ctx context.Context, event, function string) error {
	_, err := c.do(ctx, wire.Call{Method: "PUT", Path: subscriptionPath(event, function), Body: struct{}{}}, new(schema.Subscription))
	return err
}

// Unsubscribe ends a subscription. Jobs that it has made stay. Ending one that does not exist is not an error.
func (c *Client) Unsubscribe(ctx context.Context, event, function string) error {
	_, err := c.do(ctx, wire.Call{Method: "DELETE", Path: subscriptionPath(event, function)}, new(schema.Subscription))
	return err
}

func subscriptionPath(event, function string) string {
	return "/v1/events/" + url.PathEscape(event) + "/subscriptions/" + url.PathEscape(function)
}
