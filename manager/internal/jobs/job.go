package jobs

import (
	"cmp"
	"time"
)

// State of a job; see the package documentation for the transitions.
type State uint8

// The states of a job. Those from Complete on are terminal.
const (
	// Scheduled: run_at lies ahead.
	Scheduled State = iota + 1
	// Queued: may be claimed, unless its function is paused.
	Queued
	// Active: a worker holds its lease.
	Active
	// Complete: a worker finished it.
	Complete
	// Failed: a worker gave it up, or its last attempt lost its lease. It is in its function's dead letters.
	Failed
	// Cancelled: a caller or its worker cancelled it.
	Cancelled
	// Replayed: it failed, and an operator enqueued a copy of it.
	Replayed
	// Expired: no worker had begun an attempt when its ExpiresAt was reached.
	Expired
)

var stateNames = []string{
	Scheduled: "scheduled",
	Queued:    "queued",
	Active:    "active",
	Complete:  "complete",
	Failed:    "failed",
	Cancelled: "cancelled",
	Replayed:  "replayed",
	Expired:   "expired",
}

// String returns the state's name on the wire, "invalid" for an unknown one.
func (s State) String() string { return NameOf(stateNames, s) }

// ParseState is the inverse of String; other names are a *FieldError for field.
func ParseState(field, name string) (State, error) { return ParseName[State](stateNames, field, name) }

// Terminal reports whether the state is final: complete, failed, cancelled, replayed or expired.
func (s State) Terminal() bool { return s >= Complete && s <= Expired }

// Finishes reports whether a worker may finish a job in this state: complete, failed or cancelled.
func (s State) Finishes() bool { return s >= Complete && s <= Cancelled }

// Job is one piece of work. Values that Queue returns belong to the caller,
// except that Payload and Result must not be modified.
type Job struct {
	// ID is unique among the jobs that are remembered.
	ID string
	// Function names the kind of work; workers claim by it.
	Function string
	// Payload is the work's argument: one JSON value. Nil in answers that
	// leave payloads out, see ListQuery.
	Payload []byte
	// Key, when set, is held by at most one live job at a time, of any owner.
	Key string
	// Priority: higher runs first.
	Priority int
	State    State
	// Attempt counts deliveries; 0 before the first claim.
	Attempt int
	// MaxAttempts bounds Attempt.
	MaxAttempts int
	// CreatedAt is when it was submitted.
	CreatedAt time.Time
	// RunAt is the earliest time of the next delivery. Jobs of the same priority are delivered in this order.
	RunAt time.Time
	// ExpiresAt is from when on no attempt begins; zero for never. A job that waits then ends: as Expired, or with
	// DeadIfExpired as Failed, so that it is a dead letter.
	ExpiresAt     time.Time
	DeadIfExpired bool
	// Timeout bounds each attempt; 0: only the lease does.
	Timeout time.Duration
	// StartedAt is when it was last claimed; zero before.
	StartedAt time.Time
	// FinishedAt is when it got its terminal state; zero before.
	FinishedAt time.Time
	// Lease is set while the job is active.
	Lease *Lease
	// CancelRequested: the job was cancelled while a worker held it; the
	// worker learns it on its next heartbeat.
	CancelRequested bool
	// Result is the JSON value that the worker finished it with, nil if none.
	Result []byte
	// Error is the last error a worker or the queue recorded for it.
	Error string
	// Errors are those of its last attempts, the oldest first: at most MaxErrors, each of at most MaxErrorText bytes.
	Errors []AttemptError
	// Traceparent names the span that submitted it, as a W3C trace context of version 00; empty if there was none.
	Traceparent string
	// ConcurrencyKey groups jobs of the function: keys with waiting jobs take turns, and Limits.MaxRunningPerKey counts
	// by it. Empty for none.
	ConcurrencyKey string
	// Batch is the id of the batch that the job belongs to, and After of the one whose jobs have to end before this one
	// runs; empty for none.
	Batch, After string
	// Event names the event that made the job; empty if it was submitted.
	Event string
	// ReplayedAs is the id of the copy of a replayed job.
	ReplayedAs string
	// Owner names the caller that submitted it; empty if that caller owns nothing.
	Owner string
	// Dedup is the deduplication it was submitted with, nil if none.
	Dedup *Dedup
	// WALLocations are the newest database positions that this job, or a
	// duplicate dropped in its favour, was submitted with.
	WALLocations WALLocations
}

// AttemptError is how an attempt ended that did not do the work.
type AttemptError struct {
	Attempt int
	At      time.Time
	Worker  string
	// Text is clipped to MaxErrorText bytes.
	Text string
}

// Lease is a worker's hold on a job.
type Lease struct {
	// Worker is the name the worker claimed with.
	Worker string
	// Token fences: calls for this delivery must carry it.
	Token string
	// Begun is when the worker got the job, and Until when the job may be delivered again, by the store's clock
	// (store.Tx.Now). All other times of a job are of its wall clock.
	Begun, Until time.Time
	// Deadline is the end of the attempt by the store's clock, which no heartbeat moves; zero without a Job.Timeout.
	Deadline time.Time
	// Duration is by how much a heartbeat extends the lease unless it says otherwise.
	Duration time.Duration
	// ExpiresIn is the time left at the moment of the answer, by the store's clock.
	ExpiresIn time.Duration
}

// Strategy says how long a submission holds its deduplication lock.
type Strategy uint8

// The strategies.
const (
	// UntilExecuting: from the submission until the job is first claimed.
	UntilExecuting Strategy = iota + 1
	// UntilExecuted: from the submission until the job is terminal.
	UntilExecuted
)

