package server

import (
	"net/http"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// Without a collector the calls of the queue allocate nothing for spans, and look at no clock.
func TestSpansOfJobsCostNothingWhenOff(t *testing.T) {
	const trace = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	var allocs float64
	var start time.Time
	var sub jobs.Submission
	got := []jobs.Job{{ID: "a", Function: "f", Lease: &jobs.Lease{}, Traceparent: trace}}
	made := jobs.Outcome{Job: got[0]}
	s := newSite(t, siteOptions{routes: []httpd.Route{{Method: "GET", Path: "/test", Roles: httpd.Anyone, Handle: func(r *httpd.Request, w *httpd.Response) error {
		allocs = testing.AllocsPerRun(100, func() {
			p := produce(r, &sub, false)
			p.end(&made, nil)
			start = began(r)
			claimSpans(r, got, start)
			attemptSpan(r, &got[0], false)
		})
		w.JSON(200)
		w.Body = append(w.Body, "{}"...)
		return nil
	}}}})
	req, _ := http.NewRequestWithContext(t.Context(), "GET", s.Base+"/test", nil)
	req.Header.Set("Traceparent", trace)
	if a, err := s.Client.Do(req); err != nil || a.Body.Close() != nil || a.StatusCode != 200 {
		t.Fatalf("%+v, %v", a, err)
	}
	if allocs != 0 || !start.IsZero() || sub.Traceparent != trace {
		t.Errorf("%v allocations, %v, %q", allocs, start, sub.Traceparent)
	}
}
