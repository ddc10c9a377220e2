package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Options configure a Client. The zero value of a field means its default.
type Options struct {
	// URL of the manager, or of the gate in front of it, for example
	// http://127.0.0.1:8090, or unix:PATH for its Unix socket. Required.
	URL string
	// Failover has the URLs of further managers that share the store with the first, at most 15; none with unix:. A call
	// that does not reach a manager tries the next, without a pause until all were tried. The client then stays
	// there until that one is unreachable: it has no preferred manager.
	//
	// A manager is unreachable when there is no HTTP answer within Timeout and the call's wait (5 s for a connection with
	// the default HTTP), when a proxy answers 5xx instead, and when it answers with the code unavailable. Calls that
	// are not repeated (Claim, Heartbeat, and what retries or replays jobs in package admin) return the error, and the next
	// call goes to the next manager. All others may be repeated with any manager: they read, they carry a key, a token or a
	// message id, or they set a state.
	Failover []string
	// Token is sent as a bearer token when set.
	Token string
	// HTTP makes the requests; the default is a client with its own transport that keeps up to 256 connections. It must
	// not have a timeout shorter than the calls' waits. Redirects that turn a POST into a GET (301, 302, 303) are not
	// followed, whatever its CheckRedirect says. It must be nil with unix:.
	HTTP *http.Client
	// Keys makes idempotency keys. The default uses a random client id, which is sufficient unless the program wants to
	// recognize its submissions by it.
	Keys *Keys
	// Timeout bounds how long one attempt of a call waits for its answer, in addition to the call's wait, and then for each
	// further part of the answer. Default 15 s.
	Timeout time.Duration
	// BackoffBase and BackoffMax set the pauses between attempts: the base doubled with each attempt, at most the
	// maximum; half of it is random. A longer Retry-After of the manager takes precedence. Defaults 50 ms and 5 s.
	BackoffBase, BackoffMax time.Duration
	// MaxRetryAfter bounds the Retry-After that a call waits for. A call that would have to wait longer returns the error
	// instead. Default: only the call's context bounds it.
	MaxRetryAfter time.Duration
	// MaxAttempts bounds the attempts of one call. By default only the call's context does.
	MaxAttempts int
}

// Client calls a manager. It is safe for concurrent use.
type Client struct {
	opts  Options
	bases []string
	at    *atomic.Int64 // the index of the manager in use
}

// New checks the options. It does not connect.
func New(o Options) (*Client, error) {
	dial, proxy := (&net.Dialer{Timeout: 5 * time.Second}).DialContext, http.ProxyFromEnvironment
	if path, ok := strings.CutPrefix(o.URL, "unix:"); ok {
		if path == "" || o.HTTP != nil {
			return nil, fmt.Errorf("client: URL %q: must be unix: and the path of a socket, without an HTTP client", o.URL)
		}
		tcp := dial
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return tcp(ctx, "unix", path) }
		proxy, o.URL = nil, "http://localhost"
	}
	if len(o.Failover) > 15 || len(o.Failover) > 0 && proxy == nil {
		return nil, fmt.Errorf("client: Failover of %d URLs: must be at most 15, and none beside a unix: URL", len(o.Failover))
	}
	var bases []string
	for _, base := range append([]string{o.URL}, o.Failover...) {
		u, err := url.Parse(base)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
			return nil, fmt.Errorf("client: URL %q: must be http:// or https:// with a host, for example http://127.0.0.1:8090, or unix:PATH", base)
		}
		bases = append(bases, strings.TrimRight(base, "/"))
	}
	for _, d := range []struct {
		name string
		d    *time.Duration
		def  time.Duration
	}{{"Timeout", &o.Timeout, 15 * time.Second}, {"BackoffBase", &o.BackoffBase, 50 * time.Millisecond}, {"BackoffMax", &o.BackoffMax, 5 * time.Second}} {
		if *d.d < 0 {
			return nil, fmt.Errorf("client: %s %v: must not be negative", d.name, *d.d)
		}
		if *d.d == 0 {
			*d.d = d.def
		}
	}
	if o.Token != "" && !api.Visible(o.Token, 1, maxToken) {
		return nil, fmt.Errorf("client: Token: must be up to %d visible ASCII characters", maxToken)
	}
	if o.MaxAttempts < 0 {
		return nil, fmt.Errorf("client: MaxAttempts %d: must not be negative", o.MaxAttempts)
	}
	if o.Keys == nil {
		var err error
		if o.Keys, err = NewKeys("client-" + strconv.FormatUint(rand.Uint64(), 16)); err != nil {
			return nil, err
		}
	}
	if o.HTTP == nil {
		o.HTTP = &http.Client{Transport: &http.Transport{
			Proxy:                 proxy,
			DialContext:           dial,
			TLSHandshakeTimeout:   5 * time.Second,
			MaxIdleConns:          256,
			MaxIdleConnsPerHost:   256,
			IdleConnTimeout:       90 * time.Second,
			ExpectContinueTimeout: time.Second,
		}}
	}
	o.HTTP = keepMethod(o.HTTP)
	return &Client{opts: o, bases: bases, at: new(atomic.Int64)}, nil
}

