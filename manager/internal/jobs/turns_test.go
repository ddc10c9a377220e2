package jobs

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/managertest/metered"
)

// measured remembers the most calls of one run of an update function.
type measured struct {
	store.Store
	most int
}

func (m *measured) Update(ctx context.Context, fn func(store.Tx) error) error {
	return m.Store.Update(ctx, func(tx store.Tx) error {
		t := &measuredTx{Tx: tx}
		defer func() { m.most = max(m.most, t.calls) }()
		return fn(t)
	})
}

type measuredTx struct {
	store.Tx
	calls int
}

func (t *measuredTx) Put(c store.Collection, key string, value []byte, entries ...store.Entry) error {
	t.calls++
	return t.Tx.Put(c, key, value, entries...)
}

func (t *measuredTx) Scan(c store.Collection, index string, r store.Range) ([]store.Hit, error) {
	t.calls++
	return t.Tx.Scan(c, index, r)
}

func newMeasured(t *testing.T, clock func() time.Time) (*measured, *Queue) {
	t.Helper()
	st := &measured{Store: mem.New(mem.Options{Clock: clock})}
	t.Cleanup(func() { _ = st.Close() })
	q, err := New(st, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	return st, q
}

// submitAll submits jobs of function f, with the concurrency keys and expiry that of returns.
func submitAll(t *testing.T, q *Queue, n int, of func(i int) Submission) {
	t.Helper()
	for i := range n {
		s := of(i)
		s.Function = "f"
		if _, err := q.Enqueue(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
}

func claimUpTo(t *testing.T, q *Queue, limit int) []Job {
	t.Helper()
	got, err := q.Claim(t.Context(), ClaimRequest{Worker: "w", Functions: []string{"f"}, Limit: limit, Lease: MaxLease})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestALowerLimitIsAppliedInParts: thousands of keys have more running jobs than they may from now on. A claim must not
// change all of them in one transaction, which an engine may refuse.
func TestALowerLimitIsAppliedInParts(t *testing.T) {
	t.Parallel()
	const keys = 2000
	st, q := newMeasured(t, nil)
	limit := func(n int) {
		t.Helper()
		if err := q.SetLimits(t.Context(), "f", Limits{MaxRunningPerKey: n}); err != nil {
			t.Fatal(err)
		}
	}
	limit(10)
	submitAll(t, q, 2*keys, func(i int) Submission { return Submission{ConcurrencyKey: fmt.Sprint(i % keys)} })
	for range 2 {
		if got := claimUpTo(t, q, MaxLimit); len(got) != keys/2 {
			t.Fatalf("%d jobs", len(got))
		}
	}
	submitAll(t, q, 1, func(int) Submission { return Submission{ConcurrencyKey: "last"} })
	limit(1)
	st.most = 0
	if got := claimUpTo(t, q, 1); len(got) != 1 || got[0].ConcurrencyKey != "last" {
		t.Errorf("%+v", got)
	}
	if st.most > 3*dutyBatch {
		t.Errorf("%d calls in a transaction", st.most)
	}
}

// TestClaimsDoNotReadTheBacklog: a claim reads as much whatever waits, and however many keys may have no more running jobs.
func TestClaimsDoNotReadTheBacklog(t *testing.T) {
	t.Parallel()
	now := time.Now() // moves so little that no claim looks for jobs that are due
	reads := func(keys, each int, blocked bool) int {
		t.Helper()
		st := metered.New(mem.New(mem.Options{Clock: func() time.Time { return now }}))
		t.Cleanup(func() { _ = st.Close() })
		q, err := New(st, Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(q.Close)
		limits := Limits{MaxRunning: MaxLimitCount, Rate: Rate{Count: MaxLimitCount, Per: time.Minute}}
		if blocked {
			limits.MaxRunningPerKey = 1
		}
		if err := q.SetLimits(t.Context(), "f", limits); err != nil {
			t.Fatal(err)
		}
		submitAll(t, q, keys*each, func(i int) Submission { return Submission{ConcurrencyKey: fmt.Sprint(i % keys)} })
		if blocked {
			if got := claimUpTo(t, q, MaxLimit); len(got) != keys {
				t.Fatalf("%d jobs, want one of each key", len(got))
			}
		}
		now = now.Add(10 * time.Millisecond) // so that the other keys are first in the line
		submitAll(t, q, 5, func(int) Submission { return Submission{} })
		submitAll(t, q, 5, func(i int) Submission { return Submission{ConcurrencyKey: fmt.Sprint("more ", i)} })
		st.Reads()
		if got := claimUpTo(t, q, 5); len(got) != 5 {
			t.Fatalf("%d jobs", len(got))
		}
		return st.Reads()
	}
	for _, blocked := range []bool{false, true} {
		if few, many := reads(10, 2, blocked), reads(500, 10, blocked); many > few {
			t.Errorf("blocked %v: a claim reads %d records of few jobs, and %d of many", blocked, few, many)
		}
	}
}

// TestALargeClaimServesEachKeyFirst: a claim of more jobs than there are keys.
func TestALargeClaimServesEachKeyFirst(t *testing.T) {
	t.Parallel()
	const keys = 2 * maxLineKeys
	_, q := newMeasured(t, nil)
	submitAll(t, q, 3*keys, func(i int) Submission { return Submission{ConcurrencyKey: fmt.Sprint(i % keys)} })
	got := make(map[string]int)
	for _, j := range claimUpTo(t, q, keys+10) {
		got[j.ConcurrencyKey]++
	}
	if len(got) != keys {
		t.Errorf("jobs of %d keys, want of %d", len(got), keys)
	}
}

// TestExpiredJobsDoNotSlowClaims: thousands of jobs have expired, and no duty has ended them yet.
func TestExpiredJobsDoNotSlowClaims(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"without a key": "", "with a key": "k"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := time.Now()
			st, q := newMeasured(t, func() time.Time { return now })
			if err := q.SetLimits(t.Context(), "f", Limits{MaxRunningPerKey: 1}); err != nil {
				t.Fatal(err)
			}
			submitAll(t, q, 3000, func(int) Submission { return Submission{ConcurrencyKey: key, ExpiresIn: time.Minute} })
			submitAll(t, q, 1, func(int) Submission { return Submission{ConcurrencyKey: key} })
			now = now.Add(time.Minute)
			st.most = 0
			if got := claimUpTo(t, q, 1); len(got) != 1 || !got[0].ExpiresAt.IsZero() {
				t.Errorf("%+v", got)
			}
			if st.most > 5*dutyBatch {
				t.Errorf("%d calls in a transaction", st.most)
			}
		})
	}
}

// TestANewRateWakesClaimsInTime: a claim waits for a token that comes in a day, and then the rate is raised.
func TestANewRateWakesClaimsInTime(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	began := time.Now()
	_, q := newMeasured(t, func() time.Time { return began.Add(time.Duration(ahead.Load())) })
	q.pollEvery = time.Hour
	rate := func(per time.Duration) {
		t.Helper()
		if err := q.SetLimits(t.Context(), "f", Limits{Rate: Rate{Count: 1, Per: per}}); err != nil {
			t.Fatal(err)
		}
	}
	rate(MaxRatePer)
	submitAll(t, q, 2, func(int) Submission { return Submission{} })
	if got := claimUpTo(t, q, 2); len(got) != 1 {
		t.Fatalf("%d jobs", len(got))
	}
	done := make(chan error, 1)
	looks := q.claims.looks.Load()
	go func() {
		got, err := q.Claim(t.Context(), ClaimRequest{Worker: "w", Functions: []string{"f"}, Wait: time.Minute})
		if err == nil && len(got) != 1 {
			err = fmt.Errorf("%d jobs", len(got))
		}
		done <- err
	}()
	looked := func(n int64) {
		t.Helper()
		eventually(t, "the claim has looked", func() bool { return q.claims.looks.Load() >= looks+n })
	}
	looked(1)
	rate(10 * time.Millisecond)
	looked(2)
	ahead.Store(int64(time.Second))
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// wallStore shows another wall clock than its clock for leases.
type wallStore struct {
	store.Store
	off time.Duration
}

func (w *wallStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	return w.Store.Update(ctx, func(tx store.Tx) error { return fn(wallTx{tx, w.off}) })
}

type wallTx struct {
	store.Tx
	off time.Duration
}

func (t wallTx) Wall() time.Time { return t.Now().Add(t.off) }

// TestKeysTakeTurnsWhenTheClockIsSetBack: the wall clock is set back by an hour while keys have work.
func TestKeysTakeTurnsWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	mem := mem.New(mem.Options{})
	t.Cleanup(func() { _ = mem.Close() })
	st := &wallStore{Store: mem}
	q, err := New(st, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	submitAll(t, q, 10, func(i int) Submission { return Submission{ConcurrencyKey: fmt.Sprint(i % 2)} })
	st.off = -time.Hour
	served := make(map[string]int)
	for range 6 {
		for _, j := range claimUpTo(t, q, 1) {
			served[j.ConcurrencyKey]++
		}
	}
	if served["0"] != 3 || served["1"] != 3 {
		t.Errorf("jobs of the keys: %v", served)
	}
}

// TestRateOutlivesAClockThatIsSetBack: deliveries continue at the rate, and not after the clock has caught up.
func TestRateOutlivesAClockThatIsSetBack(t *testing.T) {
	var off time.Duration
	_, q := newMeasured(t, func() time.Time { return time.Unix(1e9, 0).Add(off) })
	if err := q.SetLimits(t.Context(), "f", Limits{Rate: Rate{Count: 2, Per: time.Hour}}); err != nil {
		t.Fatal(err)
	}
	submitAll(t, q, 6, func(int) Submission { return Submission{} })
	if got := claimUpTo(t, q, 5); len(got) != 2 {
		t.Fatalf("%d jobs from a full bucket", len(got))
	}
	off = -100 * time.Hour
	if got := claimUpTo(t, q, 5); len(got) != 0 {
		t.Errorf("%d jobs while the bucket is empty", len(got))
	}
	off += time.Hour
	if got := claimUpTo(t, q, 5); len(got) != 2 {
		t.Errorf("%d jobs an hour later, want 2", len(got))
	}
}
