package client

import (
	"encoding/json"
	"time"
)

// Job is a job as the manager returns it. Members that do not apply have their zero value.
type Job struct {
	ID       string          `json:"id"`
	Function string          `json:"function"`
	Payload  json.RawMessage `json:"payload,omitempty"`
	// PayloadBytes stands for the payload in the answer to a submission or a replay.
	PayloadBytes int    `json:"payload_bytes,omitempty"`
	Key          string `json:"key,omitempty"`
	// State: scheduled, queued, active, complete, failed, cancelled or replayed.
	State       string    `json:"state"`
	Priority    int       `json:"priority"`
	Attempt     int       `json:"attempt"`
	MaxAttempts int       `json:"max_attempts"`
	RunAt       time.Time `json:"run_at,omitzero"`
	CreatedAt   time.Time `json:"created_at,omitzero"`
	StartedAt   time.Time `json:"started_at,omitzero"`
	FinishedAt  time.Time `json:"finished_at,omitzero"`
	// Submitter is a digest that tells submitters apart. Answers to operators have it, and what Get answers to the
	// submitter.
	Submitter string          `json:"submitter,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     string          `json:"error,omitempty"`
	// Errors are those of the last five attempts that failed, the oldest first, each clipped to 512 bytes. Get returns
	// them.
	Errors []AttemptError `json:"errors,omitempty"`
	// Traceparent is the W3C trace context of the span that submitted the job; empty if there was none. Claim and Get
	// return it. A handler continues the trace with it, or links its own span to it.
	Traceparent string `json:"traceparent,omitempty"`
	// CancelRequested: cancelled while a worker holds it.
	CancelRequested bool `json:"cancel_requested,omitempty"`
	// ReplayedAs is the id of the copy that an operator enqueued of a replayed job.
	ReplayedAs string `json:"replayed_as,omitempty"`
	Dedup      *Dedup `json:"dedup,omitempty"`
	Lease      *Lease `json:"lease,omitempty"`
	// WALLocations are, by database, the Postgres LSNs that a replica must have
	// reached before the job may read from it.
	WALLocations map[string]string `json:"wal_locations,omitempty"`
	// Deduplicated: the submission was dropped as a duplicate of this job.
	Deduplicated bool `json:"deduplicated,omitempty"`
	// Existing: the job held the submission's key already.
	Existing bool `json:"existing,omitempty"`
	// Replayed: the answer was recorded for an earlier attempt.
	Replayed bool `json:"-"`
}

// Terminal reports whether the job is over.
func (j *Job) Terminal() bool {
	return j.State == "complete" || j.State == "failed" || j.State == "cancelled" || j.State == "replayed"
}

// AttemptError is how an attempt ended that did not do the work.
type AttemptError struct {
	Attempt int       `json:"attempt"`
	At      time.Time `json:"at"`
	Worker  string    `json:"worker"`
	Error   string    `json:"error"`
}

// Lease is a worker's lease of a job.
type Lease struct {
	Worker string `json:"worker,omitempty"`
	// Token is only told to the worker.
	Token       string `json:"token,omitempty"`
	ExpiresInMS int64  `json:"expires_in_ms"`
}

// Dedup asks the manager to drop duplicates of a job.
type Dedup struct {
	// Strategy: until_executing, the default, or until_executed.
	Strategy string `json:"strategy,omitempty"`
	// Key identifies duplicates instead of the job's key or payload.
	Key string `json:"key,omitempty"`
	// TTLMS releases a lock that was not released otherwise; 6 h when 0.
	TTLMS int64 `json:"ttl_ms,omitempty"`
	// IfDeduplicated: "reschedule_once" runs the job once more if duplicates were dropped; only with until_executed.
	IfDeduplicated string `json:"if_deduplicated,omitempty"`
}

// Submission describes a job to enqueue.
type Submission struct {
	// IdempotencyKey of the call; drawn from the client's Keys when empty.
	IdempotencyKey string `json:"-"`
	// Traceparent is the W3C trace context of the span that submits, for SubmitIdempotent and WaitIdempotent. The worker
	// finds what the manager made of it in Job.Traceparent.
	Traceparent string `json:"-"`
	// Function is required.
	Function string `json:"function"`
	// Payload is encoded as JSON. Use a json.RawMessage for a value that is JSON already.
	Payload any    `json:"payload,omitempty"`
	ID      string `json:"id,omitempty"`
	// Key is held by one live job at a time.
	Key      string `json:"key,omitempty"`
	Priority int    `json:"priority,omitempty"`
	// RunAt or DelayMS postpone the job.
	RunAt       time.Time `json:"run_at,omitzero"`
	DelayMS     int64     `json:"delay_ms,omitempty"`
	MaxAttempts int       `json:"max_attempts,omitempty"`
	Dedup       *Dedup    `json:"dedup,omitempty"`
	// OnDuplicate: "reject", the default, or "return_existing".
	OnDuplicate  string            `json:"on_duplicate,omitempty"`
	WALLocations map[string]string `json:"wal_locations,omitempty"`
}

// ClaimRequest asks for jobs to work on.
type ClaimRequest struct {
	Worker    string   `json:"worker"`
	Functions []string `json:"functions,omitempty"`
	Limit     int      `json:"limit,omitempty"`
	LeaseMS   int64    `json:"lease_ms,omitempty"`
	WaitMS    int64    `json:"wait_ms,omitempty"`
}

// FinishRequest ends a job.
type FinishRequest struct {
	ID         string `json:"id,omitempty"`
	LeaseToken string `json:"lease_token"`
	// Status: complete, failed or cancelled.
	Status string          `json:"status"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// RetryRequest puts a job back into the queue.
type RetryRequest struct {
	// LeaseToken of the worker that hands its job back; empty for an operator.
	LeaseToken string `json:"lease_token,omitempty"`
	// DelayMS; nil means backoff for a worker, and no delay for an operator.
	DelayMS *int64 `json:"delay_ms,omitempty"`
	Error   string `json:"error,omitempty"`
	// Uncounted, only with a LeaseToken: the delivery does not count as an attempt.
	Uncounted bool `json:"uncounted,omitempty"`
}

// Beat is the answer to a heartbeat.
type Beat struct {
	Cancelled   bool  `json:"cancelled"`
	ExpiresInMS int64 `json:"expires_in_ms"`
}

// ListQuery selects jobs. Zero values do not restrict it.
type ListQuery struct {
	Function string `json:"function,omitempty"`
	State    string `json:"state,omitempty"`
	// Submitter as in Job.
	Submitter string `json:"submitter,omitempty"`
	// OlderThanMS selects jobs that ended at least this long ago, and, of those that have not ended, jobs that were
	// submitted at least this long ago.
	OlderThanMS int64 `json:"older_than_ms,omitempty"`
	// Error selects jobs whose last error is of the same kind: the first line is equal except for ids and long numbers.
	Error string `json:"error,omitempty"`
	// Limit bounds the jobs of one call: 1 to 1000. When 0, List returns 100, and Bulk takes 1000.
	Limit  int    `json:"limit,omitempty"`
	Cursor string `json:"cursor,omitempty"`
}

// BulkRequest is an action with all jobs that a query selects.
type BulkRequest struct {
	// Action: cancel, retry, replay or delete.
	Action string `json:"action"`
	// ListQuery needs a State that the action applies to.
	ListQuery
	// DryRun only counts.
	DryRun bool `json:"dry_run,omitempty"`
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
	Problem problem `json:"problem"`
}

// Err is the refusal as the error of the single call.
func (r *Refusal) Err() error { return r.Problem.error() }

// JobPage is one page of jobs; Cursor is empty on the last one.
type JobPage struct {
	Jobs   []Job  `json:"jobs"`
	Cursor string `json:"cursor"`
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
	// OldestQueuedMS is for how many milliseconds the queued job that waits longest could have run; 0 without one.
	OldestQueuedMS int64 `json:"oldest_queued_ms"`
	// LastDeadAt is when the newest dead letter failed; zero without one.
	LastDeadAt time.Time `json:"last_dead_at,omitzero"`
	// LastMinute is what the manager that answers did with the function's jobs in the last minute.
	LastMinute FunctionRates `json:"last_minute"`
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
	ID       string    `json:"id"`
	Job      Job       `json:"job"`
	Reason   string    `json:"reason"`
	FailedAt time.Time `json:"failed_at"`
}

// DeadPage is one page of dead letters; Cursor is empty on the last one.
type DeadPage struct {
	DeadLetters []DeadLetter `json:"dead_letters"`
	Cursor      string       `json:"cursor"`
}
