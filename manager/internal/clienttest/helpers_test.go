package clienttest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/journal"
	"github.com/oncegate/oncegate/manager/internal/openapi/openapitest"
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/server"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/managertest/ports"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what must happen.
const patience = 3 * time.Minute

// manager is a real manager in this process.
type manager struct {
	t         *testing.T
	addr      string
	store     *mem.Store
	queue     *jobs.Queue
	ledger    *ledger.Ledger
	journal   *journal.Journal
	schedules *schedules.Schedules
	server    *server.Server
	served    chan error
	frozen    atomic.Pointer[time.Time] // where the store's clock stands still, if it does
}

func startManager(t *testing.T) *manager {
	t.Helper()
	m := &manager{t: t}
	m.store = mem.New(mem.Options{Clock: func() time.Time {
		if at := m.frozen.Load(); at != nil {
			return *at
		}
		return time.Now()
	}})
	var err error
	m.journal = journal.New(journal.DefaultKeys)
	if m.ledger, err = ledger.New(m.store, ledger.Options{Observer: m.journal}); err != nil {
		t.Fatal(err)
	}
	if m.queue, err = jobs.New(m.store, jobs.Options{BackoffBase: time.Millisecond, BackoffMax: 2 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if m.schedules, err = schedules.New(m.store, m.queue, schedules.Options{}); err != nil {
		t.Fatal(err)
	}
	port, err := ports.Hold()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(port.Release)
	m.addr = port.Address
	m.listen()
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		m.queue.Run(ctx, nil)
	}()
	t.Cleanup(func() {
		cancel()
		<-ran
		m.stop()
		m.queue.Close()
		_ = m.store.Close()
	})
	return m
}

// listen serves the manager's API, again after stop.
func (m *manager) listen() {
	m.t.Helper()
	ln, err := net.Listen("tcp", m.addr)
	if err != nil {
		m.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	if m.server, err = server.New(server.Options{Options: httpd.Options{Version: "test", Logger: log, MaxBodyBytes: 4 << 20}}, server.LedgerRoutes(m.ledger, m.journal, nil, home.Reach{}), server.JobRoutes(m.ledger, m.queue), server.ScheduleRoutes(m.ledger, m.queue, m.schedules)); err != nil {
		m.t.Fatal(err)
	}
	m.server.SetReady("")
	m.served = make(chan error, 1)
	go func() { m.served <- m.server.Serve(ln, nil) }()
}

// stop closes the API at once, as a crash does; the state stays.
func (m *manager) stop() {
	m.t.Helper()
	if m.server == nil {
		return
	}
	m.server.Abort()
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_ = m.server.Shutdown(ctx)
	<-m.served
	m.server = nil
}

// client makes a client of the manager whose requests go through the faults.
func (m *manager) client(f *faults) *client.Client { return m.clientWith(f, client.Options{}) }

// clientWith makes one with options of its own.
func (m *manager) clientWith(f *faults, o client.Options) *client.Client {
	m.t.Helper()
	if f == nil {
		f = &faults{}
	}
	transport := &http.Transport{}
	m.t.Cleanup(transport.CloseIdleConnections)
	f.next = &openapitest.Transport{Next: transport, Report: func(err error) { m.t.Error(err) }}
	o.URL, o.HTTP = "http://"+m.addr, &http.Client{Transport: f}
	if o.BackoffBase == 0 {
		o.BackoffBase, o.BackoffMax = time.Millisecond, 10*time.Millisecond
	}
	c, err := client.New(o)
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

// shortLease is the shortest that a worker takes. It beats every 33 ms. A test with it freezes the manager's clock, so that
// no busy machine ends a lease.
const shortLease = 100 * time.Millisecond

func (m *manager) freeze(at time.Time) { m.frozen.Store(&at) }

// work runs a worker until the returned function stops it, or the test ends.
func (m *manager) work(c *client.Client, o client.WorkerOptions) (stop func() error) {
	m.t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if o.Wait == 0 {
		o.Wait = time.Minute
	}
	w, err := c.NewWorker(o)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- w.Run(ctx) }()
	var once sync.Once
	var ran error
	stop = func() error {
		once.Do(func() {
			cancel()
			ran = <-result
		})
		return ran
	}
	m.t.Cleanup(func() { _ = stop() })
	return stop
}

// over waits for a job's end.
func (m *manager) over(id string) jobs.Job {
	m.t.Helper()
	var j jobs.Job
	m.eventually("job "+id+" is over", func() bool {
		var err error
		j, err = m.queue.Wait(m.t.Context(), id, time.Second)
		return err == nil && j.State.Terminal()
	})
	return j
}

func (m *manager) eventually(what string, cond func() bool) {
	m.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			m.t.Fatalf("never: %s", what)
		}
	}
}

// all returns all jobs.
func (m *manager) all() []jobs.Job {
	m.t.Helper()
	page, err := m.queue.List(context.Background(), jobs.ListQuery{Limit: jobs.MaxLimit})
	if err != nil {
		m.t.Fatal(err)
	}
	return page.Jobs
}

var errCut = errors.New("the connection is cut on purpose")

// faults is a transport that makes trouble.
type faults struct {
	next http.RoundTripper
	mu   sync.Mutex
	// before and after, by path suffix, count the requests that are cut before
	// they reach the manager, and those whose answers are lost.
	before, after map[string]int
	// answer, when set, may answer instead of the manager.
	answer func(*http.Request) *http.Response
	seen   []*http.Request
}

func (f *faults) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	f.seen = append(f.seen, r)
	cutBefore := take(f.before, r.URL.Path)
	cutAfter := !cutBefore && take(f.after, r.URL.Path)
	answer := f.answer
	f.mu.Unlock()
	if cutBefore {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, errCut
	}
	if answer != nil {
		if resp := answer(r); resp != nil {
			if r.Body != nil {
				_ = r.Body.Close()
			}
			return resp, nil
		}
	}
	resp, err := f.next.RoundTrip(r)
	if err == nil && cutAfter {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return nil, errCut
	}
	return resp, err
}

func take(m map[string]int, path string) bool {
	for suffix, n := range m {
		if n > 0 && len(path) >= len(suffix) && path[len(path)-len(suffix):] == suffix {
			m[suffix]--
			return true
		}
	}
	return false
}

func (f *faults) set(before, after map[string]int) {
	f.mu.Lock()
	f.before, f.after = before, after
	f.mu.Unlock()
}

// requests returns the requests to a path so far.
func (f *faults) requests(path string) (out []*http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.seen {
		if r.URL.Path == path {
			out = append(out, r)
		}
	}
	return out
}

func response(status int, contentType, body string, header ...string) *http.Response {
	h := http.Header{"Content-Type": {contentType}}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(bytes.NewReader([]byte(body)))}
}