// keepMethod returns a copy of the HTTP client that does not follow redirects to another method. A redirected
// submission would become a GET that lists jobs, and nothing would be submitted.
func keepMethod(h *http.Client) *http.Client {
	copied := *h
	follow := h.CheckRedirect
	copied.CheckRedirect = func(r *http.Request, via []*http.Request) error {
		switch {
		case r.Method != via[0].Method:
			return http.ErrUseLastResponse
		case follow != nil:
			return follow(r, via)
		case len(via) >= 10:
			return errors.New("stopped after 10 redirects")
		}
		return nil
	}
	return &copied
}

func init() {
	wire.Do = func(ctx context.Context, c any, call wire.Call, out any) (bool, error) {
		return c.(*Client).do(ctx, call, out)
	}
}

// Keys returns the generator of the client's idempotency keys.
func (c *Client) Keys() *Keys { return c.opts.Keys }

// maxToken is the manager's bound.
const maxToken = 4096

// maxAnswer bounds an answer: a full claim or page, with its frame.
const maxAnswer = 32 << 20

// do repeats the call until it has a final answer, and decodes a success into out. It does not repeat a call with Once.
func (c *Client) do(ctx context.Context, call wire.Call, out any) (replayed bool, err error) {
	var body []byte
	if ready, ok := call.Body.(wire.Encoded); ok {
		body = ready
	} else if call.Body != nil {
		if body, err = json.Marshal(call.Body); err != nil {
			return false, fmt.Errorf("client: %s %s: %w", call.Method, call.Path, err)
		}
	}
	// A key that can never be sent must not be tried repeatedly.
	if _, wrong := api.HeaderKey(call.Key); call.Key != "" && wrong != "" {
		return false, fmt.Errorf("client: idempotency key %.64q: %s", call.Key, wrong)
	}
	for attempt := 1; ; attempt++ {
		i := c.at.Load()
		replayed, err := c.attempt(ctx, c.bases[i], &call, body, out)
		moved := err != nil && c.moveOn(ctx, &call, i, err)
		if err == nil || call.Once || !temporary(err) || attempt == c.opts.MaxAttempts || !moved && c.tooLate(err) {
			return replayed, err
		}
		rest := time.Duration(0)
		if !moved {
			rest = c.backoff(attempt, err)
		} else if attempt%len(c.bases) == 0 {
			rest = c.backoff(attempt/len(c.bases), err)
		}
		if pause(ctx, rest) == nil {
			continue
		}
		// The manager's last answer says more than the end of the context.
		if !errors.Is(err, ctx.Err()) {
			err = fmt.Errorf("%w (%w)", err, ctx.Err())
		}
		return false, err
	}
}

// tooLate reports whether the manager asks for a longer wait than a call may take.
func (c *Client) tooLate(err error) bool {
	var e *Error
	return c.opts.MaxRetryAfter > 0 && errors.As(err, &e) && e.RetryAfter > c.opts.MaxRetryAfter
}

// backoff is the pause after the given attempt (1 for the first) failed.
func (c *Client) backoff(attempt int, err error) time.Duration {
	d := c.opts.BackoffMax
	if attempt < 32 && c.opts.BackoffBase < c.opts.BackoffMax>>(attempt-1) {
		d = c.opts.BackoffBase << (attempt - 1)
	}
	d = d/2 + rand.N(d/2+1)
	var e *Error
	if errors.As(err, &e) {
		d = max(d, min(e.RetryAfter, longestPause))
	}
	return d
}

