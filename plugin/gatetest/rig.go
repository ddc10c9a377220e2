package gatetest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// patience is how long a test waits for something that must happen. Only a
// failing test waits that long.
const patience = 3 * time.Minute

// cluster is the manager's name in all configurations here.
const cluster = "oncegate_manager"

// Options of a rig; the zero value is the default of each.
type Options struct {
	// Config is the filter's configuration, "" for the defaults.
	Config string
	// Environment of the VMs.
	Environment map[string]string
	// Workers is the number of worker VMs, default 1.
	Workers int
	// BodyMode lets the host deliver bodies while headers are held.
	BodyMode bool
	// BufferLimit is the host's, default 1 MiB.
	BufferLimit int
	// Manager is shared with another rig; nil makes a new one.
	Manager *Manager
	// Clock is shared with another rig; nil makes a new one.
	Clock *hostsim.VirtualClock
	// IdleTimeout of the host's streams, default 5 min.
	IdleTimeout time.Duration
	// FailurePolicy after a trap.
	FailurePolicy hostsim.FailurePolicy
	// NoCluster leaves the manager's cluster out of the host.
	NoCluster bool
	// Clusters are further ones. The route of all requests leads to "route-cluster".
	Clusters map[string]hostsim.Cluster
	// Process is shared with another rig.
	Process *hostsim.Process
	// Hooks of the host.
	Hooks hostsim.Hooks
	// Recorder writes down what host and gate say to each other; Seed makes the gate's
	// randomness reproducible.
	Recorder *hostsim.Recorder
	Seed     uint64
	// Traps: the test makes VMs trap.
	Traps bool
	// MaxNestedReplies is the host's, default 304.
	MaxNestedReplies int
}

// complete adds to a configuration what it does not say: that callers share their keys, because most tests are about one
// caller, and a table of a tenth of the default's size, because the clock runs so fast that sweeps of a large one take most of a
// test's time. It leaves alone what is not a JSON object.
func complete(config string) string {
	fields := map[string]json.RawMessage{}
	if config != "" && json.Unmarshal([]byte(config), &fields) != nil {
		return config
	}
	for name, value := range map[string]string{"anonymous": `"shared"`, "max_entries": "10000"} {
		if fields[name] == nil {
			fields[name] = json.RawMessage(value)
		}
	}
	out, _ := json.Marshal(fields)
	return string(out)
}

// Rig is a host with the gate, a manager and a clock.
type Rig struct {
	testing.TB
	Host    *hostsim.Host
	Process *hostsim.Process
	Clock   *hostsim.VirtualClock
	Manager *Manager
	log     *lockedBuffer
}

// NewRig starts a rig. The test's end closes it.
func NewRig(t testing.TB, guest hostsim.Source, o Options) *Rig {
	t.Helper()
	r, err := start(t, guest, o)
	if err != nil {
		t.Fatalf("the plugin did not start: %v\n%s", err, r.log)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", r.log)
			t.Log(hostsimtest.Dump(r.Host))
		}
		if !o.Traps {
			r.NoTraps()
		}
		for _, v := range r.Host.Violations() {
			t.Errorf("%s, context %d: %s", v.Thread, v.Context, v.What)
		}
		if err := r.Close(); err != nil {
			t.Errorf("closing the host: %v", err)
		}
	})
	return r
}

// Close closes the host while the clock runs, because the plugin may still wait
// for calls.
func (r *Rig) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- r.Host.Close(ctx) }()
	for {
		select {
		case err := <-closed:
			return err
		default:
			r.Clock.Advance(100 * time.Millisecond)
		}
	}
}

