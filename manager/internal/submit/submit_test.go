package submit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// flaky is a store whose transactions a test makes fail, before they commit.
type flaky struct {
	*mem.Store
	broken atomic.Bool
}

var errBroken = fmt.Errorf("%w: the test broke it", store.ErrUnavailable)

func (s *flaky) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		if s.broken.Load() {
			return errBroken
		}
		return nil
	})
}

type site struct {
	t      *testing.T
	store  *flaky
	ledger *ledger.Ledger
	queue  *jobs.Queue
	*Submitter
}

func newSite(t *testing.T, o ledger.Options) *site {
	t.Helper()
	s := &site{t: t, store: &flaky{Store: mem.New(mem.Options{})}}
	var err error
	if s.ledger, err = ledger.New(s.store, o); err != nil {
		t.Fatal(err)
	}
	if s.queue, err = jobs.New(s.store, jobs.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.queue.Close)
	s.Submitter = New(s.ledger, s.queue, Encoder{
		Problem: func(err error) api.Problem {
			if errors.Is(err, store.ErrUnavailable) {
				return api.Problem{Status: 503}
			}
			return api.Problem{Status: 409, Title: "refused"}
		},
		Outcome: func(out *jobs.Outcome, _ bool) (int, []byte) { return 202, []byte("job " + out.Job.ID) },
	})
	return s
}

// job submits a job with a body that is its payload as well.
func (s *site) job(c Call, sub jobs.Submission) (Answer, error) {
	s.t.Helper()
	sub.Function = "f"
	p, err := s.queue.Prepare(sub)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.Job(s.t.Context(), &c, p)
}

func (s *site) queued(want int) {
	s.t.Helper()
	if d, err := s.queue.Depth(s.t.Context()); err != nil || d.Queued != want {
		s.t.Errorf("%d jobs are queued, %v; want %d", d.Queued, err, want)
	}
}

func TestRepetitionGetsTheRecordedAnswer(t *testing.T) {
	s := newSite(t, ledger.Options{})
	c := Call{Key: "k", Body: []byte(`{"function":"f","payload":{"a": 1}}`)}
	first, err := s.job(c, jobs.Submission{})
	if err != nil || first.Status != 202 || first.Replayed || first.ContentType != api.ContentTypeJSON {
		t.Fatalf("first: %+v, %v", first, err)
	}
	c.Body = []byte(`{"id":"another","payload":{"a":1},"function":"f"}`)
	again, err := s.job(c, jobs.Submission{})
	if err != nil || !again.Replayed || string(again.Body) != string(first.Body) || again.Status != 202 {
		t.Errorf("again: %+v, %v", again, err)
	}
	s.queued(1)
	c.Body = []byte(`{"function":"f","payload":{"a":2}}`)
	if _, err := s.job(c, jobs.Submission{}); !errors.Is(err, ledger.ErrFingerprintMismatch) {
		t.Errorf("another submission with the key: %v", err)
	}
	c.Credentials = "Bearer other"
	if a, err := s.job(c, jobs.Submission{}); err != nil || a.Replayed {
		t.Errorf("another caller: %+v, %v", a, err)
	}
	s.queued(2)
}

func TestSubmissionWithoutKeyIsCarriedOutEachTime(t *testing.T) {
	s := newSite(t, ledger.Options{})
	for range 2 {
		if a, err := s.job(Call{Body: []byte(`{}`)}, jobs.Submission{}); err != nil || a.Replayed {
			t.Errorf("%+v, %v", a, err)
		}
	}
	s.queued(2)
	if st, err := s.ledger.Stats(t.Context()); err != nil || st.Committed != 0 {
		t.Errorf("the ledger has %+v, %v", st, err)
	}
}

