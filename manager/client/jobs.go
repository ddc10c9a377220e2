package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Get returns a job with its payload and result.
func (c *Client) Get(ctx context.Context, id string) (*Job, error) {
	return c.job(ctx, wire.Call{Method: "GET", Path: wire.JobPath(id)})
}

// job makes a call whose answer is a job.
func (c *Client) job(ctx context.Context, call wire.Call) (*Job, error) {
	complete := func(j *Job) bool { return j.ID != "" && j.State != "" }
	return wire.AskReplayed(ctx, c, call, "no job", complete, func(j *Job) *bool { return &j.Replayed })
}

// Retry puts a worker's job back into the queue. Operators use package admin.
func (c *Client) Retry(ctx context.Context, id string, r RetryRequest) (*Job, error) {
	if r.LeaseToken == "" {
		return nil, errors.New("client: LeaseToken: must be that of the job's lease")
	}
	return c.job(ctx, wire.Call{Method: "POST", Path: wire.JobPath(id) + "/retry", Body: r})
}

// Claim leases jobs. It is not repeated, because a caller claims in a loop anyway.
func (c *Client) Claim(ctx context.Context, r ClaimRequest) ([]Job, error) {
	call := wire.Call{Method: "POST", Path: "/v1/jobs/claim", Body: r, Once: true, Wait: r.Wait}
	out, err := wire.Ask(ctx, c, call, "no list of jobs", func(out *schema.Claimed) bool { return out.Jobs != nil })
	if err != nil {
		return nil, err
	}
	return out.Jobs, nil
}

// Heartbeat extends a lease to the given time from now, or to the claim's duration when lease is 0. It is not repeated:
// the next heartbeat serves as a repetition.
func (c *Client) Heartbeat(ctx context.Context, id, token string, lease time.Duration) (*Beat, error) {
	body := schema.HeartbeatRequest{LeaseToken: token, Lease: lease}
	call := wire.Call{Method: "POST", Path: wire.JobPath(id) + "/heartbeat", Body: body, Once: true}
	return wire.Ask(ctx, c, call, "no lease", func(b *Beat) bool { return b.ExpiresIn > 0 })
}

// Finish ends a job.
func (c *Client) Finish(ctx context.Context, f FinishRequest) (*Job, error) {
	id := f.ID
	f.ID = ""
	return c.job(ctx, wire.Call{Method: "POST", Path: wire.JobPath(id) + "/finish", Body: f})
}

// FinishMany ends up to 1000 jobs, in one transaction if they fit into one. The i-th error is for the i-th job; the last result is an error
// for all of them.
func (c *Client) FinishMany(ctx context.Context, fs []FinishRequest) ([]error, error) {
	var out schema.Finished
	call := wire.Call{Method: "POST", Path: "/v1/jobs/finish", Body: schema.Finishes{Finishes: fs}}
	if _, err := c.do(ctx, call, &out); err != nil {
		return nil, err
	}
	if len(out.Results) != len(fs) {
		return nil, call.NotOurs(fmt.Sprintf("%d results for %d jobs", len(out.Results), len(fs)))
	}
	errs := make([]error, len(fs))
	for i, r := range out.Results {
		switch {
		case r.Problem != nil:
			errs[i] = problemError(r.Problem)
		case r.ID != fs[i].ID || r.State == "":
			return nil, call.NotOurs(fmt.Sprintf("result %d is not of job %s", i, fs[i].ID))
		}
	}
	return errs, nil
}
