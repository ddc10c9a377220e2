package client

import (
	"context"
	"encoding/json"
	"net/url"

	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Batch is a set of jobs that are submitted together, all of them or none.
type Batch struct {
	// Jobs are 1 to 1000 submissions. Their IdempotencyKey counts for nothing.
	Jobs []Submission
	// Callback, if set, runs when the last of them has ended, once. Its Job.After is the batch's id. It has neither RunAt nor
	// Delay.
	Callback *Submission
	// IdempotencyKey of the call; drawn from the client's Keys when empty.
	IdempotencyKey string
	// Traceparent as in Submission.
	Traceparent string
}

// StartBatch submits a batch at most once. Errors as for SubmitIdempotent.
func (c *Client) StartBatch(ctx context.Context, b Batch) (*BatchInfo, error) {
	if b.IdempotencyKey == "" {
		b.IdempotencyKey = c.opts.Keys.Next()
	}
	var in schema.BatchRequest
	one := func(s Submission) (json.RawMessage, error) {
		s.IdempotencyKey = ""
		return json.Marshal(s)
	}
	for _, s := range b.Jobs {
		body, err := one(s)
		if err != nil {
			return nil, err
		}
		in.Jobs = append(in.Jobs, body)
	}
	if b.Callback != nil {
		body, err := one(*b.Callback)
		if err != nil {
			return nil, err
		}
		in.Callback = body
	}
	return c.batch(ctx, wire.Call{Method: "POST", Path: "/v1/batches", Key: b.IdempotencyKey, Trace: b.Traceparent, Body: in})
}

// GetBatch returns a batch without the ids of its jobs.
func (c *Client) GetBatch(ctx context.Context, id string) (*BatchInfo, error) {
	return c.batch(ctx, wire.Call{Method: "GET", Path: batchPath(id)})
}

// WaitBatch returns a batch once all of its jobs have ended.
func (c *Client) WaitBatch(ctx context.Context, id string) (*BatchInfo, error) {
	return waitFor(ctx, batchPath(id), c.batch, func(b *BatchInfo) bool { return b.Pending == 0 })
}

func batchPath(id string) string { return "/v1/batches/" + url.PathEscape(id) }

func (c *Client) batch(ctx context.Context, call wire.Call) (*BatchInfo, error) {
	complete := func(b *BatchInfo) bool { return b.ID != "" }
	return wire.AskReplayed(ctx, c, call, "no batch", complete, func(b *BatchInfo) *bool { return &b.Replayed })
}
