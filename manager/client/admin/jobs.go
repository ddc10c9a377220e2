package admin

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// List returns one page of jobs, without payloads and results.
func (c *Client) List(ctx context.Context, q ListQuery) (*JobPage, error) {
	v := url.Values{}
	for name, value := range map[string]string{
		"function": q.Function, "state": string(q.State), "submitter": q.Submitter, "key": q.Key, "concurrency_key": q.ConcurrencyKey, "error": q.Error, "error_text": q.ErrorText,
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	for name, d := range map[string]time.Duration{"older_than_ms": q.OlderThan, "newer_than_ms": q.NewerThan} {
		if d != 0 {
			v.Set(name, strconv.FormatInt(schema.Millis(d), 10))
		}
	}
	var page JobPage
	call := wire.Call{Method: "GET", Path: "/v1/jobs" + wire.PageQuery(v, q.Limit, q.Cursor)}
	if _, err := c.do(ctx, call, &page); err != nil {
		return nil, err
	}
	if page.Jobs == nil {
		return nil, call.NotOurs("no list of jobs")
	}
	return &page, nil
}

// Cancel cancels a job. The manager's API says what that means for a running job.
func (c *Client) Cancel(ctx context.Context, id string) (*client.Job, error) {
	return c.job(ctx, wire.Call{Method: "POST", Path: wire.JobPath(id) + "/cancel", Body: struct{}{}})
}

// Delete removes a job that no worker has, and returns it as it was. Only administrators may call it.
func (c *Client) Delete(ctx context.Context, id string) (*client.Job, error) {
	return c.job(ctx, wire.Call{Method: "DELETE", Path: wire.JobPath(id)})
}

// Bulk does an action with the jobs of a query, up to its Limit or for about 5 seconds, and the caller continues with the
// cursor. Only administrators may delete. A retry and a replay are not repeated: after a lost answer the jobs may have
// failed again meanwhile.
func (c *Client) Bulk(ctx context.Context, b BulkRequest) (*BulkResult, error) {
	var out BulkResult
	call := wire.Call{Method: "POST", Path: "/v1/jobs/bulk", Body: b, Once: !b.DryRun && (b.Action == Retry || b.Action == Replay)}
	if _, err := c.do(ctx, call, &out); err != nil {
		return nil, err
	}
	if out.Refused == nil {
		return nil, call.NotOurs("no list of refusals")
	}
	return &out, nil
}

// Batches returns one page of batches, the oldest first. Limit: 1 to 1000, 100 when 0.
func (c *Client) Batches(ctx context.Context, limit int, cursor string) (*BatchPage, error) {
	var page BatchPage
	call := wire.Call{Method: "GET", Path: "/v1/batches" + wire.PageQuery(url.Values{}, limit, cursor)}
	if _, err := c.do(ctx, call, &page); err != nil {
		return nil, err
	}
	if page.Batches == nil {
		return nil, call.NotOurs("no list of batches")
	}
	return &page, nil
}

// Events returns one page of the events that functions subscribe to. Limit: 1 to 1000, 100 when 0.
func (c *Client) Events(ctx context.Context, limit int, cursor string) (*EventPage, error) {
	var page EventPage
	call := wire.Call{Method: "GET", Path: "/v1/events" + wire.PageQuery(url.Values{}, limit, cursor)}
	if _, err := c.do(ctx, call, &page); err != nil {
		return nil, err
	}
	if page.Events == nil {
		return nil, call.NotOurs("no list of events")
	}
	return &page, nil
}

// Functions returns one page of functions. Limit: 1 to 1000, 100 when 0.
func (c *Client) Functions(ctx context.Context, limit int, cursor string) (*FunctionPage, error) {
	var page FunctionPage
	call := wire.Call{Method: "GET", Path: "/v1/functions" + wire.PageQuery(url.Values{}, limit, cursor)}
	if _, err := c.do(ctx, call, &page); err != nil {
		return nil, err
	}
	if page.Functions == nil {
		return nil, call.NotOurs("no list of functions")
	}
	return &page, nil
}

// Pause stops the delivery of a function's jobs.
func (c *Client) Pause(ctx context.Context, function string) error {
	return c.function(ctx, function, wire.Call{Method: "POST", Path: functionPath(function) + "/pause", Body: struct{}{}})
}

// SetLimits replaces the limits of a function's jobs. Zero members are removed.
func (c *Client) SetLimits(ctx context.Context, function string, l Limits) error {
	return c.function(ctx, function, wire.Call{Method: "PUT", Path: functionPath(function), Body: l})
}

// Resume starts the delivery of a function's jobs again.
func (c *Client) Resume(ctx context.Context, function string) error {
	return c.function(ctx, function, wire.Call{Method: "POST", Path: functionPath(function) + "/resume", Body: struct{}{}})
}

// function makes a call that changes a function. The answer has its name.
func (c *Client) function(ctx context.Context, name string, call wire.Call) error {
	var changed struct {
		Name string `json:"name"`
	}
	if _, err := c.do(ctx, call, &changed); err != nil {
		return err
	}
	if changed.Name != name {
		return call.NotOurs("no function " + name)
	}
	return nil
}

// DeadLetters returns one page of a function's dead letters, oldest first.
// Limit: 1 to 1000, 100 when 0.
func (c *Client) DeadLetters(ctx context.Context, function string, limit int, cursor string) (*DeadPage, error) {
	var page DeadPage
	call := wire.Call{Method: "GET", Path: functionPath(function) + "/dead-letters" + wire.PageQuery(url.Values{}, limit, cursor)}
	if _, err := c.do(ctx, call, &page); err != nil {
		return nil, err
	}
	if page.DeadLetters == nil {
		return nil, call.NotOurs("no list of dead letters")
	}
	return &page, nil
}

// Replay enqueues a copy of a dead job. It is not repeated: after a lost answer, only the caller can know whether
// another client may have replayed the job meanwhile. A second call then gets a conflict that names
// the copy.
func (c *Client) Replay(ctx context.Context, function, id string) (*client.Job, error) {
	return c.job(ctx, wire.Call{
		Method: "POST", Path: functionPath(function) + "/dead-letters/" + url.PathEscape(id) + "/replay", Body: struct{}{}, Once: true,
	})
}

func functionPath(function string) string { return "/v1/functions/" + url.PathEscape(function) }

// Retry puts a failed or cancelled job back into the queue, after the delay. It is not repeated: after a lost answer the
// job may have failed again meanwhile, and a repetition would run it once more.
func (c *Client) Retry(ctx context.Context, id string, delay time.Duration) (*client.Job, error) {
	body := client.RetryRequest{Delay: &delay}
	return c.job(ctx, wire.Call{Method: "POST", Path: wire.JobPath(id) + "/retry", Body: body, Once: true})
}
