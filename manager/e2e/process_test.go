package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncegate/oncegate/manager/managertest/ports"
)

// patience is how long a test waits for what must happen. Only a failure takes that long.
const patience = 3 * time.Minute

// tests are all tests. They share http.DefaultClient, whose idle connections goleak would take for leaks.
type tests struct{ *testing.M }

func (m tests) Run() int {
	defer http.DefaultClient.CloseIdleConnections()
	return m.M.Run()
}

var binDir string

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(tests{m},
		goleak.Cleanup(func(code int) {
			if binDir != "" {
				_ = os.RemoveAll(binDir)
			}
			os.Exit(code)
		}),
	)
}

// managerBinary is the real program, built once.
var managerBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "oncegate-manager-")
	if err != nil {
		return "", err
	}
	binDir = dir
	bin := filepath.Join(dir, "oncegate")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-w", "-o", bin, "../cmd/oncegate")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as in a release
	out, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return bin, nil
})

// environ are variables for the program besides those of the test.
type environ []string

// command is the program with arguments.
func (e environ) command(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	bin, err := managerBinary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, args...)
	cmd.Env = append(os.Environ(), e...)
	return cmd
}

// oncegate runs the program and returns its exit code and what it wrote.
func (e environ) oncegate(t testing.TB, args ...string) (code int, out string) {
	t.Helper()
	cmd := e.command(t, args...)
	b, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(b)
}

func oncegate(t testing.TB, args ...string) (code int, out string) {
	t.Helper()
	return environ(nil).oncegate(t, args...)
}

// output is what a program wrote; safe to read while it runs.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// process is a running manager.
type process struct {
	cmd    *exec.Cmd
	addr   map[string]string // listener -> address
	stderr *output
	exited chan struct{}
	err    error // of Wait, once exited
}

// spawn starts a command of a manager, and does not wait until it is ready.
func spawn(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, stderr: new(output), exited: make(chan struct{})}
	p.cmd.Stderr = p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(p.kill)
	return p
}

// startManager starts the real program and returns when it is ready. Nobody else gets its port before the test ends, so a
// caller of a killed manager finds nothing there.
func startManager(t testing.TB, args ...string) *process {
	t.Helper()
	return environ(nil).startManager(t, args...)
}

func (e environ) startManager(t testing.TB, args ...string) *process {
	t.Helper()
	port, err := ports.Hold()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(port.Release)
	addrFile := filepath.Join(t.TempDir(), "addr")
	p := spawn(t, e.command(t, append([]string{"serve", "--listen", port.Address, "--addr-file", addrFile}, args...)...))
	waitFor(t, "the manager is ready", func() bool {
		select {
		case <-p.exited:
			t.Fatalf("the manager ended: %v: %s", p.err, p.stderr)
		default:
		}
		if p.addr = readAddresses(addrFile); p.addr == nil {
			return false
		}
		resp, err := http.Get("http://" + p.addr["api"] + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	})
	return p
}

func readAddresses(file string) map[string]string {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	addrs := make(map[string]string)
	for line := range strings.Lines(string(b)) {
		if name, addr, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			addrs[name] = addr
		}
	}
	return addrs
}

// kill ends the process as a power cut would, as far as a process can notice.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.exited
}

// standStill stops the process for a while, as a machine that stands still does.
func (p *process) standStill(t testing.TB, d time.Duration) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(d) // this is the fault
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// stop ends it in order and returns its exit code.
func (p *process) stop(t testing.TB) int {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	return p.wait(t)
}

