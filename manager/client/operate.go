package client

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"
)

// Get returns a job with its payload and result.
func (c *Client) Get(ctx context.Context, id string) (*Job, error) {
	return c.job(ctx, call{method: "GET", path: jobPath(id)})
}

// job makes a call whose answer is a job.
func (c *Client) job(ctx context.Context, call call) (*Job, error) {
	var j Job
	var err error
	if j.Replayed, err = c.do(ctx, call, &j); err != nil {
		return nil, err
	}
	if j.ID == "" || j.State == "" {
		return nil, call.notOurs("no job")
	}
	return &j, nil
}

// List returns one page of jobs, without payloads and results.
func (c *Client) List(ctx context.Context, q ListQuery) (*JobPage, error) {
	v := url.Values{}
	for name, value := range map[string]string{"function": q.Function, "state": q.State, "submitter": q.Submitter, "error": q.Error} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if q.OlderThanMS != 0 {
		v.Set("older_than_ms", strconv.FormatInt(q.OlderThanMS, 10))
	}
	var page JobPage
	_, err := c.do(ctx, call{method: "GET", path: "/v1/jobs" + pageQuery(v, q.Limit, q.Cursor)}, &page)
	return &page, err
}

func pageQuery(v url.Values, limit int, cursor string) string {
	if limit != 0 {
		v.Set("limit", strconv.Itoa(limit))
	}
	if cursor != "" {
		v.Set("cursor", cursor)
	}
	if len(v) == 0 {
		return ""
	}
	return "?" + v.Encode()
}

// Cancel cancels a job. The manager's API says what that means for a running job.
func (c *Client) Cancel(ctx context.Context, id string) (*Job, error) {
	return c.job(ctx, call{method: "POST", path: jobPath(id) + "/cancel", body: struct{}{}})
}

// Delete removes a job that no worker has, and returns it as it was. Only administrators may call it.
func (c *Client) Delete(ctx context.Context, id string) (*Job, error) {
	return c.job(ctx, call{method: "DELETE", path: jobPath(id)})
}

// Bulk does an action with the jobs of a query, up to its Limit or for about 5 seconds, and the caller goes on with the
// cursor. Only administrators may delete. A retry and a replay are not repeated: after a lost answer the jobs may have
// failed again meanwhile.
func (c *Client) Bulk(ctx context.Context, b BulkRequest) (*BulkResult, error) {
	var out BulkResult
	call := call{method: "POST", path: "/v1/jobs/bulk", body: b, once: !b.DryRun && (b.Action == "retry" || b.Action == "replay")}
	if _, err := c.do(ctx, call, &out); err != nil {
		return nil, err
	}
	if out.Refused == nil {
		return nil, call.notOurs("no list of refusals")
	}
	return &out, nil
}

// Retry puts a job back into the queue. Without a lease token it is not repeated: after a lost answer the job may have
// failed again meanwhile, and a repetition would run it once more.
func (c *Client) Retry(ctx context.Context, id string, r RetryRequest) (*Job, error) {
	return c.job(ctx, call{method: "POST", path: jobPath(id) + "/retry", body: r, once: r.LeaseToken == ""})
}

// Claim leases jobs. It is not repeated, because a caller claims in a loop anyway.
func (c *Client) Claim(ctx context.Context, r ClaimRequest) ([]Job, error) {
	var out struct {
		Jobs []Job `json:"jobs"`
	}
	call := call{method: "POST", path: "/v1/jobs/claim", body: r, once: true, wait: time.Duration(r.WaitMS) * time.Millisecond}
	if _, err := c.do(ctx, call, &out); err != nil {
		return nil, err
	}
	if out.Jobs == nil {
		return nil, call.notOurs("no list of jobs")
	}
	return out.Jobs, nil
}

