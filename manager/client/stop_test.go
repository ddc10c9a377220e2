//go:build go1.25

package client

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// TestStopCancelsAClaimThatIsNotAnswered stops a worker whose manager hangs.
func TestStopCancelsAClaimThatIsNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := roundTripper(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		c, err := New(Options{URL: "http://x", HTTP: &http.Client{Transport: hang}})
		if err != nil {
			t.Fatal(err)
		}
		w, err := c.NewWorker(WorkerOptions{Handlers: nothing})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		began := time.Now()
		if err := w.Run(ctx); err != nil || time.Since(began) != time.Second+leaveTime {
			t.Errorf("stopped after %v with %v", time.Since(began), err)
		}
	})
}

// TestReportsWaitAsLongAsTheManagerAsks: what bounds a program's calls does not bound the reports of its workers.
func TestReportsWaitAsLongAsTheManagerAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var times []time.Duration
		began := time.Now()
		manager := roundTripper(func(r *http.Request) (*http.Response, error) {
			times = append(times, time.Since(began))
			if len(times)%2 == 1 {
				busy := response(503, api.ContentTypeProblem, `{"status":503,"code":"overloaded"}`)
				busy.Header.Set("Retry-After", "2")
				return busy, nil
			}
			if r.URL.Path == "/v1/jobs/finish" {
				return response(200, api.ContentTypeJSON, `{"results":[{"id":"a","state":"complete"}]}`), nil
			}
			return response(200, api.ContentTypeJSON, `{"id":"a","state":"queued"}`), nil
		})
		c, err := New(Options{URL: "http://x", MaxRetryAfter: time.Second, MaxAttempts: 1, HTTP: &http.Client{Transport: manager}})
		if err != nil {
			t.Fatal(err)
		}
		w, err := c.NewWorker(WorkerOptions{Handlers: nothing})
		if err != nil {
			t.Fatal(err)
		}
		f := &finish{req: FinishRequest{ID: "a", LeaseToken: "t", Status: StateComplete}, done: make(chan error, 1)}
		w.send(t.Context(), []*finish{f})
		if err := <-f.done; err != nil {
			t.Errorf("the finish: %v", err)
		}
		if err := w.retry(t.Context(), "a", RetryRequest{LeaseToken: "t"}); err != nil {
			t.Errorf("the retry: %v", err)
		}
		if want := []time.Duration{0, 2 * time.Second, 2 * time.Second, 4 * time.Second}; !slices.Equal(times, want) {
			t.Errorf("requests after %v, want %v", times, want)
		}
	})
}

// TestReportsEnd: a report that nobody takes ends after its time.
func TestReportsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Options{URL: "http://x", MaxAttempts: 1, HTTP: &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			return nil, errCut
		})}})
		if err != nil {
			t.Fatal(err)
		}
		w, err := c.NewWorker(WorkerOptions{Handlers: nothing, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go w.finishLoop(ctx)
		began := time.Now()
		w.report(ctx, &Job{ID: "a", Lease: &Lease{Token: "t"}}, outcome{}, nil)
		if took, want := time.Since(began), time.Hour+2*30*time.Second; took != want {
			t.Errorf("gave up after %v, want %v", took, want)
		}
	})
}
