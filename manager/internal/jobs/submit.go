package jobs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Prepared is a checked submission, ready for EnqueueTx. It can be used in any number of runs of one update function,
// and only once.
type Prepared struct {
	sub      Submission
	id       string
	proposed bool   // the caller chose id
	lockID   string // key in colLocks, "" without Dedup
	replay   bool   // it replays a dead letter, for which there is always room
}

// ID is the id that a new job will get.
func (p *Prepared) ID() string { return p.id }

// Prepare checks a submission and fills in its defaults. It returns a *FieldError for the first invalid field. Prepare
// draws the job's id, so it must not be called inside an update function.
func (q *Queue) Prepare(s Submission) (*Prepared, error) {
	if len(s.Payload) == 0 {
		s.Payload = []byte("null")
	}
	if s.MaxAttempts == 0 {
		s.MaxAttempts = q.opt.MaxAttempts
	}
	if s.Dedup != nil {
		d := *s.Dedup
		s.Dedup = &d
		if d.Strategy == 0 {
			s.Dedup.Strategy = UntilExecuting
		}
		if d.TTL == 0 {
			s.Dedup.TTL = q.opt.DedupTTL
		}
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	p := &Prepared{sub: s, id: s.ID, proposed: s.ID != ""}
	if !p.proposed {
		p.id = q.ids.next()
	}
	if s.Dedup != nil {
		p.lockID = lockID(&s)
	}
	return p, nil
}

func (s *Submission) check() error {
	err := cmp.Or(
		CheckName("function", s.Function), checkJSON("payload", s.Payload, MaxPayloadBytes), checkProposedID(s.ID),
		checkKey("key", s.Key, 0), checkKey("concurrency_key", s.ConcurrencyKey, 0), checkRange("priority", s.Priority, MinPriority, MaxPriority),
		checkTime("run_at", s.RunAt), checkDuration("delay_ms", s.Delay, 0, MaxDelay), checkRange("max_attempts", s.MaxAttempts, 1, MaxAttempts),
		checkTime("expires_at", s.ExpiresAt), checkDuration("expires_in_ms", s.ExpiresIn, 0, MaxDelay), checkOptional("timeout_ms", s.Timeout, MinLease, MaxLease),
		checkRange("place", s.Place, 0, MaxBatch-1), s.Dedup.check(), s.WALLocations.check(),
	)
	switch {
	case err != nil:
		return err
	case !s.RunAt.IsZero() && s.Delay != 0:
		return invalid("delay_ms", s.Delay.String(), "either run_at or delay_ms")
	case !s.ExpiresAt.IsZero() && s.ExpiresIn != 0:
		return invalid("expires_in_ms", s.ExpiresIn.String(), "either expires_at or expires_in_ms")
	case s.DeadIfExpired && s.ExpiresAt.IsZero() && s.ExpiresIn == 0:
		return invalid("on_expiry", "dead_letter", "only with expires_at or expires_in_ms")
	case s.ReturnExisting && s.Key == "":
		return invalid("on_duplicate", "return_existing", "reject when there is no key")
	case len(s.Owner) > MaxNameBytes:
		return tooLarge("owner", len(s.Owner), MaxNameBytes)
	case s.Traceparent != "" && Traceparent(s.Traceparent) != s.Traceparent:
		return invalid("traceparent", s.Traceparent, "a W3C trace context of version 00")
	}
	return nil
}

func (d *Dedup) check() error {
	switch {
	case d == nil:
		return nil
	case d.Strategy != UntilExecuting && d.Strategy != UntilExecuted:
		return invalidInt("dedup.strategy", int64(d.Strategy), "until_executing, until_executed")
	case d.RescheduleOnce && d.Strategy != UntilExecuted:
		return invalid("dedup.if_deduplicated", "reschedule_once", "only with strategy until_executed")
	}
	return cmp.Or(checkKey("dedup.key", d.Key, 0), checkDuration("dedup.ttl_ms", d.TTL, MinDedupTTL, MaxDedupTTL))
}

// CanonicalJSON returns the same bytes for equal JSON values: white space, the order of members, and how numbers and
// strings are written make no difference. A value without a canonical form (see api.AppendCanonical) equals only values
// that differ from it in white space. v must be JSON.
func CanonicalJSON(v []byte) []byte {
	if out, ok := api.AppendCanonical(nil, v, nil, nil); ok {
		return out
	}
	var compact bytes.Buffer
	_ = json.Compact(&compact, v) // v is JSON
	return compact.Bytes()
}

// lockID digests what makes two submissions duplicates: the owner, the function, and the dedup key, else the job key,
// else the payload.
func lockID(s *Submission) string {
	h := sha256.New()
	part := func(kind byte, v []byte) {
		h.Write([]byte{kind})
		h.Write(v)
		h.Write([]byte{0}) // no part contains a zero byte
	}
	part('o', []byte(s.Owner))
	part('f', []byte(s.Function))
	switch {
	case s.Dedup.Key != "":
		part('d', []byte(s.Dedup.Key))
	case s.Key != "":
		part('k', []byte(s.Key))
	default:
		part('p', CanonicalJSON(s.Payload))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Enqueue submits a job in its own transaction.
//
// It returns a *FieldError, ErrDuplicateKey, ErrQuarantine, ErrFull, or ErrConflict when another job has
// the proposed id.
func (q *Queue) Enqueue(ctx context.Context, s Submission) (Outcome, error) {
	p, err := q.Prepare(s)
	if err != nil {
		return Outcome{}, err
	}
	return q.EnqueuePrepared(ctx, p)
}

// EnqueuePrepared is Enqueue for a submission that was prepared already.
func (q *Queue) EnqueuePrepared(ctx context.Context, p *Prepared) (Outcome, error) {
	var err error
	c := &batch.Call[enqueueCall]{Arg: enqueueCall{p: p}, Size: len(p.sub.Payload)}
	call := &c.Arg
	if q.enqueues != nil {
		err = q.enqueues.Do(ctx, c)
	} else {
		err = q.store.Update(ctx, func(tx store.Tx) error { return q.enqueueTx(tx, []*enqueueCall{call}) })
	}
	if err == nil {
		err = call.err
	}
	if err != nil {
		q.Refused(err)
		return Outcome{}, err
	}
	q.Committed(call.out)
	return call.out, nil
}

// enqueueCall is a submission and its answer: an outcome or a refusal.
type enqueueCall struct {
	p   *Prepared
	out Outcome
	err error
}

// enqueueTx does submissions in one transaction.
func (q *Queue) enqueueTx(tx store.Tx, calls []*enqueueCall) error {
	all := make([]*Prepared, len(calls))
	for i, call := range calls {
		all[i] = call.p
	}
	if err := PrefetchTx(tx, all); err != nil {
		return err
	}
	for _, call := range calls {
		call.out, call.err = q.EnqueueTx(tx, call.p)
		if call.err != nil && !IsRefusal(call.err) {
			return call.err
		}
	}
	return nil
}

// PrefetchTx reads the records that submissions depend on. Jobs and their keys are new as a rule.
func PrefetchTx(tx store.Tx, all []*Prepared) error {
	// New jobs, too: an engine may have to read them before it writes them.
	names := make([]store.ID, 0, 2*len(all))
	var locks []store.ID
	for _, p := range all {
		names = append(names, store.ID{Collection: colJobs, Key: p.id})
		if p.sub.Key != "" {
			names = append(names, store.ID{Collection: colKeys, Key: p.sub.Key})
		}
		if p.sub.ConcurrencyKey != "" {
			locks = append(locks, store.ID{Collection: colSlots, Key: slotsKey(p.sub.Function, p.sub.ConcurrencyKey)}, store.ID{Collection: colControl, Key: settingsKey})
		}
		if p.lockID != "" {
			locks = append(locks, store.ID{Collection: colLocks, Key: p.lockID})
		}
	}
	if len(locks) > 0 {
		return tx.Prefetch(append(names, locks...))
	}
	return tx.PrefetchNew(names)
}

// EnqueueTx submits a prepared job inside the caller's transaction. If it returns an error it has written nothing.
// After the transaction succeeded the caller should pass the outcome to Committed, and an error to Refused.
func (q *Queue) EnqueueTx(tx store.Tx, p *Prepared) (Outcome, error) {
	tx = q.booked(tx)
	if p.proposed {
		have, err := load(tx, p.id)
		if err != nil {
			return Outcome{}, err
		}
		if have != nil {
			return Outcome{}, have.conflict("the id is taken")
		}
		if q.opt.Quarantine != nil {
			left, err := q.opt.Quarantine(tx)
			if err == nil && left > 0 {
				err = quarantined(left)
			}
			if err != nil {
				return Outcome{}, err
			}
		}
	}
	if p.sub.Key != "" {
		// A remote store returns the time with the first record, so read first the record that is needed in any case.
		if _, err := tx.Get(colKeys, p.sub.Key); err != nil && !errors.Is(err, store.ErrNotFound) {
			return Outcome{}, err
		}
	}
	at := now(tx)
	if !p.sub.RunAt.IsZero() && p.sub.RunAt.Sub(at) > MaxDelay {
		return Outcome{}, invalid("run_at", p.sub.RunAt.Format(time.RFC3339), "at most 366 days ahead")
	}
	r := p.record(at)
	if r.State == Scheduled && r.After == "" && !r.ExpiresAt.IsZero() && !r.ExpiresAt.After(r.RunAt) {
		return Outcome{}, invalid("expires_at", r.ExpiresAt.Format(time.RFC3339Nano), "a time after "+r.RunAt.Format(time.RFC3339Nano)+", when the job may run")
	}
	if r.LockID != "" {
		kept, err := lockHolder(tx, at, r.LockID)
		if err != nil {
			return Outcome{}, err
		}
		if kept != nil {
			if err := kept.fetch(tx); err != nil {
				return Outcome{}, err
			}
			if err := kept.absorb(tx, p.sub.WALLocations); err != nil {
				return Outcome{}, err
			}
			return Outcome{Job: kept.jobNow(tx), Deduplicated: true}, nil
		}
	}
	if r.Key != "" {
		holder, err := keyHolder(tx, at, r.Key)
		if err != nil {
			return Outcome{}, err
		}
		switch {
		case holder == nil:
		case !p.sub.ReturnExisting:
			return Outcome{}, holder.duplicate(r.Key)
		default:
			if err := holder.fetch(tx); err != nil {
				return Outcome{}, err
			}
			return Outcome{Job: holder.jobNow(tx), Existing: true}, nil
		}
	}
	if !p.replay {
		if err := q.admit(tx, r); err != nil {
			return Outcome{}, err
		}
	}
	if r.ConcurrencyKey != "" {
		if err := q.keyed(tx, r); err != nil {
			return Outcome{}, err
		}
	}
	if err := r.holdLock(tx, at); err != nil {
		return Outcome{}, err
	}
	if r.Key != "" {
		if err := tx.Put(colKeys, r.Key, []byte(r.ID)); err != nil {
			return Outcome{}, err
		}
	}
	if err := r.create(tx); err != nil {
		return Outcome{}, err
	}
	if r.State == Queued {
		notifyQueued(tx, r.Function)
	}
	return Outcome{Job: r.job(), charge: r.charge()}, nil
}

// keyed lets claims look for jobs of the function with concurrency keys. It returns an error if the new job could not wait
// with its key.
func (q *Queue) keyed(tx store.Tx, r *record) error {
	if _, err := loadKeySlots(tx, slotsKey(r.Function, r.ConcurrencyKey)); err != nil {
		return err
	}
	r.marked = true
	all, err := q.functionSettings(tx)
	if err != nil {
		return err
	}
	if s := all.find(r.Function); s != nil && s.keyed == keyedUsed {
		return nil
	}
	return markKeyed(tx, r.Function)
}

// Committed reports to the queue that the transaction of an EnqueueTx succeeded, so that the queue knows exactly when the
// next job is due and how many bytes it takes. Without it a delayed job may start late (see dueTimes).
func (q *Queue) Committed(out Outcome) {
	switch {
	case out.Deduplicated:
		q.stats.deduplicated.Add(1)
	case out.Existing:
		q.stats.existing.Add(1)
	default:
		if q.shared {
			q.usage.change(charge{}, out.charge)
		}
		q.stats.enqueued.Add(1)
		q.rates.add(out.Job.Function, rateEnqueued)
		q.noteDue(&out.Job)
	}
}

// Refused reports to the queue why a submission was not enqueued.
func (q *Queue) Refused(err error) {
	var e *Error
	switch {
	case !errors.As(err, &e) || e.Kind != ErrFull:
	case e.Owner == "":
		q.stats.full.Add(1)
	default:
		q.stats.overShare.Add(1)
	}
}

// again is a submission of the same work as another job.
func (r *record) again(id string) *Prepared {
	return &Prepared{id: id, lockID: r.LockID, sub: Submission{
		Function: r.Function, Payload: r.Payload, Key: r.Key, Priority: r.Priority,
		MaxAttempts: r.MaxAttempts, Dedup: r.Dedup, WALLocations: r.WALLocations, Owner: r.Owner,
		Timeout: r.Timeout, ConcurrencyKey: r.ConcurrencyKey, Event: r.Event, Traceparent: r.Traceparent,
	}}
}

// record builds the new job as of the given time.
func (p *Prepared) record(at time.Time) *record {
	s := &p.sub
	r := &record{Job: Job{
		ID:           p.id,
		Function:     s.Function,
		Payload:      s.Payload,
		Key:          s.Key,
		Priority:     s.Priority,
		State:        Queued,
		MaxAttempts:  s.MaxAttempts,
		CreatedAt:    at,
		RunAt:        at,
		Dedup:        s.Dedup,
		WALLocations: s.WALLocations,
		Timeout:      s.Timeout,

		ConcurrencyKey: s.ConcurrencyKey, Batch: s.Batch, After: s.After,
		Owner:       s.Owner,
		Event:       s.Event,
		Traceparent: s.Traceparent,
	}, LockID: p.lockID, Place: s.Place}
	if !s.ExpiresAt.IsZero() || s.ExpiresIn > 0 {
		if r.ExpiresAt = s.ExpiresAt; r.ExpiresAt.IsZero() {
			r.ExpiresAt = at.Add(s.ExpiresIn)
		}
		r.ExpiresAt, r.DeadIfExpired = r.ExpiresAt.UTC().Truncate(time.Microsecond), s.DeadIfExpired
	}
	if s.After != "" {
		r.State, r.RunAt = Scheduled, unset
		return r
	}
	runAt := s.RunAt.UTC().Truncate(time.Microsecond)
	if s.RunAt.IsZero() {
		runAt = at.Add(s.Delay).Truncate(time.Microsecond)
	}
	if runAt.After(at) {
		r.State, r.RunAt = Scheduled, runAt
	}
	return r
}
