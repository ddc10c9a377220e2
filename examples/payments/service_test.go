package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

func startService(t *testing.T) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(newService().handler())
	t.Cleanup(srv.Close)
	return srv
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

// pay sends a payment; headers are name, value, name, value.
func pay(t *testing.T, srv *httptest.Server, body string, headers ...string) (answer, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/payments", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	// Without it net/http cannot send a request again on its own account, as it otherwise does for those with a key.
	req.GetBody = nil
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := srv.Client().Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	return answer{resp.StatusCode, resp.Header, b}, nil
}

func mustPay(t *testing.T, srv *httptest.Server, body string, headers ...string) answer {
	t.Helper()
	a, err := pay(t, srv, body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func counts(t *testing.T, srv *httptest.Server, query ...string) executionCounts {
	t.Helper()
	resp, err := srv.Client().Get(srv.URL + "/executions" + strings.Join(query, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var c executionCounts
	if err := json.NewDecoder(resp.Body).Decode(&c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestPayExecutesEveryTime(t *testing.T) {
	srv := startService(t)
	for i := 1; i <= 3; i++ {
		key := "k1"
		if i == 3 {
			key = "k2"
		}
		a := mustPay(t, srv, `{"amount": 12.50, "currency": "EUR", "note": "ignored"}`, "Idempotency-Key", key)
		if a.status != http.StatusCreated {
			t.Fatalf("status %d, want 201: %s", a.status, a.body)
		}
		want := fmt.Sprintf(`{"execution":%d,"id":"pay_%d","amount":12.50,"currency":"EUR"}`, i, i)
		if string(a.body) != want {
			t.Errorf("answer %s, want %s", a.body, want)
		}
		if got := a.header.Get("Content-Type"); got != "application/json" {
			t.Errorf("content type %q, want application/json", got)
		}
	}
	mustPay(t, srv, `{}`)
	c := counts(t, srv)
	if c.Total != 4 || c.Keys["k1"] != 2 || c.Keys["k2"] != 1 || c.Keys[""] != 1 || len(c.Keys) != 3 || c.Untracked != 0 {
		t.Errorf("counts %+v, want 4 in all: k1 2, k2 1, without a key 1", c)
	}
	if c := counts(t, srv, "?key=k1"); c.Total != 4 || c.Keys["k1"] != 2 || len(c.Keys) != 1 {
		t.Errorf("counts of k1 are %+v, want 2 of 4", c)
	}
	if c := counts(t, srv, "?key=k3"); c.Total != 4 || c.Keys == nil || len(c.Keys) != 0 {
		t.Errorf("counts of a key never seen are %+v, want no keys", c)
	}
}

func TestPayRefusesWithoutExecuting(t *testing.T) {
	srv := startService(t)
	tests := []struct {
		name    string
		body    string
		headers []string
		status  int
		detail  string
	}{
		{"empty body", "", nil, 400, "not a JSON object"},
		{"not an object", "[1]", nil, 400, "not a JSON object"},
		{"text", "amount=3", nil, 400, "not a JSON object"},
		{"cut short", `{"amount": 1`, nil, 400, "not valid JSON"},
		{"two objects", `{} {}`, nil, 400, "not valid JSON"},
		{"too large", `{"note": "` + strings.Repeat("x", maxRequestBody) + `"}`, nil, 413, "larger than 1048576 bytes"},
		{"delay not a number", "{}", []string{"x-demo-delay-ms", "soon"}, 400, `header x-demo-delay-ms: "soon" is not a whole number from 0 to 60000`},
		{"negative delay", "{}", []string{"x-demo-delay-ms", "-1"}, 400, `"-1" is not a whole number from 0 to 60000`},
		{"delay too long", "{}", []string{"x-demo-delay-ms", "60001"}, 400, `"60001" is not`},
		{"status below", "{}", []string{"x-demo-status", "199"}, 400, `header x-demo-status: "199" is not a whole number from 200 to 599`},
		{"status above", "{}", []string{"x-demo-status", "600"}, 400, `"600" is not`},
		{"body too large", "{}", []string{"x-demo-body-bytes", "16777217"}, 400, `header x-demo-body-bytes: "16777217" is not a whole number from 0 to 16777216`},
		{"number that overflows", "{}", []string{"x-demo-body-bytes", "99999999999999999999"}, 400, "is not a whole number"},
		{"drop", "{}", []string{"x-demo-drop", "during"}, 400, `header x-demo-drop: "during" is not one of before, after`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := mustPay(t, srv, tt.body, append(tt.headers, "Idempotency-Key", "refused")...)
			var p problem
			if err := json.Unmarshal(a.body, &p); err != nil {
				t.Fatalf("%v in %s", err, a.body)
			}
			if a.status != tt.status || p.Status != tt.status {
				t.Errorf("status %d, in the problem %d, want %d", a.status, p.Status, tt.status)
			}
			if !strings.Contains(p.Detail, tt.detail) {
				t.Errorf("detail %q, want it to contain %q", p.Detail, tt.detail)
			}
			if got := a.header.Get("Content-Type"); got != "application/problem+json" {
				t.Errorf("content type %q, want application/problem+json", got)
			}
		})
	}
	if c := counts(t, srv); c.Total != 0 {
		t.Errorf("%d executions, want none", c.Total)
	}
}

func TestDemoStatusExecutes(t *testing.T) {
	srv := startService(t)
	for _, status := range []int{200, 204, 304, 422, 503, 599} {
		a := mustPay(t, srv, "{}", "x-demo-status", fmt.Sprint(status))
		if a.status != status {
			t.Errorf("status %d, want %d", a.status, status)
		}
		if empty := status == 204 || status == 304; empty != (len(a.body) == 0) {
			t.Errorf("status %d came with %d bytes of body", status, len(a.body))
		}
	}
	if c := counts(t, srv); c.Total != 6 {
		t.Errorf("%d executions, want 6", c.Total)
	}
}

func TestDemoBodyBytes(t *testing.T) {
	srv := startService(t)
	plain := len(mustPay(t, srv, "{}").body)
	for _, size := range []int{0, 1, plain, plain + 1, plain + 13, plain + 14, plain + 15, 1 << 20} {
		a := mustPay(t, srv, "{}", "x-demo-body-bytes", fmt.Sprint(size))
		if want := max(size, plain); len(a.body) != want {
			t.Errorf("asked for %d bytes: got %d, want %d", size, len(a.body), want)
		}
		var p payment
		if err := json.Unmarshal(a.body, &p); err != nil || p.Execution == 0 {
			t.Errorf("asked for %d bytes: %v in %.80s", size, err, a.body)
		}
	}
}

func TestDropsBeforeAndAfterTheWork(t *testing.T) {
	srv := startService(t)
	for drop, executed := range map[string]int64{"before": 0, "after": 1} {
		a, err := pay(t, srv, "{}", "x-demo-drop", drop, "Idempotency-Key", drop)
		if err == nil {
			t.Errorf("drop %s: got an answer: %d %s", drop, a.status, a.body)
		}
		if got := counts(t, srv).Keys[drop]; got != executed {
			t.Errorf("drop %s: %d executions, want %d", drop, got, executed)
		}
	}
}

func TestDelayedWorkCountsFromItsStart(t *testing.T) {
	srv := startService(t)
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/payments", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "left")
	req.Header.Set("x-demo-delay-ms", "60000")
	left := make(chan error, 1)
	go func() {
		resp, err := srv.Client().Do(req)
		if err == nil {
			resp.Body.Close()
		}
		left <- err
	}()
	for counts(t, srv).Keys["left"] == 0 {
	}
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller that left got %v", err)
	}
	// Closing the server waits for the handler, which must not continue for a minute after its caller left.
	srv.Close()
}

func TestDelayTakesItsTime(t *testing.T) {
	srv := startService(t)
	start := time.Now()
	mustPay(t, srv, "{}", "x-demo-delay-ms", "20")
	if took := time.Since(start); took < 20*time.Millisecond {
		t.Errorf("answered after %v, asked for a delay of 20ms", took)
	}
}

func TestConcurrentPaymentsAreNumberedOnce(t *testing.T) {
	srv := startService(t)
	const n = 64
	seen := make([]int64, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			a, err := pay(t, srv, "{}", "Idempotency-Key", fmt.Sprint(i%4))
			if err != nil {
				t.Error(err)
				return
			}
			var p payment
			if err := json.Unmarshal(a.body, &p); err != nil {
				t.Error(err)
				return
			}
			seen[i] = p.Execution
		})
	}
	wg.Wait()
	numbers := make(map[int64]bool)
	for _, e := range seen {
		if e < 1 || e > n || numbers[e] {
			t.Errorf("execution number %d is out of range or was given twice", e)
		}
		numbers[e] = true
	}
	c := counts(t, srv)
	if c.Total != n || len(c.Keys) != 4 || c.Keys["0"] != n/4 {
		t.Errorf("counts %+v, want %d over 4 keys alike", c, n)
	}
}

func TestCountedKeysAreBounded(t *testing.T) {
	e := newExecutions(2)
	long := strings.Repeat("k", maxKeyBytes+1)
	for _, key := range []string{"a", long, "b", "c", "a", long[1:]} {
		e.add(key)
	}
	c := e.counts()
	if c.Total != 6 || c.Untracked != 3 || c.Keys["a"] != 2 || c.Keys["b"] != 1 || len(c.Keys) != 2 {
		t.Errorf("counts %+v, want a 2, b 1, untracked 3", c)
	}
	if e := newExecutions(2); e.add(long[1:]) != 1 || e.counts().Keys[long[1:]] != 1 {
		t.Error("a key of the greatest length was not counted")
	}
}

func TestOtherRoutesAreRefused(t *testing.T) {
	srv := startService(t)
	for _, tt := range []struct {
		method, path string
		status       int
	}{
		{http.MethodGet, "/healthz", 200},
		{http.MethodGet, "/payments", 405},
		{http.MethodPost, "/payments/acme", 400}, // it wants a body
		{http.MethodPost, "/payments/acme/more", 404},
		{http.MethodPost, "/executions", 405},
		{http.MethodGet, "/", 404},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, srv.URL+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != tt.status {
			t.Errorf("%s %s: %d, want %d", tt.method, tt.path, resp.StatusCode, tt.status)
		}
	}
}
