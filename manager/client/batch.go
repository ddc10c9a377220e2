package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Submitted is the answer to one submission of a batch.
type Submitted struct {
	// Job, if Err is nil. Its Replayed reports whether the answer was recorded for an earlier attempt.
	Job *Job
	// Err is what SubmitIdempotent would have returned for this submission alone: an *Error that is Temporary asks to
	// repeat it, with the same key.
	Err error
	// IdempotencyKey is the submission's, for a repetition.
	IdempotencyKey string
}

// Bounds of a batch; those of the bytes leave room for what is around the items.
const (
	maxBatchItems     = 128
	maxBatchItemBytes = 2<<20 - 64
)

// SubmitBatch submits jobs at most once each, in as few requests as possible. Each submission is judged by itself and has
// a key of its own, which is drawn from the client's Keys when it is empty. The i-th answer is to the i-th submission.
//
// The error says that one of the requests had no answer: it is then unknown which of its jobs, and of those after it,
// were enqueued. The answers up to there, and all keys, are returned with it. Repeating the same submissions with those
// keys finds out.
func (c *Client) SubmitBatch(ctx context.Context, all []Submission) ([]Submitted, error) {
	answers := make([]Submitted, len(all))
	encoded := make([]json.RawMessage, len(all))
	for i := range all {
		s := all[i]
		if s.IdempotencyKey == "" {
			s.IdempotencyKey = c.opts.Keys.Next()
		}
		answers[i].IdempotencyKey = s.IdempotencyKey
		// A member has the key itself, a header perhaps its RFC 8941 string. The manager judges a key that is neither.
		if key, wrong := api.HeaderKey(s.IdempotencyKey); wrong == "" {
			s.IdempotencyKey = key
		}
		b, err := json.Marshal(s)
		if err != nil {
			return answers, fmt.Errorf("client: submission %d: %w", i, err)
		}
		encoded[i] = b
	}
	for begin := 0; begin < len(all); {
		end, size := begin, 0
		for ; end < len(all) && end-begin < maxBatchItems && (end == begin || size+len(encoded[end]) < maxBatchItemBytes); end++ {
			size += len(encoded[end]) + 1
		}
		err := c.submitBatch(ctx, encoded[begin:end], answers[begin:end])
		if size > maxBatchItemBytes && refused(err) { // a single one, which is too large
			answers[begin].Err, err = err, nil
		}
		if err != nil {
			return answers, err
		}
		begin = end
	}
	return answers, nil
}

// submitBatch makes one request.
func (c *Client) submitBatch(ctx context.Context, items []json.RawMessage, answers []Submitted) error {
	var out struct {
		Results []json.RawMessage `json:"results"`
	}
	call := wire.Call{Method: http.MethodPost, Path: "/v1/jobs/batch", Body: schema.Submissions{Items: items}}
	if _, err := c.do(ctx, call, &out); err != nil {
		return err
	}
	if len(out.Results) != len(items) {
		return call.NotOurs(fmt.Sprintf("%d results for %d jobs", len(out.Results), len(items)))
	}
	for i, b := range out.Results {
		var r struct {
			api.Problem
			RetryAfter uint32 `json:"retry_after"`
			Replayed   bool   `json:"replayed"`
		}
		if err := json.Unmarshal(b, &r); err != nil {
			return call.NotOurs(err.Error())
		}
		if r.Code != "" {
			e := problemError(&r.Problem)
			e.RetryAfter, e.Replayed = time.Duration(r.RetryAfter)*time.Second, r.Replayed
			answers[i].Err = e
			continue
		}
		j := &Job{}
		if err := json.Unmarshal(b, j); err != nil || r.Status/100 != 2 || j.ID == "" || j.State == "" {
			return call.NotOurs(fmt.Sprintf("result %d is no job", i))
		}
		j.Replayed = r.Replayed
		answers[i].Job = j
	}
	return nil
}
