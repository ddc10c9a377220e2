package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/envoy/envoybin"
	"github.com/oncegate/oncegate/examples/internal/stack"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

func TestFlagsOfRun(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv("ENVOY_BIN", "")
	bin := t.TempDir() // without an Envoy
	cfg, err := parse(t.Context(), []string{"--bin", bin}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	want := stack.Ports{Manager: 8090, ManagerAdmin: 8091, Payments: 9000, Proxy: 10000, ProxyAdmin: 10001}
	if cfg.Ports != want {
		t.Errorf("ports %+v, want %+v", cfg.Ports, want)
	}
	if cfg.Mode != "body" {
		t.Errorf("mode %q, want body", cfg.Mode)
	}
	if text := cfg.Proxy.String(); !strings.HasPrefix(text, "gateway (no Envoy: ENVOY_BIN is not set, ") {
		t.Errorf("proxy %q, want the gateway, and why", text)
	}

	cfg, err = parse(t.Context(), []string{"--mode", "headers", "--proxy", "gateway", "--proxy-port", "0", "--manager-port", "65535", "--workers", "64"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Mode != "headers" || cfg.Proxy.String() != "gateway" || cfg.Ports.Proxy != 0 || cfg.Ports.Manager != 65535 || cfg.Workers != 64 {
		t.Errorf("%+v: the flags were not taken", cfg)
	}
}

func TestRunRefusesBadCommandLines(t *testing.T) {
	t.Setenv("ENVOY_BIN", "/nowhere/envoy")
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--manager-port", "65536"}, "--manager-port is 65536, it must be from 0 to 65535"},
		{[]string{"--payments-port", "-1"}, "--payments-port is -1"},
		{[]string{"--proxy-port", "http"}, `"http"`},
		{[]string{"--proxy", "nginx"}, `--proxy is "nginx", it must be envoy or gateway`},
		{nil, `ENVOY_BIN is "/nowhere/envoy"`},
		{[]string{"--workers", "0"}, "--workers is 0, it must be from 1 to 64"},
		{[]string{"--workers", "65"}, "--workers is 65"},
		{[]string{"--mode", "fast"}, `--mode is "fast", it must be body or headers`},
		{[]string{"--store", "sqlite"}, `--store is "sqlite", it must be wal or etcd`},
		{[]string{"--store", "etcd", "--proxy", "gateway"}, `--store is "etcd", it needs Envoy, and the proxy is gateway`},
		{[]string{"now"}, `unexpected argument "now"`},
	} {
		var stderr bytes.Buffer
		if code := run(t.Context(), tt.args, io.Discard, &stderr); code != 2 {
			t.Errorf("%q: exit code %d, want 2", tt.args, code)
		}
		if !strings.Contains(stderr.String(), tt.want) {
			t.Errorf("%q: %q, want it to contain %q", tt.args, stderr.String(), tt.want)
		}
	}
}

func TestRunTellsWhatKeepsItFromStarting(t *testing.T) {
	var stdout, stderr bytes.Buffer
	args := []string{"--bin", t.TempDir(), "--dir", t.TempDir(), "--proxy", "gateway"}
	if code := run(t.Context(), args, &stdout, &stderr); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if !strings.Contains(stderr.String(), "make build") || stdout.String() != "proxy: gateway\n" {
		t.Errorf("stdout %q, stderr %q: want the proxy, and that make build is missing", stdout.String(), stderr.String())
	}
}

func TestRunTellsHowToChooseAnotherPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	bin := t.TempDir()
	for _, file := range []string{"oncegate", "gateway", "payments", "oncegate.wasm"} {
		if err := os.WriteFile(filepath.Join(bin, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--bin", bin, "--dir", t.TempDir(), "--manager-port", port, "--manager-admin-port", "0",
		"--payments-port", "0", "--proxy-port", "0", "--proxy-admin-port", "0", "--proxy", "gateway"}
	var stderr bytes.Buffer
	if code := run(t.Context(), args, io.Discard, &stderr); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	for _, want := range []string{"port taken: " + port + ", for the manager", "MANAGER_PORT=N"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("stderr %q, want it to contain %q", stderr.String(), want)
		}
	}
}

func TestRunStoppedBeforeItStarted(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if code := run(ctx, []string{"--bin", t.TempDir(), "--dir", t.TempDir(), "--proxy", "gateway"}, io.Discard, io.Discard); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestWelcomeHasTheSameCallTwice(t *testing.T) {
	s := &stack.Stack{Ports: stack.Ports{Manager: 1, ManagerAdmin: 2, Payments: 3, Proxy: 4, ProxyAdmin: 5}}
	text := welcome(s, stack.Config{Dir: "dir"}, "KEY")
	call := `curl -i http://127.0.0.1:4/payments -H 'Idempotency-Key: try-KEY' -d '{"amount": 100}'`
	if n := strings.Count(text, call+"\n"); n != 2 {
		t.Errorf("the call is there %d times, want 2, in\n%s", n, text)
	}
	if !strings.Contains(text, "curl http://127.0.0.1:3/executions\n") {
		t.Errorf("no way to see the executions in\n%s", text)
	}
}

// fakeStack is a stack whose processes end when the test says so.
type fakeStack struct {
	failed  chan error
	started chan struct{}
	err     error
}

func (f *fakeStack) Failed() <-chan error { return f.failed }

func (f *fakeStack) PIDs() map[string]int { return map[string]int{"proxy": 3, "manager": 2} }

func (f *fakeStack) Restarts(role string) (restarts, atOnce bool) {
	return role != "payments", role == "gateway"
}

func (f *fakeStack) Restart(context.Context, string) error {
	f.started <- struct{}{}
	return f.err
}

func TestKilledManagerIsStartedAgain(t *testing.T) {
	killed := &stack.EndedError{Process: "manager", How: "signal: killed"}
	crashed := &stack.EndedError{Process: "manager", How: "exit status 1"}
	gateway := &stack.EndedError{Process: "gateway", How: "signal: killed"}
	payments := &stack.EndedError{Process: "payments", How: "signal: killed"}
	noStart := errors.New("no start")
	for _, tt := range []struct {
		name   string
		ends   []error // one after the other
		err    error   // of Restart
		starts int
		want   error
	}{
		{"interrupted", nil, nil, 0, nil},
		{"manager killed twice", []error{killed, killed}, nil, 2, nil},
		{"manager crashed", []error{crashed}, nil, 0, crashed},
		{"gateway killed twice", []error{gateway, gateway}, nil, 2, nil},
		{"payments killed", []error{payments}, nil, 0, payments},
		{"payments killed after the manager", []error{killed, payments}, nil, 1, payments},
		{"manager does not start", []error{killed}, noStart, 1, noStart},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			f := &fakeStack{failed: make(chan error), started: make(chan struct{}, len(tt.ends)), err: tt.err}
			result := make(chan error, 1)
			go func() { result <- supervise(ctx, f, 0, io.Discard) }()
			for i, end := range tt.ends {
				f.failed <- end
				if i < tt.starts {
					<-f.started
				}
			}
			if tt.want == nil {
				stop()
			}
			if err := <-result; !errors.Is(err, tt.want) {
				t.Errorf("supervise: %v, want %v", err, tt.want)
			}
			if n := len(f.started); n > 0 {
				t.Errorf("the manager was started %d times more than expected", n)
			}
		})
	}
}

// A process that was started again has another id, and a reader may want to kill it once more.
func TestRestartsTellTheNewProcesses(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	f := &fakeStack{failed: make(chan error), started: make(chan struct{})}
	r, w := io.Pipe()
	result := make(chan error, 1)
	go func() { result <- supervise(ctx, f, 0, w); w.Close() }()
	lines := bufio.NewScanner(r)
	f.failed <- &stack.EndedError{Process: "manager", How: "signal: killed"}
	lines.Scan()
	<-f.started
	if lines.Scan(); lines.Text() != "the manager is back; processes: manager 2, proxy 3" {
		t.Errorf("it prints %q", lines.Text())
	}
	stop()
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// A killed proxy does not wait, also while a manager is down.
func TestKilledProxyDoesNotWait(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	f := &fakeStack{failed: make(chan error), started: make(chan struct{})}
	result := make(chan error, 1)
	go func() { result <- supervise(ctx, f, time.Hour, io.Discard) }()
	for _, process := range []string{"manager", "gateway"} {
		f.failed <- &stack.EndedError{Process: process, How: "signal: killed"}
	}
	<-f.started
	stop()
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// session is a run of the real processes.
type session struct {
	proxy, payments string // URLs
	text            string // the first line
	welcome         string // all lines
	stop            func() (code int)
}

func startSession(t *testing.T, args ...string) session {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	code := make(chan int, 1)
	var stderr bytes.Buffer
	go func() {
		code <- run(ctx, append([]string{"--bin", filepath.Join("..", "..", "build")}, args...), w, &stderr)
		w.Close()
	}()
	stop := sync.OnceValue(func() int {
		cancel()
		c := <-code
		if c != 0 {
			t.Logf("stderr: %s", stderr.String())
		}
		return c
	})
	t.Cleanup(func() { stop() })
	s := session{stop: stop}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if s.text == "" {
			s.text = lines.Text()
		}
		s.welcome += lines.Text() + "\n"
		if lines.Text() == "Ctrl-C stops all." {
			break
		}
		switch name, rest, _ := strings.Cut(strings.TrimSpace(lines.Text()), " "); name {
		case "envoy", "gateway":
			s.proxy = strings.Fields(rest)[0]
		case "payments":
			s.payments = strings.Fields(rest)[0]
		}
	}
	go io.Copy(io.Discard, r) // until run is over
	if !regexp.MustCompile(`(?m)^Processes: .*\bmanager \d+, payments \d+, proxy \d+\.`).MatchString(s.welcome) {
		t.Errorf("nothing says which process to kill:\n%s", s.welcome)
	}
	if s.payments == "" {
		t.Fatalf("exit code %d after %q", stop(), s.text)
	}
	return s
}

// pay sends a payment whose work takes so long.
func (s session) pay(ctx context.Context, key, delayMS string) (status int, replayed bool, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.proxy+"/payments", strings.NewReader(`{"amount": 100}`))
	if err != nil {
		return 0, false, "", err
	}
	req.Close = true
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("x-demo-delay-ms", delayMS)
	req.Host = "payments.test" // a part of the scope, which the port is not to change
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, false, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header.Get("Idempotent-Replayed") == "true", string(b), err
}

// executed reports whether payments has begun the work of a key.
func (s session) executed(t *testing.T, key string) bool {
	t.Helper()
	resp, err := http.Get(s.payments + "/executions?key=" + key)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(b), `"`+key+`":1`)
}

