package gatebench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
)

// patience bounds every wait; only a failing test uses it up.
const patience = 2 * time.Minute

// The modules, below the top of the checkout; make builds them.
const (
	gateModule     = "build/oncegate.wasm"
	noopModule     = "build/bench/noop.wasm"
	memstatsModule = "build/bench/memstats.wasm"
)

var (
	modulesMu sync.Mutex
	modules   = map[string]hostsim.Source{}
)

// module returns a module as a guest; each is compiled once.
func module(tb testing.TB, file string) hostsim.Source {
	tb.Helper()
	modulesMu.Lock()
	defer modulesMu.Unlock()
	if s := modules[file]; s != nil {
		return s
	}
	code, err := os.ReadFile(filepath.Join("..", "..", file))
	if err != nil {
		tb.Fatalf("%v (run: make %s)", err, file)
	}
	s := hostsim.Wasm(code)
	modules[file] = s
	return s
}

// nothing is a native guest without callbacks: the host by itself.
func nothing() hostsim.Source {
	return hostsim.Native(func(hostsim.HostCalls) hostsim.Guest { return &hostsim.DefaultGuest{} })
}

// body is the recorded answer's body of all benchmarks.
var body = bytes.Repeat([]byte("0123456789abcdef"), 16) // 256 bytes

// rig is a host, its ledger, and an upstream that answers at once.
type rig struct {
	tb     testing.TB
	host   *hostsim.Host
	ledger *ledger

	reached atomic.Int64 // requests that upstream got
	replays atomic.Int64 // answers with Idempotent-Replayed
	odd     atomic.Int64 // answers that are not the expected one
}

