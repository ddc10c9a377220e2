package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/oncegate/oncegate/manager/managertest/deep"
	"github.com/oncegate/oncegate/manager/managertest/ports"
)

// stack is a manager, the payments upstream and any number of proxies before it.
type stack struct {
	dir         string
	target      envoyTarget
	mode        string
	plugin      map[string]any
	workers     int      // of each proxy; 0: 2
	module      string   // file of the gate; "": the one that ships
	settings    []string // of the manager, besides those of all tests
	environment []string // NAME=VALUE, of the manager
	manager     *process
	payments    *process
	proxies     []*proxy
	started     []*process // managers and upstreams, in order

	edit      func(*hcmv3.HttpConnectionManager) error
	bootstrap func(*bootstrapv3.Bootstrap) error

	held []*ports.Port // of the programs, which get them again when they are started again

	managerAddr, paymentsAddr string
	managers                  map[string]string // targetConfig's
}

// newStack starts manager and payments, and one proxy. Processes that run at the end of the
// test are stopped then and must exit without an error.
func newStack(t *testing.T, target envoyTarget, mode string, plugin map[string]any) *stack {
	t.Helper()
	s := &stack{dir: t.TempDir(), target: target, mode: mode, plugin: plugin}
	s.stopAtEnd(t)
	s.startManager(t)
	s.startPayments(t)
	s.startProxy(t)
	return s
}

// stopAtEnd stops all running processes at the end of the test. They must exit without an error.
func (s *stack) stopAtEnd(t *testing.T) {
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, p := range s.proxies {
				t.Logf("log of %s:\n%s", p.name, p.tail(60))
			}
			for _, p := range s.started {
				t.Logf("log of %s:\n%s", p.name, p.tail(60))
			}
		}
	})
}

// stop ends all processes, beginning on the clients' side. So a proxy can still deliver its
// outcomes to the manager.
func (s *stack) stop() error {
	proxies := make([]*process, len(s.proxies))
	for i, p := range s.proxies {
		proxies[i] = p.process
	}
	defer func() {
		for _, p := range s.held {
			p.Release()
		}
		s.held = nil
	}()
	return errors.Join(stopAll(proxies), stopAll(s.started))
}

