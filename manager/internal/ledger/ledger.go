package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger/window"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// Ledger implements the protocol over a store. It is safe for concurrent use and starts no goroutine; the owner runs
// Run.
type Ledger struct {
	store  store.Store
	opts   Options
	shared bool // several managers may share the engine
	sizes  bool // store.Capabilities.Sizes

	counters counters
	funnel   funnel
	waits    waits

	length lengthCache
	front  unread.Front
	scopes *window.Scopes
	// pending is the approximate number of PENDING entries.
	pending atomic.Int64
	// growth is by how many bytes recent outcomes exceeded their reservations on average.
	growth atomic.Int64
	// nextExpiry is when the next entry expires, in Unix milliseconds. It may be outdated.
	nextExpiry atomic.Int64
	origins    origins // with Options.Origin
}

// Reply answers a reserve.
type Reply struct {
	// State is reserved, pending, committed or rejected. Unknown and Item say what it is after other calls.
	State api.State
	// ExpiresIn is how long the reservation lasts or the outcome is remembered.
	ExpiresIn time.Duration
	// Result is the recorded answer of a final state in the API's raw form. It
	// must not be modified.
	Result []byte
}

// FinishRequest is an api.FinishRequest whose result is already in the API's
// raw form.
type FinishRequest struct {
	Key, Scope, Token, Fingerprint string
	// TTL is how long the outcome is remembered; 0 means the default.
	TTL time.Duration
	// Result is read until the call returns, and copied into the record.
	Result []byte
	// Ref, up to 255 bytes of visible ASCII, finds the entry again by something that the outcome created, for example a
	// job id. It may be empty.
	Ref string
	// Durability is what the caller said of the key. A global key has one attempt for each token, whatever ledgers hold of
	// it.
	Durability api.Durability
}

// NewFinish converts a request of the API.
func NewFinish(r *api.FinishRequest) *FinishRequest {
	size := len(r.Result.Body) + 16
	for i := range r.Result.Headers {
		size += len(r.Result.Headers[i].Name) + len(r.Result.Headers[i].Value) + 6
	}
	return &FinishRequest{
		Key: r.Key, Scope: r.Scope, Token: r.Token, Fingerprint: r.Fingerprint, TTL: r.TTL, Durability: r.Durability,
		Result: r.Result.AppendRaw(make([]byte, 0, size)),
	}
}

// New returns a ledger on st. It reads less than a hundred records, whatever the ledger holds.
func New(st store.Store, opts Options) (*Ledger, error) {
	opts = opts.WithDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	caps := st.Capabilities()
	l := &Ledger{store: st, opts: opts, shared: caps.Shared, sizes: caps.Sizes}
	l.waits.max, l.waits.queues, l.waits.drain = int64(opts.MaxWaiters), make(map[string]*queue), make(chan struct{})
	l.origins.id, l.origins.recorded = rand.Text()[:16], make(chan struct{}, 1)
	if err := l.openWindow(context.Background()); err != nil {
		return nil, err
	}
	return l, nil
}

// Options returns the options in force, including defaults.
func (l *Ledger) Options() Options { return l.opts }

// Reserve asks for the right to run the work of (Scope, Key). If another attempt is pending and the request allows it,
// the call waits (see the package documentation). hold, which may be nil, is called when that begins. It returns a
// context that ends the wait, and a function that is called when the wait is over. If that context ends, Reserve
// returns its error.
//
// Errors: *api.FieldError, ErrFingerprintMismatch, ErrOutcomeUnknown, ErrQuarantine, ErrFull, ErrKeyMoved, the store's.
// After a store error or a cancelled context the outcome may be unknown; repeating the call with the same token settles
// it.
func (l *Ledger) Reserve(ctx context.Context, req *api.ReserveRequest, hold HoldFunc) (Reply, error) {
	if err := req.Validate(); err != nil {
		l.counters.add(Event{Op: OpReserve, Outcome: OutcomeInvalid})
		return Reply{}, err
	}
	key := EntryKey(req.Scope, req.Key)
	wait := min(req.Wait, l.opts.MaxWait)
	if wait > 0 && l.waits.queued(key) {
		p := l.join(key)
		defer p.Leave()
		return p.Reserve(ctx, req, hold)
	}
	reply, err := l.reserve(ctx, key, req)
	if err != nil || reply.State != api.StatePending || wait <= 0 {
		l.tellReserve(ctx, key, reply, err)
		return reply, err
	}
	p := l.join(key)
	defer p.Leave()
	return p.Await(ctx, req, hold)
}

// reserve tries once. It counts everything except replays and pending answers, which a waiting call may meet several
// times.
func (l *Ledger) reserve(ctx context.Context, key string, req *api.ReserveRequest) (Reply, error) {
	it := Item{Op: OpReserve, Reserve: *req, key: key}
	l.alone(ctx, &it)
	return it.Reply, it.Err
}

// lookup answers a duplicate from a read-only transaction. ok is false when the call needs a read-write one.
func (l *Ledger) lookup(ctx context.Context, key string, req *api.ReserveRequest) (reply Reply, ok bool, err error) {
	f, err := l.look(ctx, key, req)
	if err != nil {
		return Reply{}, false, err
	}
	l.tellLookup(ctx, key, &f)
	if f.refusal != nil {
		return Reply{}, false, f.refusal
	}
	return f.reply, f.ok, nil
}

