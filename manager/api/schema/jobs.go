package schema

import (
	"encoding/json"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Job is a job as the manager returns it. Members that do not apply have their zero value.
type Job struct {
	ID       string          `json:"id"`
	Function string          `json:"function"`
	Payload  json.RawMessage `json:"payload,omitempty"`
	// PayloadBytes stands for the payload in the answer to a submission or a replay.
	PayloadBytes int       `json:"payload_bytes,omitempty"`
	Key          string    `json:"key,omitempty"`
	State        State     `json:"state"`
	Priority     int       `json:"priority"`
	Attempt      int       `json:"attempt"`
	MaxAttempts  int       `json:"max_attempts"`
	RunAt        time.Time `json:"run_at,omitzero"`
	CreatedAt    time.Time `json:"created_at,omitzero"`
	// ExpiresAt is from when on no attempt begins. OnExpiry as in Submission.
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	OnExpiry  string    `json:"on_expiry,omitempty"`
	// Timeout bounds each attempt; 0: only its lease does.
	Timeout    time.Duration `json:"timeout_ms,omitempty"`
	StartedAt  time.Time     `json:"started_at,omitzero"`
	FinishedAt time.Time     `json:"finished_at,omitzero"`
	// Submitter is a digest that identifies the submitter. Answers to operators have it, and what Get answers to the
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
	// ConcurrencyKey as in Submission.
	ConcurrencyKey string `json:"concurrency_key,omitempty"`
	// Batch is the id of the batch that the job belongs to, and After of the one whose callback it is.
	Batch string `json:"batch,omitempty"`
	After string `json:"after,omitempty"`
	// Event names the event that made the job; empty if it was submitted.
	Event string `json:"event,omitempty"`
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

// MarshalJSON encodes the job as the API does.
func (j Job) MarshalJSON() ([]byte, error) { return Append(nil, &j), nil }

// UnmarshalJSON decodes a job of the API.
func (j *Job) UnmarshalJSON(b []byte) error { return Unmarshal(b, j) }

// State is a state of a job.
type State string

// The states of a job. The last five are final, but an operator may retry or replay a job.
const (
	StateScheduled State = "scheduled" // waits for its time
	StateQueued    State = "queued"    // waits for a worker
	StateActive    State = "active"    // a worker has it
	StateComplete  State = "complete"
	StateFailed    State = "failed"
	StateCancelled State = "cancelled"
	StateReplayed  State = "replayed" // failed, and an operator enqueued a copy
	StateExpired   State = "expired"  // its time was over before an attempt
)

// Terminal reports whether the job is over.
func (j *Job) Terminal() bool {
	switch j.State {
	case StateComplete, StateFailed, StateCancelled, StateReplayed, StateExpired:
		return true
	}
	return false
}

// JobOfAnother is what a submitter learns of a job that is another's.
type JobOfAnother struct {
	ID           string `json:"id"`
	Function     string `json:"function"`
	State        State  `json:"state"`
	Deduplicated bool   `json:"deduplicated,omitempty"`
	Existing     bool   `json:"existing,omitempty"`
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
	Worker string `json:"worker"`
	// Token is for the worker only.
	Token string `json:"token,omitempty"`
	// ExpiresIn is how long the lease lasts from the answer on.
	ExpiresIn time.Duration `json:"expires_in_ms"`
}

// MarshalJSON encodes the lease as the API does.
func (l Lease) MarshalJSON() ([]byte, error) { return Append(nil, &l), nil }

// UnmarshalJSON decodes a lease of the API.
func (l *Lease) UnmarshalJSON(b []byte) error { return Unmarshal(b, l) }

// Dedup asks the manager to drop duplicates of a job.
type Dedup struct {
	// Strategy: until_executing, the default, or until_executed.
	Strategy string `json:"strategy,omitempty"`
	// Key identifies duplicates instead of the job's key or payload.
	Key string `json:"key,omitempty" zero:"a value, or no such field"`
	// TTL releases a lock that was not released otherwise; 6 h when 0.
	TTL time.Duration `json:"ttl_ms,omitempty" zero:"must be at least 1000"`
	// IfDeduplicated: "reschedule_once" runs the job once more if duplicates were dropped; only with until_executed.
	IfDeduplicated string `json:"if_deduplicated,omitempty" enum:",reschedule_once"`
}

// MarshalJSON encodes the wish as the API does.
func (d Dedup) MarshalJSON() ([]byte, error) { return Append(nil, &d), nil }

// UnmarshalJSON decodes a wish of the API.
func (d *Dedup) UnmarshalJSON(b []byte) error { return Unmarshal(b, d) }

// Submission describes a job to enqueue.
type Submission struct {
	// Function is required.
	Function string `json:"function"`
	// Payload is encoded as JSON. Use a json.RawMessage for a value that is JSON already.
	Payload any    `json:"payload,omitempty"`
	ID      string `json:"id,omitempty" zero:"a value, or no such field"`
	// Key is held by one live job at a time.
	Key string `json:"key,omitempty" zero:"a value, or no such field"`
	// ConcurrencyKey groups jobs of a function, such as those of a tenant. Keys take turns, and a limit may bound the
	// running jobs of each.
	ConcurrencyKey string `json:"concurrency_key,omitempty" zero:"a value, or no such field"`
	Priority       int    `json:"priority,omitempty"`
	// RunAt or Delay postpone the job.
	RunAt       time.Time     `json:"run_at,omitzero"`
	Delay       time.Duration `json:"delay_ms,omitempty"`
	MaxAttempts int           `json:"max_attempts,omitempty" zero:"must be at least 1"`
	// ExpiresAt or ExpiresIn, from the submission on, say from when on no attempt begins.
	ExpiresAt time.Time     `json:"expires_at,omitzero"`
	ExpiresIn time.Duration `json:"expires_in_ms,omitempty" zero:"must be at least 1"`
	// OnExpiry: "drop", the default, ends the job as StateExpired, "dead_letter" as StateFailed.
	OnExpiry string `json:"on_expiry,omitempty" enum:"drop,dead_letter"`
	// Timeout bounds each attempt: 100 ms to 24 h; 0: only the lease does. An attempt that reaches it has failed.
	Timeout time.Duration `json:"timeout_ms,omitempty" zero:"must be at least 100"`
	Dedup   *Dedup        `json:"dedup,omitempty"`
	// OnDuplicate: "reject", the default, or "return_existing".
	OnDuplicate  string            `json:"on_duplicate,omitempty" enum:"reject,return_existing"`
	WALLocations map[string]string `json:"wal_locations,omitempty"`
	// IdempotencyKey of the call; drawn from the client's Keys when empty. It is a header of the call, and a member only in
	// a batch.
	IdempotencyKey string `json:"idempotency_key,omitempty" zero:"1 to 255 bytes of printable ASCII without a blank at either end"`
	// Traceparent is the W3C trace context of the span that submits, for SubmitIdempotent and WaitIdempotent. The worker
	// finds what the manager made of it in Job.Traceparent.
	Traceparent string `json:"-"`
}

// MarshalJSON encodes the submission as the API takes it.
func (s Submission) MarshalJSON() ([]byte, error) { return marshal(&s, &s.Payload) }

// UnmarshalJSON decodes a submission to the API. Its Payload is a json.RawMessage then.
func (s *Submission) UnmarshalJSON(b []byte) error { return Unmarshal(b, s) }

// Submissions are a batch, each item a Submission that is read by itself.
type Submissions struct {
	Items []json.RawMessage `json:"items" max:"128" wrong:"must be an array of 1 to 128 submissions"`
}

// SubmitResult is what the answer to an item of a batch has besides the members of the single call's answer: that call's
// status and headers.
type SubmitResult struct {
	Status     int  `json:"status,omitempty"` // of a job; a problem has its own
	RetryAfter int  `json:"retry_after,omitempty"`
	Replayed   bool `json:"replayed,omitempty"`
}

// ClaimRequest asks for jobs to work on.
type ClaimRequest struct {
	// Worker is the name under which they are leased. Required.
	Worker string `json:"worker"`
	// Functions of the jobs; all when empty.
	Functions []string `json:"functions,omitempty" max:"100"`
	// Limit bounds the jobs: 1 to 1000, 1 when 0.
	Limit int `json:"limit,omitempty" zero:"must be at least 1"`
	// Lease is how long the caller has each job: 100 ms to 24 h, a minute when 0.
	Lease time.Duration `json:"lease_ms,omitempty" zero:"must be at least 100"`
	// Wait is how long the manager waits for a job while it has none: at most 5 min.
	Wait time.Duration `json:"wait_ms,omitempty"`
}

// MarshalJSON encodes the request as the API takes it.
func (r ClaimRequest) MarshalJSON() ([]byte, error) { return Append(nil, &r), nil }

// UnmarshalJSON decodes a request to the API.
func (r *ClaimRequest) UnmarshalJSON(b []byte) error { return Unmarshal(b, r) }

// Claimed is the answer to a claim.
type Claimed struct {
	Jobs []Job `json:"jobs"`
}

// HeartbeatRequest extends a lease.
type HeartbeatRequest struct {
	LeaseToken string        `json:"lease_token"`
	Lease      time.Duration `json:"lease_ms,omitempty" zero:"must be at least 100"`
}

// MarshalJSON encodes the request as the API takes it.
func (r HeartbeatRequest) MarshalJSON() ([]byte, error) { return Append(nil, &r), nil }

// UnmarshalJSON decodes a request to the API.
func (r *HeartbeatRequest) UnmarshalJSON(b []byte) error { return Unmarshal(b, r) }

// Beat is the answer to a heartbeat.
type Beat struct {
	// Cancelled: the job was cancelled, and the worker should stop.
	Cancelled bool `json:"cancelled"`
	// ExpiresIn is how long the lease lasts from the answer on.
	ExpiresIn time.Duration `json:"expires_in_ms"`
}

// MarshalJSON encodes the answer as the API does.
func (b Beat) MarshalJSON() ([]byte, error) { return Append(nil, &b), nil }

// UnmarshalJSON decodes an answer of the API.
func (b *Beat) UnmarshalJSON(text []byte) error { return Unmarshal(text, b) }

// FinishRequest ends a job.
type FinishRequest struct {
	// ID is the job's. It is in the path of the call, and a member only where one call ends many jobs.
	ID         string `json:"id,omitempty"`
	LeaseToken string `json:"lease_token"`
	// Status: StateComplete, StateFailed or StateCancelled.
	Status State           `json:"status" enum:"complete,failed,cancelled"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// Finishes end many jobs.
type Finishes struct {
	Finishes []FinishRequest `json:"finishes" max:"1000"`
}

// Finished is the answer to Finishes.
type Finished struct {
	Results []FinishResult `json:"results"`
}

// FinishResult has the job's new State, or a Problem.
type FinishResult struct {
	ID      string       `json:"id"`
	Problem *api.Problem `json:"problem,omitempty"`
	State   State        `json:"state,omitempty"`
}

// RetryRequest puts a job back into the queue.
type RetryRequest struct {
	// LeaseToken of the worker that hands the job back.
	LeaseToken string `json:"lease_token,omitempty" zero:"a value, or no such field"`
	// Delay until the next attempt; nil means the manager's backoff.
	Delay *time.Duration `json:"delay_ms,omitempty"`
	// Error is why the attempt did not do the work.
	Error string `json:"error,omitempty"`
	// Uncounted: the delivery does not count as an attempt.
	Uncounted bool `json:"uncounted,omitempty"`
}

// MarshalJSON encodes the request as the API takes it.
func (r RetryRequest) MarshalJSON() ([]byte, error) { return Append(nil, &r), nil }

// UnmarshalJSON decodes a request to the API.
func (r *RetryRequest) UnmarshalJSON(b []byte) error { return Unmarshal(b, r) }

// ListQuery selects jobs. Zero values do not restrict it.
type ListQuery struct {
	Function string `json:"function,omitempty" zero:"a value, or no such field"`
	State    State  `json:"state,omitempty" zero:"a value, or no such field"`
	// Submitter as in Job.
	Submitter string `json:"submitter,omitempty" zero:"a value, or no such field"`
	// Key and ConcurrencyKey as in Submission.
	Key            string `json:"key,omitempty" zero:"a value, or no such field"`
	ConcurrencyKey string `json:"concurrency_key,omitempty" zero:"a value, or no such field"`
	// OlderThan selects jobs that ended at least this long ago, and, of those that have not ended, jobs that were
	// submitted at least this long ago.
	OlderThan time.Duration `json:"older_than_ms,omitempty"`
	// NewerThan selects jobs for which that is less long ago. It must be more than OlderThan.
	NewerThan time.Duration `json:"newer_than_ms,omitempty" zero:"must be at least 1"`
	// Error selects jobs whose last error is of the same kind: the first line is equal except for ids and long numbers.
	Error string `json:"error,omitempty" zero:"a value, or no such field"`
	// ErrorText selects jobs whose last error contains it, in upper or lower case: at most 200 bytes.
	ErrorText string `json:"error_text,omitempty" zero:"a value, or no such field"`
	// Limit bounds the jobs of one call: 1 to 1000. When 0, List returns 100, and Bulk takes 1000.
	Limit  int    `json:"limit,omitempty" zero:"must be at least 1"`
	Cursor string `json:"cursor,omitempty"`
}

// MarshalJSON encodes the query as the API takes it.
func (q ListQuery) MarshalJSON() ([]byte, error) { return Append(nil, &q), nil }

// UnmarshalJSON decodes a query of the API.
func (q *ListQuery) UnmarshalJSON(b []byte) error { return Unmarshal(b, q) }

// Action is what Bulk does with jobs: cancel, retry, replay or delete.
type Action string

// BulkRequest is an action with all jobs that a query selects.
type BulkRequest struct {
	Action Action `json:"action" zero:"a value, or no such field"`
	// ListQuery selects the jobs. It needs a State that the action applies to.
	ListQuery
	// DryRun only counts.
	DryRun bool `json:"dry_run,omitempty"`
}

// MarshalJSON encodes the request as the API takes it.
func (b BulkRequest) MarshalJSON() ([]byte, error) { return Append(nil, &b), nil }

// UnmarshalJSON decodes a request to the API.
func (b *BulkRequest) UnmarshalJSON(text []byte) error { return Unmarshal(text, b) }

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
	ID      string      `json:"id"`
	Problem api.Problem `json:"problem"`
}

// JobPage is one page of jobs; Cursor is empty on the last one.
type JobPage struct {
	Jobs   []Job  `json:"jobs"`
	Cursor string `json:"cursor"`
}

// Paused is the answer to a pause or resume.
type Paused struct {
	Name   string `json:"name"`
	Paused bool   `json:"paused"`
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
	OldestQueued time.Duration `json:"oldest_queued_ms"`
	// LastDeadAt is when the newest dead letter failed; zero without one.
	LastDeadAt time.Time `json:"last_dead_at,omitzero"`
	// Limits are those of its jobs; nil if there are none.
	Limits *Limits `json:"limits,omitempty"`
	// LastMinute is what the manager that answers did with the function's jobs in the last minute.
	LastMinute FunctionRates `json:"last_minute"`
}

// MarshalJSON encodes the function as the API does.
func (f Function) MarshalJSON() ([]byte, error) { return Append(nil, &f), nil }

// UnmarshalJSON decodes a function of the API.
func (f *Function) UnmarshalJSON(b []byte) error { return Unmarshal(b, f) }

// Limits bound the delivery of a function's jobs, by all managers of a store together. Zero members do not. Numbers are 1 to
// 1,000,000.
type Limits struct {
	// MaxRunning bounds the jobs that workers have at the same time, and MaxRunningPerKey those with the same concurrency
	// key.
	MaxRunning       int `json:"max_running,omitempty" zero:"must be at least 1"`
	MaxRunningPerKey int `json:"max_running_per_key,omitempty" zero:"must be at least 1"`
	// Rate bounds the deliveries; nil for no bound.
	Rate *Rate `json:"rate,omitempty"`
}

// FunctionLimits is the answer to new limits.
type FunctionLimits struct {
	Name string `json:"name"`
	// Limits is nil if there are none.
	Limits *Limits `json:"limits,omitempty"`
}

// Rate is a token bucket. It holds Count tokens, and gets as many in each Per: 1 ms to 24 h.
type Rate struct {
	Count int           `json:"count"`
	Per   time.Duration `json:"per_ms"`
}

// MarshalJSON encodes the rate as the API takes it.
func (r Rate) MarshalJSON() ([]byte, error) { return Append(nil, &r), nil }

// UnmarshalJSON decodes a rate of the API.
func (r *Rate) UnmarshalJSON(b []byte) error { return Unmarshal(b, r) }

// MarshalJSON encodes the limits as the API takes them.
func (l Limits) MarshalJSON() ([]byte, error) { return Append(nil, &l), nil }

// UnmarshalJSON decodes limits of the API.
func (l *Limits) UnmarshalJSON(b []byte) error { return Unmarshal(b, l) }

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

// JobStats count jobs by state, what happened to jobs at the manager that answers, and what the jobs take.
type JobStats struct {
	Jobs          map[string]int64 `json:"jobs"`
	Calls         map[string]int64 `json:"calls"`
	Waiting       int64            `json:"waiting"`
	Bytes         int64            `json:"bytes"`
	RetainedBytes int64            `json:"retained_bytes"`
	MaxBytes      int64            `json:"max_bytes"`
}