var strategyNames = []string{UntilExecuting: "until_executing", UntilExecuted: "until_executed"}

// String returns the strategy's name on the wire, "invalid" for an unknown one.
func (s Strategy) String() string { return NameOf(strategyNames, s) }

// ParseStrategy is the inverse of String. The empty name is UntilExecuting, any
// other a *FieldError.
func ParseStrategy(name string) (Strategy, error) {
	return ParseName[Strategy](strategyNames, "dedup.strategy", cmp.Or(name, strategyNames[UntilExecuting]))
}

// Dedup asks that duplicates of a job be dropped.
type Dedup struct {
	// Strategy, UntilExecuting when zero.
	Strategy Strategy
	// Key identifies duplicates together with the function. Empty: the job's
	// Key if it has one, else a digest of the payload.
	Key string
	// TTL releases the lock of a job that never gets to where the strategy releases it: 1 s to 366 days,
	// Options.DedupTTL when 0. It counts from run_at, and moves with it.
	TTL time.Duration
	// RescheduleOnce: when duplicates were dropped while the lock was held,
	// run the job once more after it completed or failed. Only with
	// UntilExecuted.
	RescheduleOnce bool
}

// Submission describes a job to enqueue.
type Submission struct {
	// Function: 1 to 128 characters of letters, digits and _ . : - ~
	Function string
	// Payload: one JSON value of at most MaxPayloadBytes; null when empty.
	Payload []byte
	// ID proposes an id. Empty: the queue makes one that sorts by time.
	ID string
	// Key, see Job.Key and api.ValidKey.
	Key string
	// Priority: -32768 to 32767, default 0.
	Priority int
	// RunAt and Delay postpone the delivery; at most one may be set. RunAt is
	// compared with the store's clock; the past means now. Delay: 0 to MaxDelay.
	RunAt time.Time
	Delay time.Duration
	// MaxAttempts: 1 to 1000, Options.MaxAttempts when 0.
	MaxAttempts int
	// ExpiresAt and ExpiresIn, from the submission on, say when the job expires, see Job.ExpiresAt; at most one may be
	// set. It must be after run_at. ExpiresIn: 0 to MaxDelay, 0 for never.
	ExpiresAt time.Time
	ExpiresIn time.Duration
	// DeadIfExpired, see Job; only with one of the two.
	DeadIfExpired bool
	// Timeout of each attempt: 100 ms to 24 h, 0 for none.
	Timeout time.Duration
	// Dedup, nil for none.
	Dedup *Dedup
	// ReturnExisting: when a live job holds Key, answer with that job instead of ErrDuplicateKey.
	ReturnExisting bool
	// WALLocations: at most 16 databases.
	WALLocations WALLocations
	// Place in its batch, 0 to MaxBatch-1. Jobs with the same priority and run_at are delivered in this order, and in that
	// of their ids.
	Place int
	// ConcurrencyKey as in Job, see api.ValidKey.
	ConcurrencyKey string
	// Batch and After as in Job, see PrepareBatch.
	Batch, After string
	// Event names the event that makes the job, see SendTx; empty for none.
	Event string
	// Owner: up to MaxNameBytes bytes. Submissions of two owners are not duplicates of each other.
	Owner string
	// Traceparent names the span that submits, see Traceparent. It is no part of what makes two submissions duplicates.
	Traceparent string
}

// Outcome is the answer to a submission that was not refused.
type Outcome struct {
	// Job is the new job, or the job that exists already.
	Job Job
	// Existing: Job holds the key and was there before (ReturnExisting).
	Existing bool
	// Deduplicated: the submission was dropped as a duplicate of Job.
	Deduplicated bool

	charge charge // of a new job
}

// Created reports whether the submission made a new job.
func (o *Outcome) Created() bool { return !o.Existing && !o.Deduplicated }

// ClaimRequest asks for jobs to work on.
type ClaimRequest struct {
	// Worker: 1 to 128 visible ASCII characters, for people to read.
	Worker string
	// Functions: at most 100; empty means any function.
	Functions []string
	// Limit: 1 to 1000, 1 when 0.
	Limit int
	// Lease: 100 ms to 24 h, Options.Lease when 0.
	Lease time.Duration
	// Wait is how long the call may wait while there is no job: 0 to 5 min.
	Wait time.Duration
}

// Finish ends a job.
type Finish struct {
	ID string
	// Token is the lease's.
	Token string
	// State: Complete, Failed or Cancelled.
	State State
	// Result: nil or one JSON value of at most MaxResultBytes.
	Result []byte
	// Error: at most MaxErrorBytes.
	Error string
	// Only are the functions whose jobs the caller may end, nil for all; see ErrForbidden.
	Only []string
}

// Retry puts a job back into the queue.
type Retry struct {
	ID string
	// Token is the lease's token when a worker hands its job back; empty when an operator retries a job that no worker
	// has.
	Token string
	// Delay, 0 to MaxDelay. nil means the backoff for a worker's retry, and no delay for an operator's.
	Delay *time.Duration
	// Error, at most MaxErrorBytes, is recorded as the attempt's error.
	Error string
	// Uncounted, only with a Token: the delivery does not count as an attempt, because the worker could not do the
	// work, for example because it is stopping.
	Uncounted bool
	// Only are the functions whose jobs the caller may put back, nil for all; see ErrForbidden.
	Only []string
	// EndedBy, unless it is zero, refuses an operator's retry of a job that ended later: the operator has not seen that end. So a
	// retry that is sent again does not run a job once more that failed again meanwhile.
	EndedBy time.Time
}