// tellLookup counts what tellReserve leaves out.
func (l *Ledger) tellLookup(ctx context.Context, key string, f *found) {
	if f.refusal != nil {
		l.tell(ctx, Event{OpReserve, outcomeOf(f.refusal), key, f.prints})
	} else if f.own {
		l.tell(ctx, Event{Op: OpReserve, Outcome: OutcomeRepeated, Key: key})
	}
}

// tellReserve counts what reserve leaves to be counted once per call.
func (l *Ledger) tellReserve(ctx context.Context, key string, reply Reply, err error) {
	switch {
	case err != nil:
	case reply.State == api.StatePending:
		l.tell(ctx, Event{Op: OpReserve, Outcome: OutcomePending, Key: key})
	case reply.State.Terminal():
		l.tell(ctx, Event{Op: OpReserve, Outcome: OutcomeReplayed, Key: key})
		if api.RawBodyOmitted(reply.Result) {
			l.counters.omitted.Add(1)
		}
	}
}

// tell counts a call or change and passes it on to the observer.
func (l *Ledger) tell(ctx context.Context, e Event) {
	if e.Op < opCount {
		l.counters.add(e)
	}
	if o := l.opts.Observer; o != nil {
		o.Note(ctx, e)
	}
}

// Commit records the outcome of finished work.
//
// Errors: *api.FieldError, *api.RawError, ErrFenced, ErrConflict, ErrElsewhere, ErrFingerprintMismatch, ErrTooLarge,
// ErrFull (only when it would be accepted late), the store's. After a store error or a cancelled context the outcome may be unknown;
// repeating the call settles it.
func (l *Ledger) Commit(ctx context.Context, req *FinishRequest) error {
	it := Item{Op: OpCommit, Finish: *req}
	l.Make(ctx, &it)
	return it.Err
}

// Reject records that the work was refused. Otherwise it is like Commit.
func (l *Ledger) Reject(ctx context.Context, req *FinishRequest) error {
	it := Item{Op: OpReject, Finish: *req}
	l.Make(ctx, &it)
	return it.Err
}

func (l *Ledger) checkFinish(req *FinishRequest) error {
	// The limits of api.FinishRequest.Validate, except those of the result.
	target := api.ReserveRequest{
		Key: req.Key, Scope: req.Scope, Token: req.Token, Fingerprint: req.Fingerprint,
	}
	if err := target.Validate(); err != nil {
		return err
	}
	if req.TTL < 0 || req.TTL > api.MaxTTL {
		return &api.FieldError{Field: "ttl_ms", Value: req.TTL.String(), Allowed: "must be 0 to 366 days"}
	}
	if len(req.Ref) > maxRefBytes {
		return &api.FieldError{Field: "ref", Value: "", Allowed: "must be at most 255 bytes"}
	}
	if len(req.Result) > l.opts.MaxResultBytes {
		return ErrTooLarge
	}
	_, _, err := api.CheckRawResult(req.Result)
	return err
}

// Release ends a reservation whose work did not run.
//
// Errors: *api.FieldError, ErrFenced, ErrConflict, ErrElsewhere, the store's.
func (l *Ledger) Release(ctx context.Context, req *api.ReleaseRequest) error {
	it := Item{Op: OpRelease, Release: *req}
	l.Make(ctx, &it)
	return it.Err
}

// load gets and decodes a record. It returns nil when there is none. With store.Read the record would be on the heap.
func (l *Ledger) load(tx store.Tx, key string, r *record) (*record, error) {
	value, err := tx.Get(Collection, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err == nil {
		err = decodeRecord(key, value, r)
	}
	if err != nil {
		return nil, err
	}
	if !r.explicit {
		r.setUnknown(0, l.opts.UnknownTTL)
	}
	return r, nil
}

// outcomeOf classifies an error for counting.
func outcomeOf(err error) Outcome {
	var field *api.FieldError
	var raw *api.RawError
	var full *FullError
	switch {
	case err == nil:
		return OutcomeDone
	case errors.Is(err, ErrFenced):
		return OutcomeFenced
	case errors.Is(err, ErrOutcomeUnknown):
		return OutcomeUnknown
	case errors.Is(err, ErrConflict):
		return OutcomeConflict
	case errors.Is(err, ErrNotFound):
		return OutcomeNotFound
	case errors.Is(err, ErrFingerprintMismatch):
		return OutcomeMismatch
	case errors.As(err, &full):
		if full.Share {
			return OutcomeOverShare
		}
		return OutcomeFull
	case errors.Is(err, ErrKeyMoved):
		return OutcomeMoved
	case errors.Is(err, ErrElsewhere):
		return OutcomeElsewhere
	case errors.Is(err, ErrQuarantine):
		return OutcomeQuarantine
	case errors.Is(err, ErrTooLarge), errors.Is(err, store.ErrTooLarge):
		return OutcomeTooLarge
	case errors.As(err, &field), errors.As(err, &raw):
		return OutcomeInvalid
	default:
		return OutcomeError
	}
}
