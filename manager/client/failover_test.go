//go:build go1.25

package client

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestCallsGoOnWithTheNextManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		down := map[string]func(*http.Request) (*http.Response, error){}
		answer := roundTripper(func(r *http.Request) (*http.Response, error) {
			asked = append(asked, r.URL.Host)
			if trouble := down[r.URL.Host]; trouble != nil {
				return trouble(r)
			}
			return response(200, "application/json", `{"id":"x","state":"queued","jobs":[]}`), nil
		})
		refuse := func(*http.Request) (*http.Response, error) { return nil, errCut }
		hang := func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		stops := func(*http.Request) (*http.Response, error) {
			return response(503, "application/problem+json", `{"status":503,"code":"unavailable"}`), nil
		}
		full := func(*http.Request) (*http.Response, error) {
			return response(503, "application/problem+json", `{"status":503,"code":"ledger-full"}`), nil
		}
		c, err := New(Options{URL: "http://a", Failover: []string{"http://b/", "http://c"}, MaxAttempts: 4, HTTP: &http.Client{Transport: answer}})
		if err != nil {
			t.Fatal(err)
		}
		get := func(ctx context.Context) error {
			_, err := c.Get(ctx, "x")
			return err
		}
		check := func(what string, call func(context.Context) error, ok bool, took time.Duration, want ...string) {
			t.Helper()
			asked = nil
			began := time.Now()
			if err := call(t.Context()); (err == nil) != ok {
				t.Errorf("%s: %v", what, err)
			}
			if d := time.Since(began); d < took || d > took+time.Second || !slices.Equal(asked, want) {
				t.Errorf("%s: asked %v in %v, want %v in %v", what, asked, d, want, took)
			}
		}
		check("all are there", get, true, 0, "a")
		down["a"] = refuse
		check("the first is down", get, true, 0, "a", "b")
		check("the client stays", get, true, 0, "b")
		delete(down, "a")
		check("also when the first is back", get, true, 0, "b")
		down["b"], down["c"] = hang, stops
		check("the second hangs, the third stops", get, true, 15*time.Second, "b", "c", "a")
		down["a"] = full
		check("another store would not help", get, false, (50+100+200)/2*time.Millisecond, "a", "a", "a", "a")
		down["a"] = refuse
		check("all are down", get, false, 15*time.Second, "a", "b", "c", "a")
		delete(down, "c")
		delete(down, "b")
		c.at.Store(0)
		claim := func(ctx context.Context) error {
			_, err := c.Claim(ctx, ClaimRequest{Worker: "w"})
			return err
		}
		check("a claim is not repeated", claim, false, 0, "a")
		check("the next one is made elsewhere", claim, true, 0, "b")
		down["b"] = refuse
		again := func(ctx context.Context) error {
			_, err := c.Heartbeat(ctx, "x", "t", 0)
			return err
		}
		check("a heartbeat is not repeated", again, false, 0, "b")
		down["c"] = hang
		check("a caller that leaves moves nothing", func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Second, cancel)
			return get(ctx)
		}, false, time.Second, "c")
		if c.at.Load() != 2 {
			t.Errorf("moved to %d", c.at.Load())
		}
	})
}

func TestBadFailoverIsRefused(t *testing.T) {
	for _, o := range []Options{
		{URL: "http://a", Failover: []string{"b"}}, {URL: "http://a", Failover: []string{"unix:/x"}}, {URL: "unix:/x", Failover: []string{"http://a"}},
		{URL: "http://a", Failover: slices.Repeat([]string{"http://b"}, 16)},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}
