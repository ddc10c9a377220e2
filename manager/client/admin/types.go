package admin

import (
	"cmp"

	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/client"
)

// What the calls send and get; package schema describes the members.
type (
	ListQuery     = schema.ListQuery
	Action        = schema.Action
	BulkRequest   = schema.BulkRequest
	BulkResult    = schema.BulkResult
	Refusal       = schema.Refusal
	JobPage       = schema.JobPage
	Function      = schema.Function
	FunctionRates = schema.FunctionRates
	FunctionPage  = schema.FunctionPage
	DeadLetter    = schema.DeadLetter
	DeadPage      = schema.DeadPage
	LogPage       = schema.LogPage
	LogWriter     = schema.LogWriter
	LogWriterPage = schema.LogWriterPage
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
