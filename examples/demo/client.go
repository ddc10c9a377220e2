package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// cut says where the client closes its connection.
type cut int

const (
	cutNot cut = iota
	// cutSending closes it after half of the body: no server has seen the whole request.
	cutSending
	// cutWaiting closes it a moment after the request was sent.
	cutWaiting
	// cutAnswer closes it when the answer begins to arrive: that answer is lost.
	cutAnswer
)

// Bounds of one attempt.
const (
	// attemptTimeout is far longer than all waits of gate, manager and payments: a client that gives up then has found
	// something that hangs.
	attemptTimeout = 45 * time.Second
	// longestCutWait is the longest time from sending to cutWaiting's close.
	longestCutWait = 150 * time.Millisecond
	maxAnswerBytes = 1 << 20
)

// attempt is one request of a client.
type attempt struct {
	url  string
	key  string
	body []byte

	delay time.Duration // how long the work takes
	drop  string        // x-demo-drop, or ""

	cut  cut
	wait time.Duration // before cutWaiting closes
}

// answer is what came back on an attempt that was not cut.
type answer struct {
	status     int
	replayed   bool
	retryAfter time.Duration
	body       []byte
}

// errCut is returned for an attempt that closed its connection as it was meant to.
var errCut = errors.New("connection cut")

// newHTTPClient returns a client that sends each request exactly once. On a pooled connection that the other side has
// closed, net/http would repeat a request with an Idempotency-Key by itself. Here every attempt must be counted, and
// cutting one must not disturb another, so each attempt has its own connection.
func newHTTPClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
}

// send makes the attempt. It returns errCut when the connection was cut, and the answer otherwise.
func (a attempt) send(ctx context.Context, client *http.Client) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()

	var body io.Reader = bytes.NewReader(a.body)
	switch a.cut {
	case cutSending:
		body = io.MultiReader(bytes.NewReader(a.body[:len(a.body)/2]), cutHere{cancel})
	case cutWaiting:
		timer := time.AfterFunc(a.wait, cancel)
		defer timer.Stop()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url, body)
	if err != nil {
		return answer{}, err
	}
	req.ContentLength = int64(len(a.body))
	req.GetBody = nil
	req.Header.Set("Idempotency-Key", a.key)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("x-demo-delay-ms", strconv.FormatInt(a.delay.Milliseconds(), 10))
	if a.drop != "" {
		req.Header.Set("x-demo-drop", a.drop)
	}

	resp, err := client.Do(req)
	if err != nil {
		return answer{}, a.failure(ctx, err)
	}
	defer resp.Body.Close()
	if a.cut == cutAnswer {
		return answer{}, errCut
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	if err != nil {
		return answer{}, a.failure(ctx, err)
	}
	got := answer{
		status:   resp.StatusCode,
		replayed: resp.Header.Get("Idempotent-Replayed") == "true",
		body:     b,
	}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		got.retryAfter = time.Duration(seconds) * time.Second
	}
	return got, nil
}

// failure distinguishes the intended cut from an error.
func (a attempt) failure(ctx context.Context, err error) error {
	if (a.cut == cutSending || a.cut == cutWaiting) && errors.Is(ctx.Err(), context.Canceled) {
		return errCut
	}
	return err
}

// cutHere is a body that ends here: reading it closes the connection.
type cutHere struct{ cancel context.CancelFunc }

func (c cutHere) Read([]byte) (int, error) {
	c.cancel()
	return 0, errCut
}

// longestPause bounds how long a client waits before its next attempt, whatever Retry-After says: the client is
// impatient.
const longestPause = time.Second

// submitter is one client that needs one answer.
type submitter struct {
	storm *storm
	rand  *rand.Rand
	kind  kind
	// duplicate: the work of its key has begun before its first attempt.
	duplicate bool
	attempt   attempt
}

// submit sends the request until it has its answer. It returns false when ctx ended first.
func (c *submitter) submit(ctx context.Context) bool {
	for try := 0; ; try++ {
		c.chooseTrouble(try)
		got, err := c.attempt.send(ctx, c.storm.client)
		if ctx.Err() != nil {
			return false
		}
		c.storm.tally.request(got, err)
		if err == nil && c.settles(got) {
			return true
		}
		pause := time.Duration(c.rand.Int64N(int64(200*time.Millisecond))) + min(got.retryAfter, longestPause)/2
		if !sleep(ctx, pause) {
			return false
		}
	}
}

// settles reports whether the client accepts the answer. An answer that it cannot explain is a fault.
func (c *submitter) settles(got answer) bool {
	tally := c.storm.tally
	switch got.status {
	case http.StatusCreated:
		tally.answered(c.attempt.key, got.body)
		return true
	case http.StatusConflict:
		// For these keys that is the true answer for a long time: the work began, and its outcome is unknown.
		return c.kind == dropAfter
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return false
	}
	tally.addFault("key %s: status %d, %.200q", c.attempt.key, got.status, got.body)
	return true
}

// chooseTrouble chooses what goes wrong with an attempt. It does so only on a client's first attempts, so that each
// client gets its answer.
//
// A client whose request may be the one that runs is never cut while it waits. The proxy would take the request back
// from the upstream, its outcome would be unknown, and the gate would rightly hold the key. The keys
// of dropAfter show that case.
func (c *submitter) chooseTrouble(try int) {
	a := &c.attempt
	a.drop, a.cut = "", cutNot
	switch {
	case try > 1:
	case c.duplicate:
		a.cut, a.wait = cutWaiting, time.Duration(c.rand.Int64N(int64(longestCutWait)))
	case try == 0 && c.kind != plain:
		// Every request that may be the first of its key asks for it, so whichever is first gets it.
		a.drop = c.kind.drop()
	case c.rand.IntN(100) < 20:
		a.cut = cutSending
	case c.rand.IntN(100) < 20:
		a.cut = cutAnswer
	}
}
