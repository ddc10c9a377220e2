package client

import "github.com/oncegate/oncegate/manager/api/schema"

// What the calls send and get; package schema describes the members.
type (
	Job           = schema.Job
	State         = schema.State
	AttemptError  = schema.AttemptError
	Lease         = schema.Lease
	Dedup         = schema.Dedup
	Submission    = schema.Submission
	ClaimRequest  = schema.ClaimRequest
	FinishRequest = schema.FinishRequest
	RetryRequest  = schema.RetryRequest
	Beat          = schema.Beat
	Sent          = schema.Sent
	BatchInfo     = schema.Batch
	EventJob      = schema.EventJob
	LogConfig     = schema.LogConfig
	LogInfo       = schema.LogInfo
	LogMessageID  = schema.LogMessageID
	LogEntry      = schema.LogEntry
	LogEntries    = schema.LogEntries
)

// The states of a job. The last five are final, but an operator may retry or replay a job.
const (
	StateScheduled = schema.StateScheduled // waits for its time
	StateQueued    = schema.StateQueued    // waits for a worker
	StateActive    = schema.StateActive    // a worker has it
	StateComplete  = schema.StateComplete
	StateFailed    = schema.StateFailed
	StateCancelled = schema.StateCancelled
	StateReplayed  = schema.StateReplayed // failed, and an operator enqueued a copy
	StateExpired   = schema.StateExpired  // its time was over before an attempt
)
