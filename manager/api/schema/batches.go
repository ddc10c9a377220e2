package schema

import (
	"encoding/json"
	"time"
)

// BatchRequest submits a batch of jobs.
type BatchRequest struct {
	// Jobs are 1 to 1000 submissions.
	Jobs []json.RawMessage `json:"jobs" max:"1000" wrong:"must be an array of 1 to 1000 submissions"`
	// Callback is the submission of the job that runs when all jobs have ended; nil for none.
	Callback json.RawMessage `json:"callback,omitempty"`
}

// Batch is what became of the jobs that were submitted together.
type Batch struct {
	ID string `json:"id"`
	// Jobs are the ids of the jobs in the order of the request. Only the answer to the submission has them. A job that
	// another one stands for does not belong to the batch.
	Jobs []string `json:"jobs,omitempty"`
	// Total jobs belong to it. Pending ones have not ended, and the others did as the counts say.
	Total     int       `json:"total"`
	Pending   int       `json:"pending"`
	Complete  int       `json:"complete"`
	Failed    int       `json:"failed"`
	Cancelled int       `json:"cancelled"`
	Expired   int       `json:"expired"`
	CreatedAt time.Time `json:"created_at,omitzero"`
	// FinishedAt is when the last job ended; zero before.
	FinishedAt time.Time `json:"finished_at,omitzero"`
	// Callback is the id of the callback's job.
	Callback string `json:"callback,omitempty"`
	// Replayed: the answer was recorded for an earlier attempt.
	Replayed bool `json:"-"`
}

// BatchPage is one page of batches; Cursor is empty on the last one.
type BatchPage struct {
	Batches []Batch `json:"batches"`
	Cursor  string  `json:"cursor"`
}