func (p *process) wait(t testing.TB) int {
	t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		t.Fatalf("the manager does not end: %s", p.stderr)
	}
	var exit *exec.ExitError
	if errors.As(p.err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

func post(t testing.TB, addr, path, body string) (int, string) {
	t.Helper()
	resp, err := http.Post("http://"+addr+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func get(t testing.TB, addr, path string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + addr + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func waitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// each runs a test in several cells side by side. A single cell runs in its parent's turn, since a long one that waits for
// all other tests ends last.
func each(t *testing.T, cells []string, test func(t *testing.T, cell string)) {
	t.Helper()
	for _, cell := range cells {
		t.Run(cell, func(t *testing.T) {
			if len(cells) > 1 {
				t.Parallel()
			}
			test(t, cell)
		})
	}
}

func TestProcessStartsServesAndStops(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startManager(t, "--data-dir", dir, "--admin", "127.0.0.1:0")
	if status, body := post(t, p.addr["api"], "/v1/ledger/reserve", `{"key":"k","token":"t"}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	if status, body := post(t, p.addr["api"], "/v1/ledger/commit", `{"key":"k","token":"t","result":{"status":201,"body":"aGk="}}`); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	resp, err := http.Get("http://" + p.addr["admin"] + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	metrics, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	for _, name := range []string{"oncegate_wal_fsync_duration_seconds_count", "oncegate_wal_batch_records_sum ", "oncegate_ledger_entries{state=\"committed\"} 1", "oncegate_wal_segments 1", "process_resident_memory_bytes"} {
		if !strings.Contains(string(metrics), name) {
			t.Errorf("metrics lack %s", name)
		}
	}
	// One process per data directory.
	if code, out := oncegate(t, "serve", "--data-dir", dir, "--listen", "127.0.0.1:0"); code != 1 || !strings.Contains(out, "lock") {
		t.Errorf("a second manager on the same directory: exit code %d, %s", code, out)
	}
	if code, out := oncegate(t, "wal", "verify", "--data-dir", dir); code != 1 {
		t.Errorf("verify while a manager runs: exit code %d, %s", code, out)
	}
	// One process per port.
	if code, out := oncegate(t, "serve", "--data-dir", t.TempDir(), "--listen", p.addr["api"]); code != 1 || !strings.Contains(out, "--listen") {
		t.Errorf("a second manager on the same port: exit code %d, %s", code, out)
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr)
	}
	for line := range strings.Lines(p.stderr.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("a log line is not JSON: %s", line)
		}
	}
	if want := fmt.Sprintf(`"msg":"listening","listener":"api","addr":%q`, p.addr["api"]); !strings.Contains(p.stderr.String(), want) {
		t.Errorf("the log lacks %s", want)
	}
	// The reservation, its end, and a beat; more beats if a busy machine took long from one to the other.
	code, out := oncegate(t, "wal", "dump", "--data-dir", dir)
	records := strings.Count(out, "\n")
	if code != 0 || records < 3 || strings.Count(out, `"state":"committed"`) != 1 {
		t.Errorf("dump: exit code %d, %s", code, out)
	}
	if code, out := oncegate(t, "wal", "verify", "--data-dir", dir); code != 0 || !strings.HasPrefix(out, fmt.Sprintf("ok: %d records", records)) {
		t.Errorf("verify: exit code %d, %s, want %d records", code, out, records)
	}
	if code, out := oncegate(t, "wal", "stats", "--data-dir", dir); code != 0 || !strings.Contains(out, fmt.Sprintf(`"records": %d,`, records)) {
		t.Errorf("stats: exit code %d, %s, want %d records", code, out, records)
	}
	// And it is all still there.
	p = startManager(t, "--data-dir", dir)
	if status, body := post(t, p.addr["api"], "/v1/ledger/reserve", `{"key":"k","token":"u"}`); status != 200 || !strings.Contains(body, `"body":"aGk="`) {
		t.Errorf("after the restart: %d %s", status, body)
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr)
	}
}

// TestShutdownAnswersWaits: a caller that is held when the manager is asked to stop
// gets an answer, and soon.
func TestShutdownAnswersWaits(t *testing.T) {
	t.Parallel()
	p := startManager(t, "--store", "memory", "--admin", "127.0.0.1:0")
	post(t, p.addr["api"], "/v1/ledger/reserve", `{"key":"k","token":"t"}`)
	type answer struct {
		status int
		body   string
	}
	answers := make(chan answer)
	go func() {
		status, body := post(t, p.addr["api"], "/v1/ledger/reserve", `{"key":"k","token":"u","wait_ms":30000}`)
		answers <- answer{status, body}
	}()
	waitFor(t, "the reserve is held", func() bool {
		resp, err := http.Get("http://" + p.addr["admin"] + "/metrics")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return strings.Contains(string(b), "oncegate_ledger_waiters 1\n")
	})
	code := p.stop(t)
	if a := <-answers; a.status != 202 || code != 0 {
		t.Errorf("%d %s, exit code %d", a.status, a.body, code)
	}
}

func TestTokensAreReloaded(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("first-token-of-20-bytes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startManager(t, "--store", "memory", "--auth-token-file", file)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	status := func(token string) int {
		req, _ := http.NewRequest("GET", "http://"+p.addr["api"]+"/v1/ledger/stats", nil)
		req.Header.Set("authorization", "Bearer "+token)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if a, b := status("first-token-of-20-bytes"), status("second-token-of-20-bytes"); a != 200 || b != 401 {
		t.Fatalf("%d %d", a, b)
	}
	if err := os.WriteFile(file, []byte("second-token-of-20-bytes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the new token is valid", func() bool { return status("second-token-of-20-bytes") == 200 })
	if got := status("first-token-of-20-bytes"); got != 401 {
		t.Errorf("the old token: %d", got)
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if strings.Contains(p.stderr.String(), "token-of-20") {
		t.Error("a token was logged")
	}
}
