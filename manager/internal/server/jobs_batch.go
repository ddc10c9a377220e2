package server

import (
	"cmp"
	"errors"
	"strconv"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/submit"
)

// batchItem is one submission of a batch as it came.
type batchItem struct {
	submission jobs.Submission
	key        string // "" without one
	body       []byte
	err        error // what is wrong with this item
}

// parseBatch reads {"items": [...]}, each item a submission that may have an idempotency_key. What is wrong with an
// item is that item's err. The error concerns the whole batch.
func parseBatch(b []byte) (items []batchItem, err error) {
	if len(b) > jobs.MaxBatchBytes {
		return nil, batchTooLarge(strconv.Itoa(jobs.MaxBatchBytes) + " bytes")
	}
	var in schema.Submissions
	if err := schema.Parse(b, &in); err != nil {
		return nil, err
	}
	switch n := len(in.Items); {
	case n == 0:
		return nil, &api.FieldError{Field: "items", Allowed: "must be an array of 1 to 128 submissions"}
	case n > jobs.MaxBatch:
		return nil, batchTooLarge(strconv.Itoa(jobs.MaxBatch) + " items")
	}
	for _, item := range in.Items {
		items = append(items, parseBatchItem(item))
	}
	return items, nil
}

func parseBatchItem(body []byte) batchItem {
	it := batchItem{body: body}
	var in schema.Submission
	it.err = within("item", schema.Parse(body, &in))
	var empty *schema.EmptyError
	if in.IdempotencyKey != "" || errors.As(it.err, &empty) && empty.Field == "idempotency_key" {
		it.key = in.IdempotencyKey
		it.err = cmp.Or(api.ValidateKey(it.key), it.err)
	}
	if it.err == nil {
		it.submission, it.err = submissionOf(&in)
	}
	return it
}

func batchTooLarge(most string) error {
	return &httpd.Refusal{P: api.Problem{
		Status: 413, Code: api.CodeTooLarge, Title: "Too large", Detail: "a batch has at most " + most + "; nothing of it was done",
	}}
}

// submitMany handles POST /v1/jobs/batch.
func (h *jobHandlers) submitMany(r *httpd.Request, w *httpd.Response) error {
	in, err := parseBatch(r.Body)
	if err != nil {
		return err
	}
	all, err := submission(r) // what the items have in common
	if err != nil {
		return err
	}
	items := make([]submit.Item, len(in))
	spans := make([]producer, len(in))
	for i := range in {
		it := &items[i]
		it.Call = all
		it.Key, it.Body = in[i].key, in[i].body
		if it.Key == "" && all.Key != "" {
			it.Key = all.Key + "#" + strconv.Itoa(i)
		}
		in[i].submission.Owner, in[i].submission.Place = r.Owner(), i
		if it.Err = in[i].err; it.Err == nil {
			spans[i] = produce(r, &in[i].submission, true)
			it.Job, it.Err = h.queue.Prepare(in[i].submission)
		}
	}
	h.submitter.Jobs(calling(r), items)
	for i := range spans {
		spans[i].end(items[i].Answer.Outcome, items[i].Err)
	}
	w.JSON(200)
	b := append(w.Body, `{"results":[`...)
	for i := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendSubmitted(b, r, &items[i])
	}
	w.Body = append(b, `]}`...)
	return nil
}

// appendSubmitted appends the answer to an item: that of the single call with its status, and what its headers say.
func appendSubmitted(dst []byte, r *httpd.Request, it *submit.Item) []byte {
	var more schema.SubmitResult
	body := it.Answer.Body
	if it.Err != nil {
		p := r.Problem(it.Err, nil)
		body, more.RetryAfter = p.AppendJSON(nil), max(p.RetryAfterSeconds, 0)
	} else {
		more.Replayed = it.Answer.Replayed
		if it.Answer.ContentType != api.ContentTypeProblem { // which has its status
			more.Status = it.Answer.Status
		}
	}
	dst = append(dst, body[:len(body)-1]...)
	if more != (schema.SubmitResult{}) {
		dst = append(dst, ',')
	}
	return append(dst, schema.Append(nil, &more)[1:]...)
}