func start(t testing.TB, guest hostsim.Source, o Options) (*Rig, error) {
	r := &Rig{TB: t, Clock: o.Clock, Manager: o.Manager, Process: o.Process, log: new(lockedBuffer)}
	o.Config = complete(o.Config)
	if r.Clock == nil {
		r.Clock = newClock()
	}
	if r.Manager == nil {
		r.Manager = NewManager(r.Clock)
	}
	if r.Process == nil {
		r.Process = hostsim.NewProcess()
	}
	clusters := map[string]hostsim.Cluster{cluster: r.Manager}
	if o.NoCluster {
		clusters = map[string]hostsim.Cluster{}
	}
	maps.Copy(clusters, o.Clusters)
	var err error
	r.Host, err = hostsim.Start(context.Background(), hostsim.Config{
		Guest: guest, PluginName: "oncegate", PluginConfig: []byte(o.Config), Environment: o.Environment, Workers: max(o.Workers, 1),
		AllowOnHeadersStopIteration: o.BodyMode, BufferLimit: o.BufferLimit, FailurePolicy: o.FailurePolicy,
		StreamIdleTimeout: o.IdleTimeout, MaxNestedReplies: o.MaxNestedReplies,
		Clock: r.Clock, Clusters: clusters, Process: r.Process, Hooks: o.Hooks, Recorder: o.Recorder, Seed: o.Seed,
		Logger: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	return r, err
}

func newClock() *hostsim.VirtualClock {
	return hostsim.NewVirtualClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
}

// NoTraps fails the test when a VM died.
func (r *Rig) NoTraps() {
	r.Helper()
	for _, trap := range r.Host.Traps() {
		r.Errorf("%s trapped in %s: %v", trap.Thread, trap.Callback, trap.Err)
	}
}

// Settle waits until the host has nothing to do before its clock moves.
func (r *Rig) Settle() { r.Clock.Advance(0) }

// Metric returns the value of a counter or gauge, the count of a histogram.
func (r *Rig) Metric(name string) int64 {
	m, _ := r.Process.Metric(name)
	return int64(m.Value)
}

// Exchange is one request under way, with the test as its client and upstream.
type Exchange struct {
	*hostsim.Stream
	rig      *Rig
	Upstream *Recorder // what upstream got
	Client   *Recorder // what the client got
}

// Request describes a request.
type Request struct {
	Method string // default POST
	Path   string // default /payments
	Host   string // default api.test
	Key    string // idempotency-key; "" leaves it out
	// Headers are added at the end; "name: value" each.
	Headers []string
	Body    string
	Worker  int
	// Protocol of the client's connection, default HTTP/1.1.
	Protocol string
	// Properties of the stream, in their serialized form.
	Properties map[string][]byte
	// NoRoute leaves out the route's properties.
	NoRoute bool
}

// Open starts a request without its body. end: there is none.
func (r *Rig) Open(q Request, end bool) *Exchange {
	r.Helper()
	x, h := r.prepare(q)
	x.RequestHeaders(h, end)
	return x
}

// prepare makes a request's stream and headers.
func (r *Rig) prepare(q Request) (*Exchange, hostsim.Headers) {
	r.Helper()
	x := &Exchange{rig: r, Upstream: newRecorder(), Client: newRecorder()}
	route := func(hostsim.Headers) hostsim.Route { return hostsim.Route{Name: "route", Cluster: "route-cluster"} }
	if q.NoRoute {
		route = nil
	}
	s, err := r.Host.NewStream(hostsim.StreamOptions{
		Worker: q.Worker, Downstream: x.Client, Upstream: x.Upstream,
		Connection: hostsim.ConnectionInfo{SourceAddress: "192.0.2.1:1234", Protocol: q.Protocol},
		Route:      route,
		Properties: q.Properties,
	})
	if err != nil {
		r.Fatalf("NewStream: %v", err)
	}
	x.Stream = s
	x.Client.early = func() bool { return !s.RequestComplete() }
	method, path, host := cmp.Or(q.Method, "POST"), cmp.Or(q.Path, "/payments"), cmp.Or(q.Host, "api.test")
	h := hostsim.H(":method", method, ":path", path, ":authority", host, ":scheme", "http")
	if q.Key != "" {
		h.Add("idempotency-key", q.Key)
	}
	for _, line := range q.Headers {
		name, value, _ := strings.Cut(line, ": ")
		h.Add(name, value)
	}
	return x, h
}

// Send starts a whole request that comes in one packet. Its body is JSON unless the first header is another content-type.
func (r *Rig) Send(q Request) *Exchange {
	r.Helper()
	if q.Body == "" {
		return r.Open(q, true)
	}
	if len(q.Headers) == 0 || !strings.HasPrefix(q.Headers[0], "content-type: ") {
		q.Headers = append([]string{"content-type: application/json"}, q.Headers...)
	}
	q.Headers = append([]string{q.Headers[0], "content-length: " + fmt.Sprint(len(q.Body))}, q.Headers[1:]...)
	x, h := r.prepare(q)
	x.Request(h, []byte(q.Body))
	return x
}

// Answer lets upstream answer with a whole response.
func (x *Exchange) Answer(status int, body string, headers ...string) {
	x.rig.Helper()
	x.Upstream.AwaitHeaders(x.rig)
	x.UpstreamSelected("192.0.2.9:80")
	h := hostsim.H(":status", fmt.Sprint(status), "content-length", fmt.Sprint(len(body)))
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		h.Add(name, value)
	}
	if body == "" {
		x.ResponseHeaders(h, true)
		return
	}
	x.ResponseHeaders(h, false)
	x.ResponseData([]byte(body), false)
	x.ResponseData(nil, true)
}

// Response is what a client got, whole.
type Response struct {
	Status  string
	Headers hostsim.Headers
	Body    string
	// Trailers are "name: value" each, joined by commas.
	Trailers string
}

// Header returns a header of the response.
func (p Response) Header(name string) string { return p.Headers.Get(name) }

// Response waits for the whole response.
func (x *Exchange) Response() Response {
	x.rig.Helper()
	x.Client.await(x.rig, "a whole response", func() bool { return x.Client.ended || x.Client.reset != "" })
	x.Client.mu.Lock()
	defer x.Client.mu.Unlock()
	if x.Client.reset != "" {
		x.rig.Fatalf("the response was reset: %s", x.Client.reset)
	}
	var trailers []string
	for _, h := range x.Client.trailers {
		trailers = append(trailers, h[0]+": "+h[1])
	}
	return Response{Status: x.Client.headers.Get(":status"), Headers: x.Client.headers, Body: x.Client.body.String(), Trailers: strings.Join(trailers, ", ")}
}

// Leave lets the client go away and waits until the stream is over.
func (x *Exchange) Leave() {
	x.rig.Helper()
	x.ClientReset()
	x.Over()
}

// Over waits for the end of the stream.
func (x *Exchange) Over() {
	x.rig.Helper()
	select {
	case <-x.Done():
	case <-time.After(patience):
		x.rig.Fatal("the stream does not end")
	}
}

// Recorder is a sink that remembers.
type Recorder struct {
	mu       sync.Mutex
	changed  chan struct{}
	headers  hostsim.Headers
	begun    bool
	body     bytes.Buffer
	trailers hostsim.Headers
	ended    bool
	reset    hostsim.ResetReason
	// early is asked when headers come: is the request still incomplete? wasEarly is its answer.
	early    func() bool
	wasEarly bool
}

func newRecorder() *Recorder { return &Recorder{changed: make(chan struct{})} }

func (c *Recorder) record(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

// Headers implements hostsim.Sink.
func (c *Recorder) Headers(h hostsim.Headers, end bool) {
	early := c.early != nil && c.early()
	c.record(func() { c.headers, c.begun, c.ended, c.wasEarly = h.Clone(), true, end, early })
}

// Data implements hostsim.Sink.
func (c *Recorder) Data(b []byte, end bool) {
	c.record(func() { c.body.Write(b); c.ended = c.ended || end })
}

// Trailers implements hostsim.Sink.
func (c *Recorder) Trailers(h hostsim.Headers) {
	c.record(func() { c.trailers, c.ended = h.Clone(), true })
}

// Reset implements hostsim.Sink.
func (c *Recorder) Reset(reason hostsim.ResetReason) { c.record(func() { c.reset = reason }) }

func (c *Recorder) await(t testing.TB, what string, ready func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		c.mu.Lock()
		ok, changed := ready(), c.changed
		c.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("timed out waiting for %s; so far: begun %v, ended %v, reset %q, %v %q",
				what, c.begun, c.ended, c.reset, c.headers, c.body.String())
		}
	}
}

