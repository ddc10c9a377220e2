package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

var errCut = errors.New("the connection is cut on purpose")

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func response(status int, contentType, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {contentType}}, Body: io.NopCloser(strings.NewReader(body))}
}

// nothing are handlers that do nothing.
var nothing = map[string]Handler{"f": func(context.Context, *Job) (any, error) { return nil, nil }}

func TestBadOptionsAreRefused(t *testing.T) {
	for _, o := range []Options{
		{}, {URL: "localhost:9000"}, {URL: "ftp://x"}, {URL: "http://"}, {URL: "http://a?b=c"}, {URL: "http://u:p@a"}, {URL: "http://a#b"}, {URL: ":"},
		{URL: "http://a", Timeout: -1}, {URL: "http://a", BackoffBase: -1}, {URL: "http://a", BackoffMax: -1}, {URL: "http://a", MaxAttempts: -1},
		{URL: "http://a", Token: "a\nb"}, {URL: "http://a", Token: strings.Repeat("t", maxToken+1)},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
	c, err := New(Options{URL: "https://manager.example:8443/prefix/"})
	if err != nil || c.bases[0] != "https://manager.example:8443/prefix" || c.Keys() == nil {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestBackoffKeepsToRetryAfter(t *testing.T) {
	c, err := New(Options{URL: "http://x", BackoffBase: 100 * time.Millisecond, BackoffMax: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for attempt, want := range map[int]time.Duration{1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 5: time.Second, 99: time.Second} {
		for range 50 {
			if d := c.backoff(attempt, errCut); d < want/2 || d > want {
				t.Fatalf("attempt %d: %v, want up to %v", attempt, d, want)
			}
		}
	}
	if d := c.backoff(1, &Error{RetryAfter: 24 * time.Hour}); d != time.Hour {
		t.Errorf("24 h are asked for: %v", d)
	}
	if d := c.backoff(1, &Error{RetryAfter: 7 * time.Second}); d != 7*time.Second {
		t.Errorf("asked to wait 7 s: %v", d)
	}
}

func TestBadWorkerOptionsAreRefused(t *testing.T) {
	c, err := New(Options{URL: "http://x"})
	if err != nil {
		t.Fatal(err)
	}
	ok := nothing
	many := map[string]Handler{}
	for i := range 101 {
		many[fmt.Sprint("f", i)] = ok["f"]
	}
	for _, o := range []WorkerOptions{
		{}, {Handlers: many}, {Handlers: map[string]Handler{"": ok["f"]}}, {Handlers: map[string]Handler{"f": nil}},
		{Handlers: map[string]Handler{"a b": ok["f"]}}, {Handlers: map[string]Handler{strings.Repeat("f", 129): ok["f"]}}, {Handlers: map[string]Handler{"..": ok["f"]}},
		{Handlers: ok, Name: "a b"}, {Handlers: ok, Name: strings.Repeat("n", 129)},
		{Handlers: ok, Concurrency: -1}, {Handlers: ok, Concurrency: 1001}, {Handlers: ok, Lease: time.Millisecond}, {Handlers: ok, Lease: 25 * time.Hour},
		{Handlers: ok, Wait: time.Hour}, {Handlers: ok, Wait: -1}, {Handlers: ok, StopTimeout: -1}, {Handlers: ok, StopGrace: -1},
	} {
		if _, err := c.NewWorker(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
	a, err1 := c.NewWorker(WorkerOptions{Handlers: ok})
	b, err2 := c.NewWorker(WorkerOptions{Handlers: ok})
	if err1 != nil || err2 != nil || a.Name() == b.Name() || len(a.Name()) > 128 || strings.ContainsAny(a.Name(), " \n") {
		t.Errorf("names %q and %q", a.Name(), b.Name())
	}
}
