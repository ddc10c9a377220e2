// Package submit takes jobs and events from clients that repeat their calls. With an idempotency key
// a submission is one transaction: it reserves the key in the ledger, enqueues, and records the
// answer, so that all of it happens or nothing. A repetition within the window, from anywhere, gets
// the recorded answer, and nothing is enqueued again. A refusal is recorded as well, as a rejection.
package submit

import (
	"context"
	"crypto/rand"
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
	// Owner is the caller's name as a submitter; "": none. Without ReadsAll it sees only its own jobs: of another one that
	// stands for its submission it learns little.
	Owner    string
	ReadsAll bool
	// Body is the submission as it came, a JSON object. A repetition must have the same members, apart from
	// id. Equal JSON values count as the same, see jobs.CanonicalJSON.
	Body []byte
}

// Answer is what a submission is answered with.
type Answer struct {
	Status      int
	ContentType string // api.ContentTypeJSON unless it is the answer to a repetition
	Body        []byte
	// Outcome is what the queue did with a job; nil if the answer is Replayed, the recorded one to an earlier call, and for
	// an event or a batch.
	Outcome  *jobs.Outcome
	Replayed bool
}

// Encoder says how submissions are answered.
type Encoder struct {
	// Problem is the answer to an error. Those with a status below 500 are refusals, which are recorded.
	Problem func(error) api.Problem
	// Outcome is the answer to a submission. Its body must be small, because the ledger records it. whole: the caller may
	// see all of the job.
	Outcome func(out *jobs.Outcome, whole bool) (status int, body []byte)
	// Sent is the answer to an event that was sent. Its body must be small, too.
	Sent func(event string, outs []jobs.Outcome) (status int, body []byte)
	// Batch is the answer to a batch.
	Batch func(b *jobs.Batch, outs []jobs.Outcome) (status int, body []byte)
}

// jobScope begins the scopes of submissions in the ledger, batchScope those of batches, and eventScope those of events,
// where the event's name is next; the caller's identity follows.
const (
	jobScope   = "POST:/v1/jobs"
	batchScope = "POST:/v1/batches"
	eventScope = "POST:/v1/events/"
)

// InScope reports whether an entry of the ledger with this scope is of a submission, a batch or an event. Its caller
// chose this manager, whichever shard owns the key.
func InScope(scope string) bool {
	return strings.HasPrefix(scope, jobScope) || strings.HasPrefix(scope, batchScope) || strings.HasPrefix(scope, eventScope)
}

// Submitter submits to a queue. All methods are safe for concurrent use.
type Submitter struct {
	ledger *ledger.Ledger
	queue  *jobs.Queue
	encode Encoder
}

// New makes a Submitter. The queue and the ledger must be on the same store.
func New(l *ledger.Ledger, q *jobs.Queue, encode Encoder) *Submitter {
	return &Submitter{ledger: l, queue: q, encode: encode}
}

// Job enqueues a job.
// The error is ErrPending, ErrNotRecorded, or one of the ledger, the queue or the store.
func (s *Submitter) Job(ctx context.Context, c *Call, p *jobs.Prepared) (Answer, error) {
	if c.Key == "" { // together with others that come at the same time
		out, err := s.queue.EnqueuePrepared(ctx, p)
		if err != nil {
			return Answer{}, err
		}
		return s.made(c, &out), nil
	}
	a := s.newAttempt(c, p)
	if err := s.ledger.Update(ctx, a.run); err != nil {
		s.queue.Refused(err)
		return Answer{}, err
	}
	return a.answer()
}

// made is the answer to a submission that the queue has taken.
func (s *Submitter) made(c *Call, out *jobs.Outcome) Answer {
	a := Answer{ContentType: api.ContentTypeJSON, Outcome: out}
	a.Status, a.Body = s.encode.Outcome(out, c.ReadsAll || out.Created() || c.Owner != "" && c.Owner == out.Job.Owner)
	return a
}

// Event sends an event: it enqueues a job for each function that subscribes to it, in one transaction. With a key, a
// repetition is answered with the jobs of the first call, whatever subscribes by then. No refusal is recorded.
// The error is ErrPending, ErrNotRecorded, or one of the ledger, the queue or the store.
func (s *Submitter) Event(ctx context.Context, c *Call, name string, p *jobs.PreparedEvent) (Answer, error) {
	return s.many(ctx, c, eventScope+name, func(tx store.Tx) ([]jobs.Outcome, int, []byte, error) {
		outs, err := s.queue.SendTx(tx, p)
		if err != nil {
			return nil, 0, nil, err
		}
		status, body := s.encode.Sent(name, outs)
		return outs, status, body, nil
	})
}

