package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// Options configure a Queue. The zero value of every field means its default. Managers that share a store should use
// the same options.
type Options struct {
	// Lease is the lease of a claim that names none: 100 ms to 24 h, default 60 s.
	Lease time.Duration
	// MaxAttempts of a job that names none: 1 to 1000, default 25.
	MaxAttempts int
	// BackoffBase and BackoffMax set the delay of a worker's retry that names none: Base doubled per attempt, at most
	// Max; half of it is random. 1 ms to 366 days; defaults 1 s and 1 h.
	BackoffBase, BackoffMax time.Duration
	// DedupTTL is the lock time of a deduplication that names none: 1 s to
	// 366 days, default 6 h.
	DedupTTL time.Duration
	// RetainFor and RetainCount bound the terminal jobs that are kept, except dead letters: whichever is exceeded
	// removes the oldest. 1 s to 366 days, default 24 h; 1 to 100 million, default 100,000.
	RetainFor   time.Duration
	RetainCount int
	// DeadFor and DeadCount bound the dead letters of each function in the same
	// way; a hundredth more may stay for a minute. Defaults 30 days and 100,000.
	DeadFor   time.Duration
	DeadCount int
	// MaxBytes bounds the records of all jobs, plus RecordOverhead bytes for each: 8 MiB to 16 TiB, default 512 MiB. Beyond
	// it new jobs get ErrFull. Three things may exceed it: a single transaction, results, and on a store that managers
	// share, jobs that the others added since the last count. Terminal jobs take at most a quarter: then the oldest are removed, first
	// those that are no dead letters.
	MaxBytes int64
	// OwnerShare is the part of MaxBytes that the live jobs of one Submission.Owner may take: default a half; none is
	// bounded when it is negative or 1. Jobs without an owner are not bounded.
	OwnerShare float64
	// Interval is the longest pause between two rounds of Run: 10 ms to 1 h, default 1 s. Jobs that are due earlier are
	// not delayed: Run knows when the next one is due.
	Interval time.Duration
	// MaxWaiters bounds the calls that wait at the same time (for jobs or results): 1 to 1 million, default 10,000.
	MaxWaiters int
	// Quarantine, when set, returns for how much longer the queue may have forgotten jobs, as of the transaction; 0: it
	// has not. Submissions with an id that it does not know then get ErrQuarantine.
	Quarantine func(tx store.Tx) (time.Duration, error)
	// Lost, if set, is called for each job whose lease was revoked, with the worker that had it. The job is queued, failed
	// or cancelled. Died, if set, is called once for each job that becomes a dead letter. Both are called from several
	// goroutines, and without payloads over 512 bytes.
	Lost func(j Job, worker string)
	Died func(j Job)
	// Unreadable is notified of records that cannot be read; default a tracker of its own.
	Unreadable *unread.Tracker
	// Random returns numbers in [0, 1) for the jitter, and for which function of a claim begins; default math/rand/v2.
	Random func() float64
}

// WithDefaults returns a copy with every zero field set to its default.
func (o Options) WithDefaults() Options {
	o.Lease = cmp.Or(o.Lease, time.Minute)
	o.MaxAttempts = cmp.Or(o.MaxAttempts, 25)
	o.BackoffBase = cmp.Or(o.BackoffBase, time.Second)
	o.BackoffMax = cmp.Or(o.BackoffMax, time.Hour)
	o.DedupTTL = cmp.Or(o.DedupTTL, 6*time.Hour)
	o.RetainFor = cmp.Or(o.RetainFor, 24*time.Hour)
	o.RetainCount = cmp.Or(o.RetainCount, 100_000)
	o.DeadFor = cmp.Or(o.DeadFor, 30*24*time.Hour)
	o.DeadCount = cmp.Or(o.DeadCount, 100_000)
	o.MaxBytes = cmp.Or(o.MaxBytes, 512<<20)
	o.OwnerShare = cmp.Or(o.OwnerShare, 0.5)
	o.Interval = cmp.Or(o.Interval, time.Second)
	o.MaxWaiters = cmp.Or(o.MaxWaiters, 10_000)
	if o.Unreadable == nil {
		o.Unreadable = unread.New()
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	return o
}

// Validate reports the first field that is out of bounds.
func (o Options) Validate() error {
	o = o.WithDefaults()
	const most = 100_000_000
	return cmp.Or(
		checkDuration("lease", o.Lease, MinLease, MaxLease),
		checkRange("max_attempts", o.MaxAttempts, 1, MaxAttempts),
		checkDuration("backoff_base", o.BackoffBase, time.Millisecond, MaxDelay),
		checkDuration("backoff_max", o.BackoffMax, o.BackoffBase, MaxDelay),
		checkDuration("dedup_ttl", o.DedupTTL, MinDedupTTL, MaxDedupTTL),
		checkDuration("retain_for", o.RetainFor, time.Second, MaxDelay),
		checkRange("retain_count", o.RetainCount, 1, most),
		checkDuration("dead_for", o.DeadFor, time.Second, MaxDelay),
		checkRange("dead_count", o.DeadCount, 1, most),
		checkRange("max_bytes", o.MaxBytes, MinMaxBytes, MaxMaxBytes),
		checkShare("owner_share", o.OwnerShare),
		checkDuration("interval", o.Interval, 10*time.Millisecond, time.Hour),
		checkRange("max_waiters", o.MaxWaiters, 1, 1_000_000),
	)
}

// Queue is the job queue on a store. All methods are safe for concurrent use.
// Any number of queues, in any number of processes, may work on a store that is
// shared.
//
// Methods return the errors of this package, and those of package store unchanged.
type Queue struct {
	store store.Store
	opt   Options
	ids   idSource

	due      dueTimes
	dead     deadCounts
	settings settingsCache
	known    knownFunctions
	front    unread.Front
	claims   claimBatcher
	idle     idleClaims
	// Nil if every call has a transaction of its own.
	finishes *batch.Batcher[finishCall]
	enqueues *batch.Batcher[enqueueCall]
	waiters  atomic.Int64
	stats    counters
	rates    rates
	usage    usage
	sizes    bool // store.Capabilities.Sizes
	shared   bool // managers share the store

	pollEvery time.Duration // the shortest poll interval, which tests may set
	again     time.Duration // when a claim that was woken and found nothing searches again, see store.Range

	drain   chan struct{} // closed by Drain
	drained sync.Once
	life    *batch.Life     // of the goroutines that serve calls
	base    context.Context // of life, ends with Close
}

// New makes a queue on an open store. The caller closes the store after the queue.
func New(s store.Store, o Options) (*Queue, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("jobs: options: %w", err)
	}
	q := &Queue{store: s, opt: o.WithDefaults(), drain: make(chan struct{}), life: batch.NewLife(context.Background())}
	q.base = q.life.Context()
	q.claims.init(q)
	q.idle = idleClaims{q: q, lines: make(map[string]*line), timers: make(map[string]*tokenTimer)}
	q.pollEvery, q.again = 5*time.Second, math.MaxInt64
	q.sizes, q.shared = s.Capabilities().Sizes, s.Capabilities().Shared
	if !q.shared {
		q.store = &bookedStore{s, q.opt.Unreadable}
	} else {
		q.pollEvery, q.again = time.Second, 500*time.Millisecond
		q.finishes, q.enqueues = newGroup(q, finishTx), newGroup(q, q.enqueueTx)
	}
	q.due.kick, q.known.busy = make(chan struct{}, 1), make(chan struct{}, 1)
	return q, nil
}

