package client

import (
	"encoding/json"
	"time"

	"github.com/oncegate/oncegate/manager/client/internal/wire"
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
	StartedAt    time.Time `json:"started_at,omitzero"`
	FinishedAt   time.Time `json:"finished_at,omitzero"`
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

// State is a state of a job.
type State string

// The states of a job. The last four are final, but an operator may retry or replay a job.
const (
	StateScheduled State = "scheduled" // waits for its time
	StateQueued    State = "queued"    // waits for a worker
	StateActive    State = "active"    // a worker has it
	StateComplete  State = "complete"
	StateFailed    State = "failed"
	StateCancelled State = "cancelled"
	StateReplayed  State = "replayed" // failed, and an operator enqueued a copy
)

// Terminal reports whether the job is over.
func (j *Job) Terminal() bool {
	return j.State == StateComplete || j.State == StateFailed || j.State == StateCancelled || j.State == StateReplayed
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
	// Token is for the worker only.
	Token string `json:"token,omitempty"`
	// ExpiresIn is how long the lease lasts from the answer on.
	ExpiresIn time.Duration `json:"-"` // expires_in_ms
}

type plainLease Lease

type wireLease struct {
	*plainLease
	ExpiresInMS int64 `json:"expires_in_ms"`
}

// MarshalJSON encodes the lease as the API does.
func (l Lease) MarshalJSON() ([]byte, error) {
	return wire.Marshal(wireLease{(*plainLease)(&l), wire.MS(l.ExpiresIn)})
}

// UnmarshalJSON decodes a lease of the API.
func (l *Lease) UnmarshalJSON(b []byte) error {
	w := wireLease{plainLease: (*plainLease)(l)}
	err := json.Unmarshal(b, &w)
	l.ExpiresIn = wire.Duration(w.ExpiresInMS)
	return err
}

// Dedup asks the manager to drop duplicates of a job.
type Dedup struct {
	// Strategy: until_executing, the default, or until_executed.
	Strategy string `json:"strategy,omitempty"`
	// Key identifies duplicates instead of the job's key or payload.
	Key string `json:"key,omitempty"`
	// TTL releases a lock that was not released otherwise; 6 h when 0.
	TTL time.Duration `json:"-"` // ttl_ms
	// IfDeduplicated: "reschedule_once" runs the job once more if duplicates were dropped; only with until_executed.
	IfDeduplicated string `json:"if_deduplicated,omitempty"`
}

type plainDedup Dedup

type wireDedup struct {
	*plainDedup
	TTLMS int64 `json:"ttl_ms,omitempty"`
}

// MarshalJSON encodes the wish as the API does.
func (d Dedup) MarshalJSON() ([]byte, error) {
	return wire.Marshal(wireDedup{(*plainDedup)(&d), wire.MS(d.TTL)})
}

// UnmarshalJSON decodes a wish of the API.
func (d *Dedup) UnmarshalJSON(b []byte) error {
	w := wireDedup{plainDedup: (*plainDedup)(d)}
	err := json.Unmarshal(b, &w)
	d.TTL = wire.Duration(w.TTLMS)
	return err
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
	// RunAt or Delay postpone the job.
	RunAt       time.Time     `json:"run_at,omitzero"`
	Delay       time.Duration `json:"-"` // delay_ms
	MaxAttempts int           `json:"max_attempts,omitempty"`
	Dedup       *Dedup        `json:"dedup,omitempty"`
	// OnDuplicate: "reject", the default, or "return_existing".
	OnDuplicate  string            `json:"on_duplicate,omitempty"`
	WALLocations map[string]string `json:"wal_locations,omitempty"`
}

type plainSubmission Submission

type wireSubmission struct {
	*plainSubmission
	DelayMS int64 `json:"delay_ms,omitempty"`
	// BatchKey is the idempotency key in a batch.
	BatchKey string `json:"idempotency_key,omitempty"`
}

// MarshalJSON encodes the submission as the API takes it.
func (s Submission) MarshalJSON() ([]byte, error) {
	return wire.Marshal(wireSubmission{(*plainSubmission)(&s), wire.MS(s.Delay), ""})
}

// ClaimRequest asks for jobs to work on.
type ClaimRequest struct {
	// Worker is the name under which they are leased. Required.
	Worker string `json:"worker"`
	// Functions of the jobs; all when empty.
	Functions []string `json:"functions,omitempty"`
	// Limit bounds the jobs: 1 to 1000, 1 when 0.
	Limit int `json:"limit,omitempty"`
	// Lease is how long the caller has each job: 100 ms to 24 h, a minute when 0.
	Lease time.Duration `json:"-"` // lease_ms
	// Wait is how long the manager waits for a job while it has none: at most 5 min.
	Wait time.Duration `json:"-"` // wait_ms
}

// MarshalJSON encodes the request as the API takes it.
func (r ClaimRequest) MarshalJSON() ([]byte, error) {
	type plain ClaimRequest
	return wire.Marshal(struct {
		plain
		LeaseMS int64 `json:"lease_ms,omitempty"`
		WaitMS  int64 `json:"wait_ms,omitempty"`
	}{plain(r), wire.MS(r.Lease), wire.MS(r.Wait)})
}

// FinishRequest ends a job.
type FinishRequest struct {
	ID         string `json:"id,omitempty"`
	LeaseToken string `json:"lease_token"`
	// Status: StateComplete, StateFailed or StateCancelled.
	Status State           `json:"status"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// RetryRequest puts a worker's job back into the queue.
type RetryRequest struct {
	// LeaseToken of the worker. Required.
	LeaseToken string `json:"lease_token"`
	// Delay until the next attempt; nil means the manager's backoff.
	Delay *time.Duration `json:"-"` // delay_ms
	// Error is why the attempt did not do the work.
	Error string `json:"error,omitempty"`
	// Uncounted: the delivery does not count as an attempt.
	Uncounted bool `json:"uncounted,omitempty"`
}

// MarshalJSON encodes the request as the API takes it.
func (r RetryRequest) MarshalJSON() ([]byte, error) {
	type plain RetryRequest
	w := struct {
		plain
		DelayMS *int64 `json:"delay_ms,omitempty"`
	}{plain: plain(r)}
	if r.Delay != nil {
		ms := wire.MS(*r.Delay)
		w.DelayMS = &ms
	}
	return wire.Marshal(w)
}

// Beat is the answer to a heartbeat.
type Beat struct {
	// Cancelled: the job was cancelled, and the worker should stop.
	Cancelled bool
	// ExpiresIn is how long the lease lasts from the answer on.
	ExpiresIn time.Duration
}
