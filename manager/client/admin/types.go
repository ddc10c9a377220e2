package admin

import (
	"cmp"

	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/client"
)

// What the calls send and get; package schema describes the members.
type (
	ListQuery        = schema.ListQuery
	Action           = schema.Action
	BulkRequest      = schema.BulkRequest
	BulkResult       = schema.BulkResult
	Refusal          = schema.Refusal
	JobPage          = schema.JobPage
	BatchPage        = schema.BatchPage
	EventInfo        = schema.EventInfo
	EventPage        = schema.EventPage
	Subscription     = schema.Subscription
	Function         = schema.Function
	Limits           = schema.Limits
	Rate             = schema.Rate
	FunctionRates    = schema.FunctionRates
	FunctionPage     = schema.FunctionPage
	DeadLetter       = schema.DeadLetter
	DeadPage         = schema.DeadPage
	ScheduleSpec     = schema.ScheduleSpec
	Schedule         = schema.Schedule
	SchedulePage     = schema.SchedulePage
	LogPage          = schema.LogPage
	Entry            = schema.Entry
	EntryState       = schema.EntryState
	Answer           = schema.Answer
	Resolution       = schema.Resolution
	EntryPage        = schema.EntryPage
	EntryHistory     = schema.EntryHistory
	EntryChange      = schema.EntryChange
	Incident         = schema.Incident
	Quarantine       = schema.Quarantine
	Shard            = schema.Shard
	Peers            = schema.Peers
	Peer             = schema.Peer
	Conflict         = schema.Conflict
	ConflictPage     = schema.ConflictPage
	ConflictOutcome  = schema.ConflictOutcome
	UnreadableRecord = schema.UnreadableRecord
	UnreadablePage   = schema.UnreadablePage
	LogWriter        = schema.LogWriter
	LogWriterPage    = schema.LogWriterPage
)

// The states of an entry.
const (
	EntryPending   = schema.EntryPending   // an attempt works
	EntryCommitted = schema.EntryCommitted // retries get the recorded answer
	EntryRejected  = schema.EntryRejected  // the same, for a refusal
	EntryUnknown   = schema.EntryUnknown   // the work may have run, and there is no answer
	EntryReleased  = schema.EntryReleased  // nothing ran: the key is free
)

// The actions of Bulk.
const (
	Cancel Action = "cancel"
	Retry  Action = "retry"
	Replay Action = "replay"
	Delete Action = "delete"
)

// ErrorOf returns the refusal of a job as the error of the single call.
func ErrorOf(r *Refusal) error {
	p := &r.Problem
	return &client.Error{Status: p.Status, Code: p.Code, Detail: cmp.Or(p.Detail, p.Title)}
}