// Close ends waiting calls with ErrClosed and waits for the queue's own goroutines. Run must have returned, or its
// context must have ended.
func (q *Queue) Close() {
	q.idle.stopTimers()
	q.life.End()
}

// Drain ends all waits, present and future: waiting claims get no jobs, and callers that wait for a result get the job
// as it is. Call it before shutting down.
func (q *Queue) Drain() { q.drained.Do(func() { close(q.drain) }) }

// errDrained ends a wait after Drain.
var errDrained = errors.New("jobs: drained")

// now is the transaction's wall clock in the precision that is stored: all times of a job but those of its lease.
func now(tx store.Tx) time.Time { return tx.Wall().UTC().Truncate(time.Microsecond) }

// leaseNow is the time by which leases end. It may be behind now, because time in which no worker could renew a lease
// does not count.
func leaseNow(tx store.Tx) time.Time { return tx.Now().UTC().Truncate(time.Microsecond) }

// wait blocks until wake receives a value, or for d. It returns an error when ctx ends, and after Drain or Close.
func (q *Queue) wait(ctx context.Context, wake <-chan struct{}, d time.Duration) error {
	return q.waitOr(ctx, wake, d, q.drain)
}

// waitOr is wait with another channel than that of Drain, nil for none.
func (q *Queue) waitOr(ctx context.Context, wake <-chan struct{}, d time.Duration, drain <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-wake:
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	case <-q.base.Done():
		return ErrClosed
	case <-drain:
		return errDrained
	}
	return nil
}

// await calls read until it says that it is done, for at most the given time: now, and whenever the topic is notified. After
// Drain it returns at once.
func (q *Queue) await(ctx context.Context, topic string, wait time.Duration, read func() (done bool, err error)) error {
	if done, err := read(); err != nil || done || wait == 0 {
		return err
	}
	leave, err := q.enterWait()
	if err != nil {
		return err
	}
	defer leave()
	deadline := time.Now().Add(wait)
	w := q.store.Watch(topic) // before the next read, so that no wake-up is missed
	defer w.Stop()
	for {
		done, err := read()
		left := time.Until(deadline)
		if err != nil || done || left <= 0 {
			return err
		}
		if err := q.wait(ctx, w.C(), min(left, q.poll())); errors.Is(err, errDrained) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// enterWait counts a waiting call. The returned function ends it.
func (q *Queue) enterWait() (func(), error) {
	if q.waiters.Add(1) > int64(q.opt.MaxWaiters) {
		q.waiters.Add(-1)
		return nil, ErrOverloaded
	}
	return func() { q.waiters.Add(-1) }, nil
}

// poll is the pause after which a waiting call checks without having been woken, because shared stores may lose
// wake-ups. It is random, so that the waiters do not all check at the same time.
func (q *Queue) poll() time.Duration {
	d := q.pollEvery
	return d + time.Duration(q.opt.Random()*float64(d)/2)
}

// backoff is the delay after the given attempt (1 for the first) failed.
func (o *Options) backoff(attempt int, random float64) time.Duration {
	d := o.BackoffMax
	if shift := attempt - 1; shift < 40 && o.BackoffBase < o.BackoffMax>>max(shift, 0) {
		d = o.BackoffBase << max(shift, 0)
	}
	return d/2 + time.Duration(random*float64(d/2))
}

// Unreadable returns the tracker of the records that this queue could not read.
func (q *Queue) Unreadable() *unread.Tracker { return q.opt.Unreadable }
