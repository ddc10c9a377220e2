// Package submit takes jobs from clients that repeat their calls. With an idempotency key
// a submission is one transaction: it reserves the key in the ledger, enqueues, and records the
// answer, so that all of it happens or nothing. A repetition within the window, from anywhere, gets
// the recorded answer, and nothing is enqueued again. A refusal is recorded as well, as a rejection.
package submit

import (
	"context"
	"errors"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

var (
	// ErrPending is returned while another attempt holds the key.
	ErrPending = errors.New("submit: the first attempt with this idempotency key is still running")
	// ErrNotRecorded is returned for a repetition whose answer was too large to record.
	ErrNotRecorded = errors.New("submit: the submission was accepted, but its answer was too large to keep")
)

// Call is what identifies a submission.
type Call struct {
	// Key is the idempotency key; "" for a submission that is carried out each time it comes.
	Key string
	// Credentials tell callers apart, so that none gets the answer to another's submission. Only
	// a digest of them is stored. "" for none.
	Credentials string
	// Body is the submission as it came, a JSON object. A repetition must have the same members, apart from
	// id; their order and white space between tokens do not count.
	Body []byte
}

// Answer is what a submission is answered with.
type Answer struct {
	Status      int
	ContentType string // api.ContentTypeJSON unless it is the answer to a repetition
	Body        []byte
	// Replayed reports whether it is the recorded answer to an earlier call.
	Replayed bool
}

// Form is how a result is answered.
type Form struct {
	Status int
	Body   []byte
	// Brief, if not nil, makes what stands for Body where the ledger records only smaller answers.
	Brief func() []byte
}

// jobScope begins the scopes of submissions in the ledger; the caller's identity follows.
const jobScope = "POST:/v1/jobs"

// InScope reports whether an entry of the ledger with this scope is of a submission. Its caller
// chose this manager, whichever shard owns the key.
func InScope(scope string) bool { return strings.HasPrefix(scope, "POST:/v1/") }

// Submitter submits to a queue. All methods are safe for concurrent use.
type Submitter struct {
	store   store.Store
	ledger  *ledger.Ledger
	queue   *jobs.Queue
	problem func(error) api.Problem
}

// New makes a Submitter. The queue and the ledger must be on st. problem says how an error is
// answered: those with a status below 500 are refusals, which are recorded.
func New(st store.Store, l *ledger.Ledger, q *jobs.Queue, problem func(error) api.Problem) *Submitter {
	return &Submitter{store: st, ledger: l, queue: q, problem: problem}
}

// Job enqueues a job. form is called inside the transaction, maybe more than once.
// The error is ErrPending, ErrNotRecorded, or one of the ledger, the queue or the store.
func (s *Submitter) Job(ctx context.Context, c Call, p *jobs.Prepared, form func(*jobs.Outcome) Form) (Answer, error) {
	var out jobs.Outcome
	if c.Key == "" { // together with others that come at the same time
		var err error
		if out, err = s.queue.EnqueuePrepared(ctx, p); err != nil {
			return Answer{}, err
		}
		return form(&out).answer(), nil
	}
	return s.once(ctx, c, jobScope, func(tx store.Tx) (f Form, ref string, err error) {
		if out, err = s.queue.EnqueueTx(tx, p); err != nil {
			return Form{}, "", err
		}
		return form(&out), out.Job.ID, nil
	}, func() { s.queue.Committed(out) })
}

func (f Form) answer() Answer {
	return Answer{Status: f.Status, ContentType: api.ContentTypeJSON, Body: f.Body}
}

// once runs do at most once per key, in the transaction that reserves the key and records the
// answer. do also returns the id under which the ledger's entry can be found. done is called when
// do's writes are known to have happened.
func (s *Submitter) once(ctx context.Context, c Call, operation string, do func(store.Tx) (Form, string, error), done func()) (Answer, error) {
	reserve := &api.ReserveRequest{
		Key: c.Key, Scope: operation + identity(c.Credentials), Fingerprint: fingerprint(c.Body), Token: randomToken(),
	}
	var reply ledger.Reply
	var f Form
	var refused error
	err := s.ledger.Update(ctx, func(tx *ledger.Tx) (err error) {
		if reply, err = tx.Reserve(reserve); err != nil || reply.State != api.StateReserved {
			return err
		}
		var ref string
		if f, ref, refused = do(tx); refused == nil {
			return record(tx.Commit, reserve, &f, api.ContentTypeJSON, ref)
		}
		p := s.problem(refused)
		if p.Status >= 500 {
			return refused
		}
		return record(tx.Reject, reserve, &Form{Status: p.Status, Body: p.AppendJSON(nil)}, api.ContentTypeProblem, "")
	})
	switch {
	case err != nil:
		return Answer{}, err
	case reply.State.Terminal():
		return replay(reply.Result)
	case reply.State != api.StateReserved:
		return Answer{}, ErrPending
	case refused != nil:
		return Answer{}, refused
	}
	done()
	return f.answer(), nil
}

// record records an answer, and shortens it if the ledger does not take it as it is.
func record(end func(*ledger.FinishRequest) error, reserve *api.ReserveRequest, f *Form, contentType, ref string) error {
	try := func() error {
		finish := ledger.NewFinish(&api.FinishRequest{
			Key: reserve.Key, Scope: reserve.Scope, Token: reserve.Token, Fingerprint: reserve.Fingerprint,
			Result: api.Result{Status: f.Status, Headers: []api.Header{{Name: "content-type", Value: contentType}}, Body: f.Body},
		})
		finish.Ref = ref
		return end(finish)
	}
	err := try()
	if errors.Is(err, ledger.ErrTooLarge) && f.Brief != nil {
		f.Body = f.Brief()
		err = try()
	}
	return err
}

// replay returns a recorded answer.
func replay(raw []byte) (Answer, error) {
	var result api.Result
	if err := result.ParseRaw(raw); err != nil {
		return Answer{}, err
	}
	if result.BodyOmitted {
		return Answer{}, ErrNotRecorded
	}
	a := Answer{Status: result.Status, ContentType: api.ContentTypeJSON, Body: result.Body, Replayed: true}
	for _, h := range result.Headers {
		if h.Name == "content-type" {
			a.ContentType = h.Value
		}
	}
	return a, nil
}