// JobBatch enqueues a batch in one transaction, as Event does with an event's jobs.
func (s *Submitter) JobBatch(ctx context.Context, c *Call, p *jobs.PreparedBatch) (Answer, error) {
	return s.many(ctx, c, batchScope, func(tx store.Tx) ([]jobs.Outcome, int, []byte, error) {
		b, outs, err := s.queue.EnqueueBatchTx(tx, p)
		if err != nil {
			return nil, 0, nil, err
		}
		status, body := s.encode.Batch(b, outs[:p.Len()])
		return outs, status, body, nil
	})
}

// many makes a call that enqueues many jobs or none. enqueue returns their outcomes and the answer.
func (s *Submitter) many(ctx context.Context, c *Call, scope string, enqueue func(store.Tx) (outs []jobs.Outcome, status int, body []byte, err error)) (Answer, error) {
	a := &attempt{s: s, call: c, many: enqueue}
	run := a.enqueueMany
	if c.Key != "" {
		a.reserve = reservation(c, scope)
		run = a.run
	} else {
		a.reply.State = api.StateReserved
	}
	if err := s.ledger.Update(ctx, run); err != nil {
		s.queue.Refused(err)
		return Answer{}, err
	}
	return a.answer()
}

// attempt is a submission with a key: a call that reserves the key, enqueues, and records the answer.
type attempt struct {
	s       *Submitter
	call    *Call
	job     *jobs.Prepared
	many    func(store.Tx) ([]jobs.Outcome, int, []byte, error) // instead of job
	reserve *api.ReserveRequest

	reply   ledger.Reply
	out     jobs.Outcome
	outs    []jobs.Outcome // of many
	made    Answer
	refused error
}

func (s *Submitter) newAttempt(c *Call, p *jobs.Prepared) *attempt {
	return &attempt{s: s, call: c, job: p, reserve: reservation(c, jobScope)}
}

// reservation reserves the key of a call in a scope of its caller's.
func reservation(c *Call, scope string) *api.ReserveRequest {
	return &api.ReserveRequest{
		Key: c.Key, Scope: scope + identity(c.Credentials), Fingerprint: fingerprint(c.Body), Token: rand.Text(),
	}
}

// enqueueMany enqueues what is instead of a job.
func (a *attempt) enqueueMany(tx *ledger.Tx) (err error) {
	a.made = Answer{ContentType: api.ContentTypeJSON}
	a.outs, a.made.Status, a.made.Body, err = a.many(tx)
	return err
}

// run makes the attempt in a transaction, which must be undone if it fails. It may be called again.
func (a *attempt) run(tx *ledger.Tx) (err error) {
	a.made, a.refused = Answer{}, nil
	if a.reply, err = tx.Reserve(a.reserve); err != nil || a.reply.State != api.StateReserved {
		return err
	}
	if a.many != nil {
		if err := a.enqueueMany(tx); err != nil {
			return err
		}
		return a.record(tx, ledger.OpCommit, &a.made, "")
	}
	if a.out, a.refused = a.s.queue.EnqueueTx(tx, a.job); a.refused == nil {
		a.made = a.s.made(a.call, &a.out)
		return a.record(tx, ledger.OpCommit, &a.made, a.out.Job.ID)
	}
	p := a.s.encode.Problem(a.refused)
	if p.Status >= 500 {
		return a.refused
	}
	return a.record(tx, ledger.OpReject, &Answer{Status: p.Status, ContentType: api.ContentTypeProblem, Body: p.AppendJSON(nil)}, "")
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
	if a.many == nil {
		a.s.queue.Committed(a.out)
	}
	for _, out := range a.outs {
		a.s.queue.Committed(out)
	}
	return a.made, nil
}

// record records an answer. ref is the id under which the ledger's entry can be found, too.
func (a *attempt) record(tx *ledger.Tx, op ledger.Op, made *Answer, ref string) error {
	r := a.reserve
	finish := ledger.NewFinish(&api.FinishRequest{
		Key: r.Key, Scope: r.Scope, Token: r.Token, Fingerprint: r.Fingerprint,
		Result: api.Result{Status: made.Status, Headers: []api.Header{{Name: headerContentType, Value: made.ContentType}}, Body: made.Body},
	})
	finish.Ref = ref
	return tx.Finish(op, finish)
}

const headerContentType = "content-type"

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
		if h.Name == headerContentType {
			a.ContentType = h.Value
		}
	}
	return a, nil
}
