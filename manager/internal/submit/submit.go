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
	// id. Equal JSON values count as the same, see jobs.CanonicalJSON.
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
	// Body must be small, because the ledger records it.
	Body []byte
}

// jobScope begins the scopes of submissions in the ledger; the caller's identity follows.
const jobScope = "POST:/v1/jobs"

// InScope reports whether an entry of the ledger with this scope is of a submission. Its caller
// chose this manager, whichever shard owns the key.
func InScope(scope string) bool { return strings.HasPrefix(scope, jobScope) }

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
	if c.Key == "" { // together with others that come at the same time
		out, err := s.queue.EnqueuePrepared(ctx, p)
		if err != nil {
			return Answer{}, err
		}
		return form(&out).answer(), nil
	}
	a := s.jobAttempt(c, p, form)
	if err := s.ledger.Update(ctx, a.run); err != nil {
		s.queue.Refused(err)
		return Answer{}, err
	}
	return a.answer()
}

// jobAttempt is an attempt to enqueue a job.
func (s *Submitter) jobAttempt(c Call, p *jobs.Prepared, form func(*jobs.Outcome) Form) *attempt {
	var out jobs.Outcome
	a := s.newAttempt(c, jobScope)
	a.do = func(tx store.Tx) (f Form, ref string, err error) {
		if out, err = s.queue.EnqueueTx(tx, p); err != nil {
			return Form{}, "", err
		}
		return form(&out), out.Job.ID, nil
	}
	a.done = func() { s.queue.Committed(out) }
	return a
}

func (f Form) answer() Answer {
	return Answer{Status: f.Status, ContentType: api.ContentTypeJSON, Body: f.Body}
}

// attempt is a submission with a key: a call that reserves the key, works, and records the answer.
type attempt struct {
	s       *Submitter
	reserve *api.ReserveRequest
	// do works. It also returns the id under which the ledger's entry can be found.
	do func(store.Tx) (Form, string, error)
	// done is called when do's writes are known to have happened.
	done func()

	reply   ledger.Reply
	form    Form
	refused error
}

func (s *Submitter) newAttempt(c Call, operation string) *attempt {
	return &attempt{s: s, reserve: &api.ReserveRequest{
		Key: c.Key, Scope: operation + identity(c.Credentials), Fingerprint: fingerprint(c.Body), Token: randomToken(),
	}}
}

// run makes the attempt in a transaction, which must be undone if it fails. It may be called again.
func (a *attempt) run(tx *ledger.Tx) (err error) {
	a.form, a.refused = Form{}, nil
	if a.reply, err = tx.Reserve(a.reserve); err != nil || a.reply.State != api.StateReserved {
		return err
	}
	var ref string
	if a.form, ref, a.refused = a.do(tx); a.refused == nil {
		return record(tx.Commit, a.reserve, &a.form, api.ContentTypeJSON, ref)
	}
	p := a.s.problem(a.refused)
	if p.Status >= 500 {
		return a.refused
	}
	return record(tx.Reject, a.reserve, &Form{Status: p.Status, Body: p.AppendJSON(nil)}, api.ContentTypeProblem, "")
}

// answer is the answer after a transaction that happened.
func (a *attempt) answer() (Answer, error) {
	switch {
	case a.reply.State.Terminal():
		return replay(a.reply.Result)
	case a.reply.State != api.StateReserved:
		return Answer{}, ErrPending
	case a.refused != nil:
		return Answer{}, a.refused
	}
	a.done()
	return a.form.answer(), nil
}

// record records an answer.
func record(end func(*ledger.FinishRequest) error, reserve *api.ReserveRequest, f *Form, contentType, ref string) error {
	finish := ledger.NewFinish(&api.FinishRequest{
		Key: reserve.Key, Scope: reserve.Scope, Token: reserve.Token, Fingerprint: reserve.Fingerprint,
		Result: api.Result{Status: f.Status, Headers: []api.Header{{Name: "content-type", Value: contentType}}, Body: f.Body},
	})
	finish.Ref = ref
	return end(finish)
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
	a := Answer{Status: result.Status, Body: result.Body, Replayed: true}
	for _, h := range result.Headers {
		if h.Name == "content-type" {
			a.ContentType = h.Value
		}
	}
	return a, nil
}
