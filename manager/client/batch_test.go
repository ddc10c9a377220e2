package client

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// TestSubmitBatch: requests that are cut off and repeated submit each job once, and each answer is at its place.
func TestSubmitBatch(t *testing.T) {
	if maxBatchItems != jobs.MaxBatch || maxBatchItemBytes >= jobs.MaxBatchBytes {
		t.Errorf("the bounds are not the manager's: %d %d", maxBatchItems, maxBatchItemBytes)
	}
	m := startManager(t)
	f := &faults{before: map[string]int{"/v1/jobs/batch": 1}, after: map[string]int{"/v1/jobs/batch": 2}}
	c := m.client(f)
	var all []Submission
	for i := range 300 {
		all = append(all, Submission{Function: "f", ID: fmt.Sprint("job-", i), Payload: i})
	}
	all[7].Function = "not a function"
	all[8] = Submission{Function: "f", Payload: strings.Repeat("x", 3<<20)}
	all[9].IdempotencyKey = "own"
	answers, err := c.SubmitBatch(t.Context(), all)
	if err != nil || len(answers) != len(all) {
		t.Fatalf("%d answers, %v", len(answers), err)
	}
	for i, a := range answers {
		var refused *Error
		switch {
		case i == 7 || i == 8:
			if !errors.As(a.Err, &refused) || refused.Temporary() || refused.Status != 400 && refused.Status != 413 || a.Job != nil {
				t.Errorf("answer %d: %+v", i, a)
			}
		case a.Err != nil || a.Job.ID != all[i].ID || a.IdempotencyKey == "" || i == 9 && a.IdempotencyKey != "own":
			t.Errorf("answer %d: %+v", i, a)
		}
	}
	// 8 items, the large one by itself, 128, 128 and 35; the first three times more.
	if n := len(f.requests("/v1/jobs/batch")); n != 8 {
		t.Errorf("%d requests", n)
	}
	if n := len(m.all()); n != len(all)-2 {
		t.Errorf("%d jobs", n)
	}
	// The keys of the answers find the same jobs.
	again := []Submission{all[0], all[9], {Function: "f", IdempotencyKey: answers[1].IdempotencyKey}}
	again[0].IdempotencyKey, again[1].ID = answers[0].IdempotencyKey, ""
	answers, err = c.SubmitBatch(t.Context(), again)
	if err != nil || !answers[0].Job.Replayed || answers[0].Job.ID != "job-0" || !answers[1].Job.Replayed || answers[1].Job.ID != "job-9" ||
		!HasCode(answers[2].Err, api.CodeFingerprintMismatch) {
		t.Errorf("%+v %v", answers, err)
	}
	if answers, err := c.SubmitBatch(t.Context(), nil); err != nil || len(answers) != 0 {
		t.Errorf("nothing: %v %v", answers, err)
	}
	// Without an answer the keys are told.
	m.stop()
	c.opts.MaxAttempts = 1
	if answers, err := c.SubmitBatch(t.Context(), []Submission{{Function: "f"}}); err == nil || len(answers) != 1 || answers[0].IdempotencyKey == "" {
		t.Errorf("without a manager: %v %v", answers, err)
	}
}