// Heartbeat extends a lease to the given time from now, or to the claim's duration when lease is 0. It is not repeated:
// the next heartbeat serves as a repetition.
func (c *Client) Heartbeat(ctx context.Context, id, token string, lease time.Duration) (*Beat, error) {
	body := struct {
		Token   string `json:"lease_token"`
		LeaseMS int64  `json:"lease_ms,omitempty"`
	}{token, lease.Milliseconds()}
	var b Beat
	call := call{method: "POST", path: jobPath(id) + "/heartbeat", body: body, once: true}
	if _, err := c.do(ctx, call, &b); err != nil {
		return nil, err
	}
	if b.ExpiresInMS <= 0 {
		return nil, call.notOurs("no lease")
	}
	return &b, nil
}

// Finish ends a job.
func (c *Client) Finish(ctx context.Context, f FinishRequest) (*Job, error) {
	id := f.ID
	f.ID = ""
	return c.job(ctx, call{method: "POST", path: jobPath(id) + "/finish", body: f})
}

// FinishMany ends up to 1000 jobs in one transaction. The i-th error is for the i-th job; the last result is an error
// for all of them.
func (c *Client) FinishMany(ctx context.Context, fs []FinishRequest) ([]error, error) {
	body := struct {
		Finishes []FinishRequest `json:"finishes"`
	}{fs}
	var out struct {
		Results []struct {
			ID      string   `json:"id"`
			State   string   `json:"state"`
			Problem *problem `json:"problem"`
		} `json:"results"`
	}
	call := call{method: "POST", path: "/v1/jobs/finish", body: body}
	if _, err := c.do(ctx, call, &out); err != nil {
		return nil, err
	}
	if len(out.Results) != len(fs) {
		return nil, call.notOurs(fmt.Sprintf("%d results for %d jobs", len(out.Results), len(fs)))
	}
	errs := make([]error, len(fs))
	for i, r := range out.Results {
		switch {
		case r.Problem != nil:
			errs[i] = r.Problem.error()
		case r.ID != fs[i].ID || r.State == "":
			return nil, call.notOurs(fmt.Sprintf("result %d is not of job %s", i, fs[i].ID))
		}
	}
	return errs, nil
}

// Functions returns one page of functions. Limit: 1 to 1000, 100 when 0.
func (c *Client) Functions(ctx context.Context, limit int, cursor string) (*FunctionPage, error) {
	var page FunctionPage
	_, err := c.do(ctx, call{method: "GET", path: "/v1/functions" + pageQuery(url.Values{}, limit, cursor)}, &page)
	return &page, err
}

// Pause stops the delivery of a function's jobs.
func (c *Client) Pause(ctx context.Context, function string) error {
	_, err := c.do(ctx, call{method: "POST", path: functionPath(function) + "/pause", body: struct{}{}}, nil)
	return err
}

// Resume starts the delivery of a function's jobs again.
func (c *Client) Resume(ctx context.Context, function string) error {
	_, err := c.do(ctx, call{method: "POST", path: functionPath(function) + "/resume", body: struct{}{}}, nil)
	return err
}

// DeadLetters returns one page of a function's dead letters, oldest first.
// Limit: 1 to 1000, 100 when 0.
func (c *Client) DeadLetters(ctx context.Context, function string, limit int, cursor string) (*DeadPage, error) {
	var page DeadPage
	path := functionPath(function) + "/dead-letters" + pageQuery(url.Values{}, limit, cursor)
	_, err := c.do(ctx, call{method: "GET", path: path}, &page)
	return &page, err
}

// Replay enqueues a copy of a dead job. It is not repeated: after a lost answer, only the caller can know whether
// another client may have replayed the job meanwhile. A second call then gets a conflict that names
// the copy.
func (c *Client) Replay(ctx context.Context, function, id string) (*Job, error) {
	return c.job(ctx, call{
		method: "POST", path: functionPath(function) + "/dead-letters/" + url.PathEscape(id) + "/replay", body: struct{}{}, once: true,
	})
}

func functionPath(function string) string { return "/v1/functions/" + url.PathEscape(function) }