// start starts a host; what is left out of cfg is filled in.
func start(tb testing.TB, cfg hostsim.Config) *rig {
	tb.Helper()
	r := &rig{tb: tb, ledger: newLedger()}
	cfg.Clusters = map[string]hostsim.Cluster{"oncegate_manager": r.ledger, "upstream": upstream{r}}
	cfg.AllowOnHeadersStopIteration = true
	complaints := new(lines)
	cfg.Logger = slog.New(slog.NewTextHandler(complaints, &slog.HandlerOptions{Level: slog.LevelWarn}))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	if r.host, err = hostsim.Start(ctx, cfg); err != nil {
		tb.Fatalf("the filter does not start: %v\n%s", err, complaints)
	}
	tb.Cleanup(func() {
		for _, t := range r.host.Traps() {
			tb.Errorf("%s trapped in %s: %v", t.Thread, t.Callback, t.Err)
		}
		for _, v := range r.host.Violations() {
			tb.Errorf("violation on %s, context %d: %s", v.Thread, v.Context, v.What)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := r.host.Close(ctx); err != nil {
			tb.Errorf("closing the host: %v", err)
		}
		if tb.Failed() {
			tb.Logf("log:\n%s", complaints)
		}
	})
	return r
}

// request is what a client sends.
type request struct {
	key  string // "": none
	body []byte
	// status and answer are what upstream says, 201 and body when zero.
	status int
	answer []byte
	// leave: the client goes away as soon as upstream has the request.
	leave bool
}

// upstreamHeaders are those of upstream's answers.
func upstreamHeaders(status string, size int) hostsim.Headers {
	return hostsim.Headers{
		{":status", status}, {"content-type", "application/json"}, {"content-length", fmt.Sprint(size)},
		{"date", "Fri, 02 Jan 2026 03:04:05 GMT"}, {"location", "/v1/payments/pay_1"}, {"cache-control", "no-store"},
		{"server", "payments"}, {"x-ratelimit-remaining", "99"},
	}
}

// upstream answers the upstream calls that the gate makes itself.
type upstream struct{ rig *rig }

// Call implements hostsim.Cluster.
func (u upstream) Call(_ context.Context, _ hostsim.CallRequest, done func(hostsim.CallResponse)) error {
	u.rig.reached.Add(1)
	headers := append(upstreamHeaders("201", len(body)), hostsim.Header{"oncegate-answer", "via_upstream - 1 192.0.2.9:8080"})
	done(hostsim.CallResponse{Headers: headers, Body: bytes.Clone(body)})
	return nil
}

// exchange is one request on its way: the client and upstream of one stream.
type exchange struct {
	rig    *rig
	q      request
	stream *hostsim.Stream
	client client
	reset  bool
}

// headers are those of an ordinary API client.
func (q *request) headers() hostsim.Headers {
	h := hostsim.Headers{
		{":method", "POST"}, {":path", "/v1/payments"}, {":authority", "api.example.com"}, {":scheme", "https"},
		{"user-agent", "payments-client/4.2 (linux; amd64)"}, {"accept", "application/json"},
		{"accept-encoding", "gzip"}, {"content-type", "application/json"},
		{"content-length", fmt.Sprint(len(q.body))},
		{"authorization", "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJjbGllbnQtNyJ9.c2lnbmF0dXJl"},
		{"x-request-id", "5f0c1a9e-7b1d-4a53-9d0e-0a2a6f6b1c11"},
		{"traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
	}
	if q.key != "" {
		h = append(h, hostsim.Header{"idempotency-key", q.key})
	}
	return h
}

// send starts a request.
func (r *rig) send(worker int, q request) (*exchange, error) {
	x := &exchange{rig: r, q: q}
	x.client.x = x
	s, err := r.host.NewStream(hostsim.StreamOptions{Worker: worker, Downstream: &x.client, Upstream: x})
	if err != nil {
		return nil, err
	}
	x.stream = s
	if len(q.body) == 0 {
		s.RequestHeaders(q.headers(), true)
	} else {
		// In one piece, as Envoy's codec finds a small request: a replay whose body is still on its way waits for a tick.
		s.Request(q.headers(), bytes.Clone(q.body))
	}
	return x, nil
}

// window is how many streams a flow has under way at once: enough that the worker
// never waits for the clients, as on a busy proxy.
const window = 64

// flow sends n requests to a worker and waits for their ends, window by window.
func (r *rig) flow(n, worker int, next func(i int) request) error {
	xs := make([]*exchange, 0, min(n, window))
	for i := 0; i < n; {
		xs = xs[:0]
		for ; i < n && len(xs) < window; i++ {
			x, err := r.send(worker, next(i))
			if err != nil {
				return err
			}
			xs = append(xs, x)
		}
		if err := over(xs); err != nil {
			return err
		}
	}
	return nil
}

// over waits for the ends of streams.
func over(xs []*exchange) error {
	late := time.NewTimer(patience)
	defer late.Stop()
	for _, x := range xs {
		select {
		case <-x.stream.Done():
		case <-late.C:
			return errors.New("a stream does not end")
		}
	}
	return nil
}

// must fails the benchmark on an error of flow or over.
func (r *rig) must(err error) {
	if err != nil {
		r.tb.Helper()
		r.tb.Fatal(err)
	}
}

// Headers implements hostsim.Sink for upstream.
func (x *exchange) Headers(_ hostsim.Headers, end bool) {
	if end {
		x.respond()
	}
}

// Data implements hostsim.Sink for upstream.
func (x *exchange) Data(_ []byte, end bool) {
	if end {
		x.respond()
	}
}

// Trailers implements hostsim.Sink for upstream.
func (x *exchange) Trailers(hostsim.Headers) { x.respond() }

// Reset implements hostsim.Sink for upstream.
func (*exchange) Reset(hostsim.ResetReason) {}

func (x *exchange) respond() {
	x.rig.reached.Add(1)
	if x.q.leave {
		x.stream.ClientReset()
		return
	}
	status, answer := "201", body
	if x.q.status != 0 {
		status = fmt.Sprint(x.q.status)
	}
	if x.q.answer != nil {
		answer = x.q.answer
	}
	x.stream.UpstreamSelected("192.0.2.9:8080")
	x.stream.ResponseHeaders(upstreamHeaders(status, len(answer)), false)
	x.stream.ResponseData(bytes.Clone(answer), false)
	x.stream.ResponseData(nil, true)
}

// client is the downstream sink.
type client struct {
	x        *exchange
	status   string
	outcome  string // Idempotency-Status
	replayed bool
	size     int
}

// Headers implements hostsim.Sink.
func (c *client) Headers(h hostsim.Headers, end bool) {
	c.status, c.outcome = h.Get(":status"), h.Get("idempotency-status")
	c.replayed = h.Get("idempotent-replayed") == "true"
	if end {
		c.end()
	}
}

// Data implements hostsim.Sink.
func (c *client) Data(b []byte, end bool) {
	c.size += len(b)
	if end {
		c.end()
	}
}

// Trailers implements hostsim.Sink.
func (c *client) Trailers(hostsim.Headers) { c.end() }

// Reset implements hostsim.Sink.
func (c *client) Reset(hostsim.ResetReason) { c.x.reset = true }

func (c *client) end() {
	if c.replayed {
		c.x.rig.replays.Add(1)
	}
	if c.status != "201" || c.size != len(body) {
		c.x.rig.odd.Add(1)
	}
}

// lines is a log of bounded size that several goroutines write.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.b.Len() < 64<<10 {
		l.b.Write(p)
	}
	return len(p), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