// Ctrl-C lets a request that is under way have its answer, and the next run knows it.
func TestStopAndRestart(t *testing.T) {
	for _, tt := range deep.Cells(t, []struct{ proxy, mode string }{{"envoy", "body"}, {"envoy", "headers"}, {"gateway", "body"}}) {
		t.Run(tt.proxy+"/"+tt.mode, func(t *testing.T) {
			dir := t.TempDir()
			args := []string{"--dir", dir, "--proxy", tt.proxy, "--mode", tt.mode, "--manager-port", "0",
				"--manager-admin-port", "0", "--payments-port", "0", "--proxy-port", "0", "--proxy-admin-port", "0"}
			s := startSession(t, args...)
			t.Log(s.text)
			if !strings.HasPrefix(s.text, "proxy: "+tt.proxy) && (tt.proxy == "gateway" || envoybin.Required()) {
				t.Errorf("the first line is %q, want it to name %s", s.text, tt.proxy)
			}
			first := make(chan string, 1)
			go func() {
				status, replayed, body, err := s.pay(t.Context(), "slow", "1500")
				if status != 201 || replayed || err != nil {
					t.Errorf("the call under way: %d, replayed %t, %q, %v", status, replayed, body, err)
				}
				first <- body
			}()
			for !s.executed(t, "slow") {
			}
			if code := s.stop(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			want := <-first

			s = startSession(t, args...)
			status, replayed, body, err := s.pay(t.Context(), "slow", "1500")
			if status != 201 || !replayed || body != want || err != nil {
				t.Errorf("the retry: %d, replayed %t, %q, %v; want %q again", status, replayed, body, err, want)
			}
			if code := s.stop(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if strings.HasPrefix(s.text, "proxy: envoy") {
				log, err := os.ReadFile(filepath.Join(dir, "access.log"))
				if n := strings.Count(string(log), "/payments"); err != nil || n != 2 {
					t.Errorf("the access log has %d calls, %v; want 2:\n%s", n, err, log)
				}
			}
		})
	}
}

// TestEtcdSurvivesKills kills each manager and each member of etcd, one after the other, under load: all clients get
// their answers, and nothing runs twice.
func TestEtcdSurvivesKills(t *testing.T) {
	deep.Only(t)
	bin := filepath.Join("..", "..", "build")
	proxy, err := stack.ChooseProxy(t.Context(), "envoy", bin)
	if err != nil {
		t.Fatal(err)
	}
	if proxy.Name() != "envoy" {
		if envoybin.Required() {
			t.Fatal(proxy)
		}
		t.Skip(proxy)
	}
	dir := t.TempDir()
	st, err := stack.Start(t.Context(), stack.Config{BinDir: bin, Dir: dir, Proxy: proxy, Etcd: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if log, err := os.ReadFile(filepath.Join(dir, "envoy.log")); t.Failed() && err == nil {
			t.Logf("%s", log)
		}
		if err := st.Stop(); err != nil {
			t.Error(err)
		}
	}()
	s := session{proxy: st.ProxyURL(), payments: st.PaymentsURL()}
	const clients = 4
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var working sync.WaitGroup
	var done atomic.Int64
	var slowest atomic.Int64
	var keys sync.Map
	for c := range clients {
		working.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key := fmt.Sprintf("k%d-%d", c, n)
				keys.Store(key, nil)
				for retry := range 2 {
					began := time.Now()
					status, replayed, body, err := s.pay(t.Context(), key, "0")
					if took := time.Since(began).Milliseconds(); took > slowest.Load() {
						slowest.Store(took)
					}
					if err != nil || status != 201 || replayed != (retry == 1) {
						t.Errorf("%s: %d, replayed %t, %q, %v", key, status, replayed, body, err)
					}
				}
				done.Add(1)
			}
		})
	}
	more := func() { // each client gets answers to requests that it made after this
		for from := done.Load(); done.Load() < from+4*clients; time.Sleep(10 * time.Millisecond) {
			if t.Context().Err() != nil {
				t.Fatal("the clients get no answers")
			}
		}
	}
	more()
	for _, role := range []string{"manager", "etcd-1", "etcd-2", "manager-2", "etcd-3"} {
		slowest.Store(0)
		if err := syscall.Kill(st.PIDs()[role], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		var ended *stack.EndedError
		if err := <-st.Failed(); !errors.As(err, &ended) || ended.Process != role {
			t.Fatal(err)
		}
		more()
		t.Logf("%s killed: the slowest call took %d ms", role, slowest.Load())
		if err := st.Restart(t.Context(), role); err != nil {
			t.Fatal(err)
		}
		more()
	}
	stop()
	working.Wait()
	// Clients see that there is no proxy. Its restart lets a retry have the recorded answer.
	if err := syscall.Kill(st.PIDs()["proxy"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var ended *stack.EndedError
	if err := <-st.Failed(); !errors.As(err, &ended) {
		t.Fatal(err)
	}
	if restarts, atOnce := st.Restarts(ended.Process); !restarts || !atOnce {
		t.Fatalf("the %s is not started again at once", ended.Process)
	}
	if err := st.Restart(t.Context(), ended.Process); err != nil {
		t.Fatal(err)
	}
	if status, replayed, body, err := s.pay(t.Context(), "k0-0", "0"); err != nil || status != 201 || !replayed {
		t.Errorf("a retry after the proxy was killed: %d, replayed %t, %q, %v", status, replayed, body, err)
	}
	keys.Range(func(key, _ any) bool {
		if !s.executed(t, key.(string)) {
			t.Errorf("%s did not run once", key)
		}
		return true
	})
}