// stopAll stops processes at the same time.
func stopAll(list []*process) error {
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, p := range list {
		wg.Go(func() { errs[i] = p.stop() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// startManager starts the manager; again on the same address and data after an earlier one.
func (s *stack) startManager(t *testing.T) {
	t.Helper()
	args := append([]string{"serve", "--data-dir", filepath.Join(s.dir, "data")}, s.settings...)
	err := s.launch(&s.manager, "oncegate", "api", &s.managerAddr, append(args, "--listen")...)
	if err != nil {
		t.Fatal(err)
	}
}

// startPayments starts the upstream; again on the same address after an earlier one.
func (s *stack) startPayments(t *testing.T) {
	t.Helper()
	if err := s.launch(&s.payments, "payments", "", &s.paymentsAddr, "--listen"); err != nil {
		t.Fatal(err)
	}
}

// hold takes a free port for a program unless it has one.
func (s *stack) hold(address *string) error {
	if *address != "" {
		return nil
	}
	port, err := ports.Hold()
	if err != nil {
		return err
	}
	s.held = append(s.held, port)
	*address = port.Address
	return nil
}

// program is the file of a program that was built for the tests.
func (e envoyTarget) program(name string) string {
	if e.racing {
		return filepath.Join(racingDir, name)
	}
	return filepath.Join(binDir, name)
}

// launch starts a program with an address as its last argument. The first start uses a free
// port, and all later ones use the same port.
func (s *stack) launch(p **process, name, listener string, address *string, args ...string) error {
	if err := s.hold(address); err != nil {
		return err
	}
	listen := *address
	program := s.target.program(name)
	if name == "oncegate" && s.environment != nil {
		program, args = "env", slices.Concat(s.environment, []string{program}, args)
	}
	var err error
	if *p, err = startProcess(name, program, append(args, listen)...); err != nil {
		return err
	}
	s.started = append(s.started, *p)
	*address, err = (*p).addr(listener)
	return err
}

// startProxy adds a proxy.
func (s *stack) startProxy(t *testing.T) *proxy {
	t.Helper()
	p, err := s.target.Start(targetConfig{
		dir:  filepath.Join(s.dir, fmt.Sprintf("proxy-%d", len(s.proxies))),
		mode: s.mode, plugin: s.plugin, workers: cmp.Or(s.workers, 2), upstream: s.paymentsAddr, manager: s.managerAddr, managers: s.managers, edit: s.edit,
		bootstrap: s.bootstrap, module: s.module,
	})
	if p != nil {
		s.proxies = append(s.proxies, p)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// executions is how often upstream ran the work of a key.
func (s *stack) executions(t *testing.T, key string) int {
	t.Helper()
	return s.readExecutions(t, "?key="+url.QueryEscape(key))[key]
}

// allExecutions is how often the work of each key ran.
func (s *stack) allExecutions(t *testing.T) map[string]int {
	t.Helper()
	return s.readExecutions(t, "")
}

func (s *stack) readExecutions(t *testing.T, query string) map[string]int {
	t.Helper()
	text, err := fetch("http://" + s.paymentsAddr + "/executions" + query)
	if err != nil {
		t.Fatal(err)
	}
	var counts struct {
		Keys map[string]int `json:"keys"`
	}
	if err := json.Unmarshal(text, &counts); err != nil {
		t.Fatal(err)
	}
	return counts.Keys
}

// wantExecutions checks how often the work of a key ran.
func (s *stack) wantExecutions(t *testing.T, key string, want int) {
	t.Helper()
	if n := s.executions(t, key); n != want {
		t.Errorf("key %q was executed %d times, want %d", key, n, want)
	}
}

// Shared stacks serve the scenarios that leave only keys. There is one for each target and
// mode. It starts when it is first needed and stops at the end of all tests.
var (
	sharedMu sync.Mutex
	shared   = map[string]*sharedOne{}
)

type sharedOne struct {
	mu    sync.Mutex // held while it starts
	stack *stack
	ready bool
}

func sharedStack(t *testing.T, target envoyTarget, mode string) *stack {
	t.Helper()
	name := target.Name() + "-" + mode
	sharedMu.Lock()
	one := shared[name]
	if one == nil {
		one = new(sharedOne)
		shared[name] = one
	}
	sharedMu.Unlock()

	one.mu.Lock()
	defer one.mu.Unlock()
	if one.stack != nil {
		if !one.ready {
			t.Fatal("the shared processes did not start")
		}
		return one.stack
	}
	dir, err := os.MkdirTemp(binDir, name)
	if err != nil {
		t.Fatal(err)
	}
	// Waiting is bounded so that a duplicate of a request without an outcome gets its 409 soon;
	// reservations outlive every test.
	target.racing, target.alone = deep.On(), true // these proxies end as processes, with gates that run
	one.stack = &stack{dir: dir, target: target, mode: mode, plugin: map[string]any{
		"pending_wait_timeout": 0.5, "pending_ttl_seconds": 3600, "committed_ttl_seconds": 3600, "rejected_ttl_seconds": 3600,
	}}
	one.stack.startManager(t)
	one.stack.startPayments(t)
	one.stack.startProxy(t)
	one.ready = true
	return one.stack
}

// stopShared ends the shared stacks and reports how that went.
func stopShared() error {
	var errs []error
	for _, one := range shared {
		if one.stack != nil {
			errs = append(errs, one.stack.stop())
		}
	}
	return errors.Join(errs...)
}

var keys atomic.Int64

// newKey is a key that no other test uses.
func newKey() string { return fmt.Sprintf("key-%d", keys.Add(1)) }

// host is the service's name in all requests, whichever proxy they reach. It is a part of the scope.
const host = "payments.test"

// call is a request to a proxy.
type call struct {
	method  string // default POST
	path    string // default /payments
	host    string // default payments.test
	key     *string
	headers map[string]string
	body    string // default {"amount": 100}
	chunked bool   // the length is not declared
}

// pay is the ordinary call with a key.
func pay(key string, headers ...string) call {
	c := call{key: &key, headers: map[string]string{}}
	for i := 0; i < len(headers); i += 2 {
		c.headers[headers[i]] = headers[i+1]
	}
	return c
}

func (c call) request(ctx context.Context, p *proxy) (*http.Request, error) {
	method, path, body := c.method, c.path, c.body
	if method == "" {
		method = "POST"
	}
	if path == "" {
		path = "/payments"
	}
	if body == "" && method == "POST" {
		body = `{"amount": 100}`
	}
	req, err := http.NewRequestWithContext(ctx, method, p.url(path), strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if c.chunked {
		req.ContentLength = -1
	}
	if req.Host = c.host; c.host == "" {
		req.Host = host
	}
	req.Header.Set("Content-Type", "application/json")
	if c.key != nil {
		req.Header.Set("Idempotency-Key", *c.key)
	}
	for k, v := range c.headers {
		req.Header.Set(k, v)
	}
	return req, nil
}

// answer is a response that was read to its end.
type answer struct {
	status  int
	headers http.Header
	body    []byte
}

func (a answer) replayed() bool { return a.headers.Get("Idempotent-Replayed") == "true" }

func (a answer) String() string {
	return fmt.Sprintf("%d %v %.300q", a.status, a.headers, a.body)
}

// perConnection are headers that a replay rebuilds.
var perConnection = []string{"Date", "Original-Date", "Server", "X-Envoy-Upstream-Service-Time", "Idempotent-Replayed", "Idempotency-Status",
	"Connection", "X-Request-Id"}

// sameAs reports whether two answers are the same to a client: status, body, end-to-end headers.
func (a answer) sameAs(b answer) error {
	if a.status != b.status {
		return fmt.Errorf("status %d and %d", a.status, b.status)
	}
	if !bytes.Equal(a.body, b.body) {
		return fmt.Errorf("bodies differ: %.200q and %.200q", a.body, b.body)
	}
	ha, hb := a.headers.Clone(), b.headers.Clone()
	for _, name := range perConnection {
		ha.Del(name)
		hb.Del(name)
	}
	if fmt.Sprint(ha) != fmt.Sprint(hb) {
		return fmt.Errorf("headers differ: %v and %v", ha, hb)
	}
	return nil
}

var client = &http.Client{
	Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64},
	Timeout:   patience,
}

// do sends a call once. Go's client would send some again by itself; a body without
// GetBody stops it.
func do(ctx context.Context, p *proxy, c call) (answer, error) { return doWith(ctx, client, p, c) }

// doWith is do with another client.
func doWith(ctx context.Context, client *http.Client, p *proxy, c call) (answer, error) {
	req, err := c.request(ctx, p)
	if err != nil {
		return answer{}, err
	}
	req.GetBody = nil
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, body}, err
}

// send is do for calls that must be answered.
func send(t *testing.T, p *proxy, c call) answer {
	t.Helper()
	a, err := do(t.Context(), p, c)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// sendFree is send for a key that is being released: that may take longer than the stack lets a duplicate wait.
func sendFree(t *testing.T, p *proxy, c call) (a answer) {
	t.Helper()
	eventually(t, "the key is not released", func() error {
		if a = send(t, p, c); a.headers.Get("Idempotency-Status") == "request-pending" {
			return fmt.Errorf("%v", a)
		}
		return nil
	})
	return a
}

// wantFirst sends a call that must be executed and answered with status.
func wantFirst(t *testing.T, p *proxy, c call, status int) answer {
	t.Helper()
	a := send(t, p, c)
	if a.status != status || a.replayed() {
		t.Fatalf("first call: %v; want status %d, not replayed", a, status)
	}
	return a
}

// wantReplay sends a call that must get first again.
func wantReplay(t *testing.T, p *proxy, c call, first answer) {
	t.Helper()
	a := send(t, p, c)
	if err := a.sameAs(first); err != nil || !a.replayed() {
		t.Fatalf("retry: %v, replayed %v: %v; first: %v", err, a.replayed(), a, first)
	}
}

// wantProblem sends a call that must get a problem with status and code.
func wantProblem(t *testing.T, p *proxy, c call, status int, code string) answer {
	t.Helper()
	a := send(t, p, c)
	var problem struct {
		Type   string `json:"type"`
		Status int    `json:"status"`
		Code   string `json:"code"`
	}
	if ct := a.headers.Get("Content-Type"); a.status != status || ct != "application/problem+json" {
		t.Fatalf("%v; want a %d problem", a, status)
	}
	if err := json.Unmarshal(a.body, &problem); err != nil {
		t.Fatalf("%v: %v", a, err)
	}
	if got := a.headers.Get("Idempotency-Status"); got != code {
		t.Fatalf("%v; want status %s", a, code)
	}
	if problem.Status != status || problem.Code != code || problem.Type != "urn:oncegate:problem:"+code {
		t.Fatalf("%v; want code %s", a, code)
	}
	return a
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	if err := poll(nil, f); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// eventuallyPaid repeats a payment until it is executed.
func eventuallyPaid(t *testing.T, what string, p *proxy, key string) (first answer) {
	t.Helper()
	eventually(t, what, func() error {
		// On a connection of its own, so that it meets another worker than the last one: a narrow manager serves one worker.
		if first = send(t, p, pay(key, "Connection", "close")); first.status != 201 {
			return fmt.Errorf("%v", first)
		}
		return nil
	})
	return first
}

// dial opens a connection to a proxy.
func dial(t *testing.T, p *proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}