func TestRefusalIsRecorded(t *testing.T) {
	s := newSite(t, ledger.Options{})
	holder, err := s.job(Call{}, jobs.Submission{Key: "held"})
	if err != nil {
		t.Fatal(err)
	}
	c := Call{Key: "k", Body: []byte(`{}`)}
	if _, err := s.job(c, jobs.Submission{Key: "held"}); !errors.Is(err, jobs.ErrDuplicateKey) {
		t.Fatalf("refused with %v", err)
	}
	if _, err := s.queue.Cancel(t.Context(), strings.TrimPrefix(string(holder.Body), "job ")); err != nil {
		t.Fatal(err)
	}
	a, err := s.job(c, jobs.Submission{Key: "held"})
	if err != nil || !a.Replayed || a.Status != 409 || a.ContentType != api.ContentTypeProblem {
		t.Errorf("the refusal, again: %+v, %v", a, err)
	}
	s.queued(0)
}

// An error with a status of 500 or more says nothing of the submission: it may succeed the next time.
func TestErrorThatIsNoRefusalIsNotRecorded(t *testing.T) {
	s := newSite(t, ledger.Options{})
	s.encode.Problem = func(error) api.Problem { return api.Problem{Status: 500} }
	holder, err := s.job(Call{}, jobs.Submission{Key: "held"})
	if err != nil {
		t.Fatal(err)
	}
	c := Call{Key: "k", Body: []byte(`{}`)}
	if _, err := s.job(c, jobs.Submission{Key: "held"}); err == nil {
		t.Fatal("it was not refused")
	}
	if _, err := s.queue.Cancel(t.Context(), strings.TrimPrefix(string(holder.Body), "job ")); err != nil {
		t.Fatal(err)
	}
	if a, err := s.job(c, jobs.Submission{Key: "held"}); err != nil || a.Replayed || a.Status != 202 {
		t.Errorf("the next attempt: %+v, %v", a, err)
	}
}

func TestFailureLeavesNothing(t *testing.T) {
	s := newSite(t, ledger.Options{})
	s.store.broken.Store(true)
	for _, key := range []string{"k", ""} {
		if _, err := s.job(Call{Key: key, Body: []byte(`{}`)}, jobs.Submission{}); !errors.Is(err, errBroken) {
			t.Errorf("job with key %q: %v", key, err)
		}
	}
	s.store.broken.Store(false)
	s.queued(0)
	if c := s.queue.Counters(); c.Enqueued != 0 {
		t.Errorf("%d jobs are counted as enqueued", c.Enqueued)
	}
	if st, err := s.ledger.Stats(t.Context()); err != nil || st.Pending+st.Committed+st.Rejected != 0 {
		t.Errorf("the ledger has %+v, %v", st, err)
	}
	for _, replayed := range []bool{false, true} {
		if a, err := s.job(Call{Key: "k", Body: []byte(`{}`)}, jobs.Submission{}); err != nil || a.Replayed != replayed {
			t.Errorf("afterwards: %+v, %v", a, err)
		}
	}
	s.queued(1)
}