// AwaitHeaders waits for headers and returns them.
func (c *Recorder) AwaitHeaders(t testing.TB) hostsim.Headers {
	t.Helper()
	c.await(t, "headers", func() bool { return c.begun })
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.headers
}

// AwaitEnd waits for the end of the message.
func (c *Recorder) AwaitEnd(t testing.TB) {
	t.Helper()
	c.await(t, "the end", func() bool { return c.ended })
}

// AwaitBody waits until at least n bytes of body have come.
func (c *Recorder) AwaitBody(t testing.TB, n int) {
	t.Helper()
	c.await(t, fmt.Sprint(n, " bytes of body"), func() bool { return c.body.Len() >= n })
}

// Early reports whether the answer began before the request's end. An HTTP/1 client then loses its connection, and the stream of an
// HTTP/2 client is reset.
func (c *Recorder) Early() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.wasEarly }

// Begun reports whether headers have come.
func (c *Recorder) Begun() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.begun }

// Ended reports whether the message is whole.
func (c *Recorder) Ended() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.ended }

// ResetBy returns why the message was cut; "": it was not.
func (c *Recorder) ResetBy() hostsim.ResetReason { c.mu.Lock(); defer c.mu.Unlock(); return c.reset }

// Body returns the body so far.
func (c *Recorder) Body() string { c.mu.Lock(); defer c.mu.Unlock(); return c.body.String() }

// Problem reads the code of a problem response.
func (p Response) Problem(t testing.TB) string {
	t.Helper()
	if p.Header("content-type") != "application/problem+json" {
		t.Fatalf("not a problem: %s %q", p.Status, p.Body)
	}
	var body struct {
		Code   string
		Type   string
		Title  string
		Status int
	}
	if err := json.Unmarshal([]byte(p.Body), &body); err != nil {
		t.Fatalf("problem %q: %v", p.Body, err)
	}
	if fmt.Sprint(body.Status) != p.Status || body.Title == "" || !strings.HasSuffix(body.Type, body.Code) {
		t.Fatalf("problem %q does not fit status %s", p.Body, p.Status)
	}
	if got := p.Header("idempotency-status"); got != body.Code {
		t.Fatalf("idempotency-status %q does not fit the problem %q", got, p.Body)
	}
	return body.Code
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
