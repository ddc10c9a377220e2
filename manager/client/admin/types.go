package admin

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// ListQuery selects jobs. Zero values do not restrict it.
type ListQuery struct {
	Function string       `json:"function,omitempty"`
	State    client.State `json:"state,omitempty"`
	// Submitter as in Job.
	Submitter string `json:"submitter,omitempty"`
	// OlderThan selects jobs that ended at least this long ago, and, of those that have not ended, jobs that were
	// submitted at least this long ago.
	OlderThan time.Duration `json:"-"` // older_than_ms
	// Error selects jobs whose last error is of the same kind: the first line is equal except for ids and long numbers.
	Error string `json:"error,omitempty"`
	// Limit bounds the jobs of one call: 1 to 1000. When 0, List returns 100, and Bulk takes 1000.
	Limit  int    `json:"limit,omitempty"`
	Cursor string `json:"cursor,omitempty"`
}

// Action is what Bulk does with jobs.
type Action string

// The actions of Bulk.
const (
	Cancel Action = "cancel"
	Retry  Action = "retry"
	Replay Action = "replay"
	Delete Action = "delete"
)

// BulkRequest is an action with all jobs that a query selects.
type BulkRequest struct {
	Action Action
	// ListQuery selects the jobs. It needs a State that the action applies to.
	ListQuery
	// DryRun only counts.
	DryRun bool
}

// MarshalJSON encodes the request as the API takes it.
func (b BulkRequest) MarshalJSON() ([]byte, error) {
	type plain ListQuery
	return wire.Marshal(struct {
		Action Action `json:"action"`
		plain
		OlderThanMS int64 `json:"older_than_ms,omitempty"`
		DryRun      bool  `json:"dry_run,omitempty"`
	}{b.Action, plain(b.ListQuery), wire.MS(b.OlderThan), b.DryRun})
}

// BulkResult is what a bulk action did.
type BulkResult struct {
	// Matched jobs were selected, and Done of them were changed: none in a dry run.
	Matched int `json:"matched"`
	Done    int `json:"done"`
	// Refused are the jobs that were not changed.
	Refused []Refusal `json:"refused"`
	// Cursor leads to the next part; empty when this was the last one.
	Cursor string `json:"cursor"`
}

// Refusal says why a job was not changed.
type Refusal struct {
	ID      string  `json:"id"`
	Problem Problem `json:"problem"`
}

// Problem is an answer that is not a success.
type Problem struct {
	Status int      `json:"status"`
	Code   api.Code `json:"code"`
	Title  string   `json:"title"`
	Detail string   `json:"detail"`
}

// Err is the refusal as the error of the single call.
func (r *Refusal) Err() error {
	p := &r.Problem
	return &client.Error{Status: p.Status, Code: p.Code, Detail: cmp.Or(p.Detail, p.Title)}
}

// JobPage is one page of jobs; Cursor is empty on the last one.
type JobPage struct {
	Jobs   []client.Job `json:"jobs"`
	Cursor string       `json:"cursor"`
}

// Function describes one function.
type Function struct {
	Name     string    `json:"name"`
	Paused   bool      `json:"paused"`
	PausedAt time.Time `json:"paused_at,omitzero"`
	// Queued, Scheduled, Active and Dead count its jobs.
	Queued    int `json:"queued"`
	Scheduled int `json:"scheduled"`
	Active    int `json:"active"`
	Dead      int `json:"dead"`
	// AtLeast: there are more jobs than the counts say.
	AtLeast bool `json:"at_least,omitempty"`
	// OldestQueued is for how long the queued job that waits longest could have run; 0 without one.
	OldestQueued time.Duration `json:"-"` // oldest_queued_ms
	// LastDeadAt is when the newest dead letter failed; zero without one.
	LastDeadAt time.Time `json:"last_dead_at,omitzero"`
	// LastMinute is what the manager that answers did with the function's jobs in the last minute.
	LastMinute FunctionRates `json:"last_minute"`
}

type plainFunction Function

type wireFunction struct {
	*plainFunction
	OldestQueuedMS int64 `json:"oldest_queued_ms"`
}

// MarshalJSON encodes the function as the API does.
func (f Function) MarshalJSON() ([]byte, error) {
	return wire.Marshal(wireFunction{(*plainFunction)(&f), wire.MS(f.OldestQueued)})
}

// UnmarshalJSON decodes a function of the API.
func (f *Function) UnmarshalJSON(b []byte) error {
	w := wireFunction{plainFunction: (*plainFunction)(f)}
	err := json.Unmarshal(b, &w)
	f.OldestQueued = wire.Duration(w.OldestQueuedMS)
	return err
}

// FunctionRates count what happened to jobs of a function. Failed ones became dead letters, and Retried ones have another
// attempt.
type FunctionRates struct {
	Enqueued  int64 `json:"enqueued"`
	Claimed   int64 `json:"claimed"`
	Completed int64 `json:"completed"`
	Failed    int64 `json:"failed"`
	Retried   int64 `json:"retried"`
}

// FunctionPage is one page of functions; Cursor is empty on the last one.
type FunctionPage struct {
	Functions []Function `json:"functions"`
	Cursor    string     `json:"cursor"`
}

// DeadLetter is a failed job that waits for an operator's decision.
type DeadLetter struct {
	ID       string     `json:"id"`
	Job      client.Job `json:"job"`
	Reason   string     `json:"reason"`
	FailedAt time.Time  `json:"failed_at"`
}

// DeadPage is one page of dead letters; Cursor is empty on the last one.
type DeadPage struct {
	DeadLetters []DeadLetter `json:"dead_letters"`
	Cursor      string       `json:"cursor"`
}
