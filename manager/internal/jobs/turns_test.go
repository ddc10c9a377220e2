package jobs

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
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
