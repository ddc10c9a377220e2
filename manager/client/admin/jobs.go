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
	call := wire.Page("/v1/jobs", v, q.Limit, q.Cursor)
	return wire.Ask(ctx, c.client, call, "no list of jobs", func(page *JobPage) bool { return page.Jobs != nil })
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
	call := wire.Call{Method: "POST", Path: "/v1/jobs/bulk", Body: b, Once: !b.DryRun && (b.Action == Retry || b.Action == Replay)}
	return wire.Ask(ctx, c.client, call, "no list of refusals", func(out *BulkResult) bool { return out.Refused != nil })
}

// Batches returns one page of batches, the oldest first. Limit: 1 to 1000, 100 when 0.
func (c *Client) Batches(ctx context.Context, limit int, cursor string) (*BatchPage, error) {
	call := wire.Page("/v1/batches", nil, limit, cursor)
	return wire.Ask(ctx, c.client, call, "no list of batches", func(page *BatchPage) bool { return page.Batches != nil })
}

// Events returns one page of the events that functions subscribe to. Limit: 1 to 1000, 100 when 0.
func (c *Client) Events(ctx context.Context, limit int, cursor string) (*EventPage, error) {
	call := wire.Page("/v1/events", nil, limit, cursor)
	return wire.Ask(ctx, c.client, call, "no list of events", func(page *EventPage) bool { return page.Events != nil })
}

// Functions returns one page of functions. Limit: 1 to 1000, 100 when 0.
func (c *Client) Functions(ctx context.Context, limit int, cursor string) (*FunctionPage, error) {
	call := wire.Page("/v1/functions", nil, limit, cursor)
	return wire.Ask(ctx, c.client, call, "no list of functions", func(page *FunctionPage) bool { return page.Functions != nil })
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
	type changed struct {
		Name string `json:"name"`
	}
	_, err := wire.Ask(ctx, c.client, call, "no function "+name, func(f *changed) bool { return f.Name == name })
	return err
}

// DeadLetters returns one page of a function's dead letters, oldest first.
// Limit: 1 to 1000, 100 when 0.
func (c *Client) DeadLetters(ctx context.Context, function string, limit int, cursor string) (*DeadPage, error) {
	call := wire.Page(functionPath(function)+"/dead-letters", nil, limit, cursor)
	return wire.Ask(ctx, c.client, call, "no list of dead letters", func(page *DeadPage) bool { return page.DeadLetters != nil })
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
