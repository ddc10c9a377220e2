//go:build go1.25

package client

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
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
