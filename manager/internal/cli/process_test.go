package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
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

	"github.com/oncegate/oncegate/manager/internal/app"
	"github.com/oncegate/oncegate/manager/internal/settings"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// patience is how long a test waits for what must happen; only a failure takes
// that long.
const patience = 3 * time.Minute

var binDir string

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
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
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", bin, "../../cmd/oncegate").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return bin, nil
})

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

// startManager starts the real program and returns when it is ready.
func startManager(t testing.TB, args ...string) *process {
	t.Helper()
	p, err := tryStartManager(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func tryStartManager(t testing.TB, args ...string) (*process, error) {
	t.Helper()
	bin, err := managerBinary()
	if err != nil {
		return nil, err
	}
	addrFile := filepath.Join(t.TempDir(), "addr")
	args = append([]string{"serve", "--listen", "127.0.0.1:0", "--addr-file", addrFile}, args...)
	p := &process{cmd: exec.Command(bin, args...), stderr: new(output), exited: make(chan struct{})}
	p.cmd.Stderr = p.stderr
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(p.kill)
	for deadline := time.Now().Add(patience); ; {
		if p.addr = readAddresses(addrFile); p.addr != nil {
			resp, err := http.Get("http://" + p.addr["api"] + "/readyz")
			if err == nil {
				resp.Body.Close()
				if resp.StatusCode == 200 {
					http.DefaultClient.CloseIdleConnections()
					return p, nil
				}
			}
		}
		select {
		case <-p.exited:
			return nil, fmt.Errorf("manager ended: %v: %s", p.err, p.stderr)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("manager did not get ready: %s", p.stderr)
		}
	}
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

// kill ends the process as a power cut would, as far as a process can tell.
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

func TestProcessStartsServesAndStops(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
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
	bin, _ := managerBinary()
	out, err := exec.Command(bin, "serve", "--data-dir", dir, "--listen", "127.0.0.1:0").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "lock") {
		t.Errorf("a second manager on the same directory: %v %s", err, out)
	}
	if out, err = exec.Command(bin, "wal", "verify", "--data-dir", dir).CombinedOutput(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("verify while a manager runs: %v %s", err, out)
	}
	// One process per port.
	out, err = exec.Command(bin, "serve", "--data-dir", t.TempDir(), "--listen", p.addr["api"]).CombinedOutput()
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "--listen") {
		t.Errorf("a second manager on the same port: %v %s", err, out)
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
	out, err = exec.Command(bin, "wal", "dump", "--data-dir", dir).CombinedOutput()
	records := strings.Count(string(out), "\n")
	if err != nil || records < 3 || strings.Count(string(out), `"state":"committed"`) != 1 {
		t.Errorf("dump: %v %s", err, out)
	}
	if out, err := exec.Command(bin, "wal", "verify", "--data-dir", dir).CombinedOutput(); err != nil || !strings.HasPrefix(string(out), fmt.Sprintf("ok: %d records", records)) {
		t.Errorf("verify: %v %s, want %d records", err, out, records)
	}
	if out, err := exec.Command(bin, "wal", "stats", "--data-dir", dir).CombinedOutput(); err != nil || !strings.Contains(string(out), fmt.Sprintf(`"records": %d,`, records)) {
		t.Errorf("stats: %v %s, want %d records", err, out, records)
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

// TestShutdownAnswersWaits: a caller that is held when the manager is told to stop
// gets an answer, and soon.
func TestShutdownAnswersWaits(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
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

func waitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestTokensAreReloaded(t *testing.T) {
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

// failingStore is a store that a test breaks.
type failingStore struct {
	store.Store
	failed chan struct{}
}

func (s *failingStore) Failed() <-chan struct{} { return s.failed }
func (s *failingStore) Err() error {
	return fmt.Errorf("%w: fsync: input/output error", store.ErrFailed)
}

// When the store has failed, nothing is answered from it any more
// and the program ends with exit code 1.
func TestFailedStoreEndsTheProcess(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	st := &failingStore{Store: mem.New(mem.Options{}), failed: make(chan struct{})}
	file := filepath.Join(t.TempDir(), "addr")
	stderr := new(output)
	args := []string{"--store", "memory", "--listen", "127.0.0.1:0", "--addr-file", file, "--drain-delay-seconds", "3600"}
	s, err := settings.Parse(noEnv, args)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- app.Run(t.Context(), app.Options{Version: "test", Settings: s, Log: stderr, Store: st})
	}()
	waitFor(t, "it listens", func() bool { return readAddresses(file) != nil })
	addr := readAddresses(file)["api"]
	if status, body := post(t, addr, "/v1/ledger/reserve", `{"key":"k","token":"t"}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	// A request that is held keeps the server up while the test looks at it.
	held := make(chan int, 1)
	go func() {
		resp, err := http.Post("http://"+addr+"/v1/ledger/reserve", "application/json", strings.NewReader(`{"key":"k","token":"u","wait_ms":30000}`))
		if err != nil {
			held <- 0
			return
		}
		resp.Body.Close()
		held <- resp.StatusCode
	}()
	close(st.failed)
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "fsync: input/output error") {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("it goes on with a failed store")
	}
	<-held
	if !strings.Contains(stderr.String(), `"msg":"store failed, stopping"`) {
		t.Errorf("the log does not say so: %s", stderr)
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Error("it still listens")
	}
}

// TestStartFailuresReleaseEverything: whatever goes wrong at start, nothing is
// left behind; goleak looks at the end.
func TestStartFailuresReleaseEverything(t *testing.T) {
	dir := t.TempDir()
	notADir := filepath.Join(dir, "file")
	if err := os.WriteFile(notADir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for what, c := range map[string]struct {
		code int
		args []string
	}{
		"data dir":   {2, []string{"--data-dir", notADir}},
		"tokens":     {2, []string{"--data-dir", dir, "--auth-token-file", filepath.Join(dir, "none")}},
		"tls":        {2, []string{"--data-dir", dir, "--tls-cert", notADir, "--tls-key", notADir}},
		"admin port": {1, []string{"--data-dir", dir, "--admin", busy.Addr().String()}},
		"addr file":  {2, []string{"--data-dir", dir, "--addr-file", filepath.Join(dir, "no", "such", "dir")}},
		// What cannot be known before it is tried.
		"addr file, late": {1, []string{"--data-dir", dir, "--addr-file", filepath.Join(dir, strings.Repeat("x", 300))}},
		"store":           {1, []string{"--store", "redis", "--store-dsn", "redis://127.0.0.1:1?max_retries=-1"}},
	} {
		env, _, stderr := testEnv(nil)
		code := Run(context.Background(), env, append([]string{"serve", "--listen", "127.0.0.1:0"}, c.args...))
		if code != c.code || stderr.Len() == 0 || strings.Contains(stderr.String(), `"stopped"`) {
			t.Errorf("%s: exit code %d, %s", what, code, stderr)
		}
	}
}
