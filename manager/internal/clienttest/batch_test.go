package clienttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// TestSubmitBatch: requests that are cut off and repeated submit each job once, and each answer is at its place.
func TestSubmitBatch(t *testing.T) {
	m := startManager(t)
	largest := 0 // the manager refuses a longer batch
	f := &faults{before: map[string]int{"/v1/jobs/batch": 1}, after: map[string]int{"/v1/jobs/batch": 2}}
	f.answer = func(r *http.Request) *http.Response {
		var sent struct {
			Items []json.RawMessage `json:"items"`
		}
		if body, err := r.GetBody(); err != nil || json.NewDecoder(body).Decode(&sent) != nil {
			t.Errorf("a request that is no batch: %v", err)
		}
		largest = max(largest, len(sent.Items))
		return nil
	}
	c := m.client(f)
	var all []client.Submission
	for i := range 300 {
		all = append(all, client.Submission{Function: "f", ID: fmt.Sprint("job-", i), Payload: i})
	}
	all[7].Function = "not a function"
	all[8] = client.Submission{Function: "f", Payload: strings.Repeat("x", 3<<20)}
	all[9].IdempotencyKey = "own"
	answers, err := c.SubmitBatch(t.Context(), all)
	if err != nil || len(answers) != len(all) {
		t.Fatalf("%d answers, %v", len(answers), err)
	}
	for i, a := range answers {
		var refused *client.Error
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
	if largest != jobs.MaxBatch {
		t.Errorf("the largest batch had %d submissions", largest)
	}
	// The keys of the answers find the same jobs.
	again := []client.Submission{all[0], all[9], {Function: "f", IdempotencyKey: answers[1].IdempotencyKey}}
	again[0].IdempotencyKey, again[1].ID = answers[0].IdempotencyKey, ""
	answers, err = c.SubmitBatch(t.Context(), again)
	if err != nil || !answers[0].Job.Replayed || answers[0].Job.ID != "job-0" || !answers[1].Job.Replayed || answers[1].Job.ID != "job-9" ||
		!client.HasCode(answers[2].Err, api.CodeFingerprintMismatch) {
		t.Errorf("%+v %v", answers, err)
	}
	if answers, err := c.SubmitBatch(t.Context(), nil); err != nil || len(answers) != 0 {
		t.Errorf("nothing: %v %v", answers, err)
	}
	// Without an answer the error has the keys.
	m.stop()
	c = m.clientWith(f, client.Options{MaxAttempts: 1})
	if answers, err := c.SubmitBatch(t.Context(), []client.Submission{{Function: "f"}}); err == nil || len(answers) != 1 || answers[0].IdempotencyKey == "" {
		t.Errorf("without a manager: %v %v", answers, err)
	}
}
