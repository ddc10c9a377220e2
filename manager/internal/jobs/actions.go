package jobs

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Action is what an operator does with a job.
type Action uint8

// The actions are the methods of Queue with these names.
const (
	ActionCancel Action = iota + 1
	ActionRetry
	ActionReplay
	ActionDelete
)

var actionNames = []string{ActionCancel: "cancel", ActionRetry: "retry", ActionReplay: "replay", ActionDelete: "delete"}

var actionStates = [...][]State{
	ActionCancel: {Scheduled, Queued, Active},
	ActionRetry:  {Scheduled, Failed, Cancelled, Expired},
	ActionReplay: {Failed},
	ActionDelete: {Scheduled, Queued, Complete, Failed, Cancelled, Replayed, Expired},
}

// String returns the action's name on the wire, "invalid" for an unknown one.
func (a Action) String() string { return NameOf(actionNames, a) }

// ParseAction is the inverse of String; other names are a *FieldError for field.
func ParseAction(field, name string) (Action, error) {
	return ParseName[Action](actionNames, field, name)
}

// States are those in which the action is possible.
func (a Action) States() []State { return slices.Clone(actionStates[a]) }

// Allows reports whether the action is possible in the job's state, and changes something.
func (a Action) Allows(j *Job) bool {
	return slices.Contains(actionStates[a], j.State) && !(a == ActionCancel && j.CancelRequested)
}

// Do does an action with a job, and returns the job as it is then; for a replay, the copy. The errors are those of the
// action's method. A replay that a live job stands against is ErrDuplicateKey. For endedBy see Retry.
func (q *Queue) Do(ctx context.Context, a Action, id string, endedBy time.Time) (Job, error) {
	switch a {
	case ActionCancel:
		return q.Cancel(ctx, id)
	case ActionRetry:
		return q.Retry(ctx, Retry{ID: id, EndedBy: endedBy})
	case ActionDelete:
		return q.Delete(ctx, id)
	}
	out, err := q.replay(ctx, "", id)
	if err == nil && !out.Created() {
		err = out.Job.duplicate("")
	}
	return out.Job, err
}

// actionsAtOnce is how many jobs of DoAll are changed at the same time, so that an engine makes several durable at once.
const actionsAtOnce = 8

// DoAll does an action with each job, several at the same time, and returns the error of each. When ctx ends, the
// jobs that were not reached have its error. For endedBy see Retry.
func (q *Queue) DoAll(ctx context.Context, a Action, ids []string, endedBy time.Time) []error {
	errs := make([]error, len(ids))
	next := make(chan int)
	var callers sync.WaitGroup
	for range min(actionsAtOnce, len(ids)) {
		callers.Go(func() {
			for i := range next {
				if errs[i] = ctx.Err(); errs[i] == nil {
					_, errs[i] = q.Do(ctx, a, ids[i], endedBy)
				}
			}
		})
	}
	for i := range ids {
		next <- i
	}
	close(next)
	callers.Wait()
	return errs
}

// Delete removes a job, its payload and its result for good, and releases its key and its lock. A running job is
// ErrConflict, a missing one ErrNotFound. Calls that wait for the job get ErrNotFound. It returns the job as
// it was, without a payload or result over 512 bytes.
func (q *Queue) Delete(ctx context.Context, id string) (Job, error) {
	if err := CheckID("id", id); err != nil {
		return Job{}, err
	}
	var job Job
	var r *record
	err := q.store.Update(ctx, func(tx store.Tx) (err error) {
		if r, err = find(tx, id); err != nil {
			return err
		}
		if r.State == Active {
			return r.conflict("a worker has it; cancel it, and delete it when the worker has let go of it")
		}
		job = r.job()
		tx.Notify(topicDone + id)
		return errors.Join(r.dropKey(tx), r.dropLock(tx), r.remove(tx))
	})
	if err != nil {
		return Job{}, err
	}
	q.account(r)
	q.stats.deleted.Add(1)
	return job, nil
}

// Bulk does an action with all jobs that a query selects, part by part.
type Bulk struct {
	Action Action
	// ListQuery selects the jobs. Its State is required, and must be one of the action's. Limit bounds the jobs of this
	// call, those that are refused included: 1 to MaxLimit, MaxLimit when 0. Payloads is ignored.
	ListQuery
	// DryRun only counts.
	DryRun bool
}

// BulkResult is what a call of Bulk did.
type BulkResult struct {
	// Matched is how many jobs the query selected, Done how many of them were changed: none in a dry run.
	Matched, Done int
	// Refused are the jobs that were not changed.
	Refused []Refusal
	// Cursor leads to the next part; empty when this was the last one.
	Cursor string
}

// Refusal says why a job was not changed.
type Refusal struct {
	ID  string
	Err error
}

const (
	// bulkPart is how many jobs Bulk lists before it changes them.
	bulkPart = 128
	// bulkTime bounds the time of one call. A part that has begun is finished.
	bulkTime = 5 * time.Second
)

// Bulk does an action with the jobs of a query. It ends after Limit jobs, or after about 5 seconds, and the caller
// continues with the cursor. A job that changes meanwhile may be passed by. A job that was retried or replayed, and failed
// again, is met again at the end of the list: a caller that does not want that names an OlderThan, and a NewerThan
// if it has one, that grow with the time since its first call.
//
// The error is that of the query or of the store. A call that failed may have changed jobs, and can be repeated.
func (q *Queue) Bulk(ctx context.Context, b Bulk) (BulkResult, error) {
	var res BulkResult
	if b.Action.String() == "invalid" {
		_, err := ParseAction("action", "")
		return res, err
	}
	if !slices.Contains(actionStates[b.Action], b.State) {
		names := make([]string, 0, len(actionStates[b.Action]))
		for _, s := range actionStates[b.Action] {
			names = append(names, s.String())
		}
		err := &FieldError{Field: "state", Allowed: strings.Join(names, ", ") + " for " + b.Action.String()}
		if b.State != 0 {
			err.Value = quote(b.State.String())
		}
		return res, err
	}
	if b.Limit == 0 {
		b.Limit = MaxLimit
	}
	if err := checkRange("limit", b.Limit, 1, MaxLimit); err != nil {
		return res, err
	}
	began := time.Now()
	l := b.ListQuery
	l.Payloads = false
	for left := b.Limit; ; {
		l.Limit = min(left, bulkPart)
		page, err := q.List(ctx, l)
		if err != nil {
			return res, err
		}
		ids := make([]string, 0, len(page.Jobs))
		for i := range page.Jobs {
			ids = append(ids, page.Jobs[i].ID)
		}
		res.Matched += len(ids)
		if !b.DryRun {
			for i, err := range q.DoAll(ctx, b.Action, ids, time.Time{}) {
				switch {
				case err == nil:
					res.Done++
				case IsRefusal(err):
					res.Refused = append(res.Refused, Refusal{ids[i], err})
				default:
					return res, err
				}
			}
		}
		left -= len(ids)
		res.Cursor, l.Cursor = page.Cursor, page.Cursor
		if page.Cursor == "" || left == 0 || time.Since(began) >= bulkTime {
			return res, nil
		}
	}
}