// longestPause bounds the pause that a Retry-After causes. A manager may be ready sooner than it says, for example after an
// operator has ended a quarantine.
const longestPause = time.Hour

// temporary reports whether another attempt makes sense: the manager said so, or there was no answer.
func temporary(err error) bool {
	var e *Error
	if errors.As(err, &e) {
		return e.Temporary()
	}
	var bad *wire.BadAnswer
	return !errors.As(err, &bad)
}

func (c *Client) attempt(ctx context.Context, base string, call *wire.Call, body []byte, out any) (replayed bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := time.AfterFunc(c.opts.Timeout+call.Wait, func() { cancel(context.DeadlineExceeded) })
	defer patience.Stop()
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, call.Method, base+call.Path, reader)
	if err != nil {
		return false, &wire.BadAnswer{Err: err}
	}
	if call.Body != nil {
		req.Header.Set("Content-Type", api.ContentTypeJSON)
	}
	if call.Key != "" {
		req.Header.Set(api.HeaderIdempotencyKey, call.Key)
	}
	if call.Trace != "" {
		req.Header.Set("Traceparent", call.Trace)
	}
	if c.opts.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.opts.Token)
	}
	resp, err := c.opts.HTTP.Do(req)
	if err != nil {
		return false, late(ctx, call, err)
	}
	defer resp.Body.Close()
	b, err := readAnswer(resp, func() { patience.Reset(c.opts.Timeout) })
	if err != nil {
		return false, late(ctx, call, err)
	}
	if len(b) > maxAnswer {
		return false, &wire.BadAnswer{Err: fmt.Errorf("client: %s %s: answer of more than %d bytes", call.Method, call.Path, maxAnswer)}
	}
	replayed = resp.Header.Get(api.HeaderReplayed) == "true"
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return replayed, readError(resp, b, replayed)
	}
	if raw, ok := out.(*[]byte); ok {
		*raw = b
		return replayed, nil
	}
	if out == nil {
		return replayed, nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return replayed, &wire.BadAnswer{Err: fmt.Errorf("client: %s %s: status %d with an answer that is not of a manager: %w", call.Method, call.Path, resp.StatusCode, err)}
	}
	return replayed, nil
}

// late says of the error of an attempt that it ended for want of time.
func late(ctx context.Context, call *wire.Call, err error) error {
	if cause := context.Cause(ctx); errors.Is(err, context.Canceled) && errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Errorf("client: %s %s: no answer: %w", call.Method, call.Path, cause)
	}
	return err
}

// readAnswer reads at most one byte more than maxAnswer. It calls came whenever a part has come.
func readAnswer(resp *http.Response, came func()) ([]byte, error) {
	var b bytes.Buffer
	// An announcement may be too large, and costs its sender nothing. ReadFrom keeps room for the end.
	b.Grow(int(max(0, min(resp.ContentLength, 64<<10))) + bytes.MinRead)
	_, err := b.ReadFrom(io.LimitReader(&progress{resp.Body, came}, maxAnswer+1))
	return b.Bytes(), err
}

// progress calls came after each read of something.
type progress struct {
	io.Reader
	came func()
}

func (p *progress) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	if n > 0 {
		p.came()
	}
	return n, err
}

func readError(resp *http.Response, body []byte, replayed bool) error {
	e := &Error{Status: resp.StatusCode, Replayed: replayed}
	if s, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 31); err == nil {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	var p api.Problem
	if strings.HasPrefix(resp.Header.Get("Content-Type"), api.ContentTypeProblem) && json.Unmarshal(body, &p) == nil {
		e.Code, e.Detail = p.Code, problemError(&p).Detail
		return e
	}
	if to := resp.Header.Get("Location"); to != "" && resp.StatusCode/100 == 3 {
		e.Detail = "redirected to " + strconv.Quote(to) + "; the client's URL must lead to the manager itself"
		return e
	}
	if len(body) > 200 {
		body = body[:200]
	}
	e.Detail = strconv.Quote(string(body))
	return e
}

func problemError(p *api.Problem) *Error {
	return &Error{Status: p.Status, Code: p.Code, Detail: cmp.Or(p.Detail, p.Title)}
}