func TestKeyThatIsHeldIsPending(t *testing.T) {
	s := newSite(t, ledger.Options{})
	if _, err := s.ledger.Reserve(t.Context(), &api.ReserveRequest{Key: "k", Scope: jobScope, Token: "t", PendingTTL: time.Hour}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.job(Call{Key: "k", Body: []byte(`{}`)}, jobs.Submission{}); !errors.Is(err, ErrPending) {
		t.Errorf("got %v", err)
	}
	s.queued(0)
}

func TestAnswerThatIsNotRecorded(t *testing.T) {
	s := newSite(t, ledger.Options{})
	// What a full window or another version recorded without a body.
	omitted := &api.FinishRequest{Key: "o", Scope: jobScope, Token: "t", Fingerprint: fingerprint([]byte(`{}`)), Result: api.Result{Status: 202, BodyOmitted: true}}
	if err := s.ledger.Commit(t.Context(), ledger.NewFinish(omitted)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.job(Call{Key: "o", Body: []byte(`{}`)}, jobs.Submission{}); !errors.Is(err, ErrNotRecorded) {
		t.Errorf("an answer that is not recorded: %v", err)
	}
}

// An outcome that the ledger's own API recorded under the scope of submissions is no answer to one. It may have any status and
// any body, or none.
func TestOutcomeOfAnotherCallIsNotReplayed(t *testing.T) {
	for name, result := range map[string]api.Result{
		"empty":       {Status: 400},
		"text":        {Status: 202, Headers: []api.Header{{Name: "content-type", Value: "text/plain"}}, Body: []byte("hello")},
		"no job":      {Status: 202, Headers: []api.Header{{Name: "content-type", Value: api.ContentTypeJSON}}, Body: []byte("{}")},
		"not kept":    {Status: 202, BodyOmitted: true},
		"provisional": {Status: 100},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, ledger.Options{})
			c := Call{Key: "k", Body: []byte(`{}`)}
			if err := s.ledger.Commit(t.Context(), ledger.NewFinish(&api.FinishRequest{Key: c.Key, Scope: jobScope, Token: "t", Result: result})); err != nil {
				t.Fatal(err)
			}
			if a, err := s.job(c, jobs.Submission{}); !errors.Is(err, ledger.ErrFingerprintMismatch) {
				t.Errorf("the submission got %+v, %v", a, err)
			}
			items := []Item{{Call: c}, {Call: Call{Key: "other", Body: []byte(`{}`)}}}
			for i := range items {
				var err error
				if items[i].Job, err = s.queue.Prepare(jobs.Submission{Function: "f"}); err != nil {
					t.Fatal(err)
				}
			}
			s.Jobs(t.Context(), items)
			if !errors.Is(items[0].Err, ledger.ErrFingerprintMismatch) || items[1].Err != nil {
				t.Errorf("the batch got %v and %v", items[0].Err, items[1].Err)
			}
			s.queued(1)
		})
	}
}

func TestOneOfManyAtOnceIsCarriedOut(t *testing.T) {
	s := newSite(t, ledger.Options{})
	var fresh atomic.Int64
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			a, err := s.job(Call{Key: "k", Body: []byte(`{}`)}, jobs.Submission{})
			if err != nil {
				t.Error(err)
			}
			if !a.Replayed {
				fresh.Add(1)
			}
		})
	}
	wg.Wait()
	if n := fresh.Load(); n != 1 {
		t.Errorf("%d submissions were carried out", n)
	}
	s.queued(1)
}

func TestFingerprintSeparatesSubmissions(t *testing.T) {
	same := fingerprint([]byte(`{"function":"f","payload":{"a": [1, 2]},"id":"one"}`))
	for body, equal := range map[string]bool{
		`{"id":"two","payload":{"a":[1,2]},"function":"f"}`: true,
		`{"function":"f","payload":{"a":[1,2]}}`:            true,
		`{"function":"f","payload":{"a":[1.0,2e0]}}`:        true,
		`{"function":"f","payload":{"a":[2,1]}}`:            false,
		`{"function":"f","payload":{"a":[1,2]},"key":"k"}`:  false,
		`{"function":"fpayload","":{"a":[1,2]}}`:            false,
	} {
		if got := fingerprint([]byte(body)); (got == same) != equal {
			t.Errorf("%s: the same fingerprint: %v, want %v", body, got == same, equal)
		}
	}
	// Stored records have these.
	if got := fingerprint([]byte(`{"function":"f"}`)); got != "sha256:ffa87e89437d2d4585ed3c6d986708593ecc728394cf1bff659560d666c190e4" {
		t.Errorf("fingerprint %s", got)
	}
	if a := identity("Bearer a"); a != "#998b5768f6774aaf964b32ba30892f0b" || identity("") != "" {
		t.Errorf("identity %q", a)
	}
	if !InScope(jobScope+identity("x")) || InScope("shop") {
		t.Error("InScope")
	}
}
