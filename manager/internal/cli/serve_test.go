package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/app"
	"github.com/oncegate/oncegate/manager/internal/settings"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// breakable is a store that a test breaks when it likes.
type breakable struct {
	store.Store
	failed   chan struct{}
	err      atomic.Pointer[error]
	closeErr error
}

func (s *breakable) fail(err error) {
	s.err.Store(&err)
	close(s.failed)
}

func (s *breakable) Failed() <-chan struct{} { return s.failed }

func (s *breakable) Err() error {
	if err := s.err.Load(); err != nil {
		return *err
	}
	return nil
}

func (s *breakable) Close() error { return errors.Join(s.Store.Close(), s.closeErr) }

// served is a manager in this process.
type served struct {
	store  *breakable
	addr   string
	admin  string // "" without --admin
	stderr *output
	hangup chan os.Signal
	stop   context.CancelFunc
	done   chan error
}

func serveBreakable(t *testing.T, args ...string) *served {
	t.Helper()
	st := &breakable{Store: mem.New(mem.Options{}), failed: make(chan struct{})}
	s := serveStore(t, st, args...)
	s.store = st
	return s
}

func serveStore(t *testing.T, st store.Store, args ...string) *served {
	t.Helper()
	file := filepath.Join(t.TempDir(), "addr")
	s := &served{stderr: new(output), hangup: make(chan os.Signal, 1), done: make(chan error, 1)}
	o, err := settings.Parse(noEnv, append([]string{"--store", "memory", "--listen", "127.0.0.1:0", "--addr-file", file}, args...))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.stop = cancel
	t.Cleanup(cancel)
	go func() {
		s.done <- app.Run(ctx, app.Options{Version: "test", Settings: o, Log: s.stderr, Store: st, Hangup: s.hangup})
	}()
	waitFor(t, "it listens", func() bool {
		select {
		case err := <-s.done:
			t.Fatalf("it ended: %v, %s", err, s.stderr)
		default:
		}
		return readAddresses(file) != nil
	})
	s.addr, s.admin = readAddresses(file)["api"], readAddresses(file)["admin"]
	return s
}

func (s *served) ended(t *testing.T) error {
	t.Helper()
	select {
	case err := <-s.done:
		return err
	case <-time.After(patience):
		t.Fatal("it still runs")
		return nil
	}
}

// TestStoreFailsWhileStopping: that the program was about to end anyway is no
// reason to end as if all were well.
func TestStoreFailsWhileStopping(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	s := serveBreakable(t, "--drain-delay-seconds", "3600")
	s.stop()
	waitFor(t, "it is not ready any more", func() bool {
		resp, err := http.Get("http://" + s.addr + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 503
	})
	s.store.fail(errors.New("fsync: input/output error"))
	if err := s.ended(t); err == nil || !strings.Contains(err.Error(), "store failed: fsync: input/output error") {
		t.Errorf("ended with %v", err)
	}
}

// TestStoreCannotBeClosed: neither is a last sync that failed.
func TestStoreCannotBeClosed(t *testing.T) {
	s := serveBreakable(t)
	s.store.closeErr = errors.New("fsync: input/output error")
	s.stop()
	if err := s.ended(t); err == nil || !strings.Contains(err.Error(), "closing the store: fsync: input/output error") {
		t.Errorf("ended with %v", err)
	}
}

// TestDeletionsAreAuditedAtEveryLevel: an operator that wants few lines in the log still
// gets the one that says who deleted what.
func TestDeletionsAreAuditedAtEveryLevel(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	s := serveBreakable(t, "--log-level", "error")
	if status, body := post(t, s.addr, "/v1/ledger/reserve", `{"key":"k","scope":"s","token":"t"}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	req, err := http.NewRequest("DELETE", "http://"+s.addr+"/v1/ledger/entries/k?scope=s", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Fatalf("deletion: %d", resp.StatusCode)
	}
	s.stop()
	if err := s.ended(t); err != nil {
		t.Error(err)
	}
	for _, want := range []string{`"msg":"entry deleted by an administrator"`, `"scope":"s","key":"k","state":"pending"`} {
		if !strings.Contains(s.stderr.String(), want) {
			t.Errorf("the log lacks %s: %s", want, s.stderr)
		}
	}
	if strings.Contains(s.stderr.String(), `"level":"INFO"`) {
		t.Errorf("the level has no effect: %s", s.stderr)
	}
}

// TestReferenceListsEveryMetric: the reference names the metrics of a manager
// with a log, those of the job queue apart, and no others. The same for flags.
func TestReferenceListsEveryMetric(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference", "LEDGER.md"))
	if err != nil {
		t.Fatal(err)
	}
	s := serveStore(t, nil, "--store", "wal", "--data-dir", t.TempDir(), "--admin", "127.0.0.1:0")
	_, metrics := get(t, s.admin, "/metrics")
	names := func(pattern string, text []byte) []string {
		var found []string
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			found = append(found, string(m[1]))
		}
		slices.Sort(found)
		return slices.Compact(found)
	}
	documented := names("`(oncegate_(?:http|ledger|state|wal)_[a-z_]+)`", text)
	there := names(`(?m)^# HELP (oncegate_(?:http|ledger|state|wal)_[a-z_]+) `, []byte(metrics))
	if !slices.Equal(documented, there) || len(there) < 20 {
		t.Errorf("documented are\n%s\nthere are\n%s", strings.Join(documented, "\n"), strings.Join(there, "\n"))
	}
	flags := new(strings.Builder)
	settings.Help(flags)
	for _, flag := range names("`(--[a-z-]+)`", text) {
		if !strings.Contains(flags.String(), "  "+flag+"\n") {
			t.Errorf("there is no flag %s", flag)
		}
	}
	s.stop()
	if err := s.ended(t); err != nil {
		t.Error(err)
	}
}

// TestNoLogIsNoHealthyLog: a directory that was mistyped is not reported as fine.
func TestNoLogIsNoHealthyLog(t *testing.T) {
	for _, command := range []string{"verify", "dump", "stats"} {
		env, stdout, stderr := testEnv(nil)
		code := Run(t.Context(), env, []string{"wal", command, "--data-dir", t.TempDir()})
		if code != 1 || stdout.Len() != 0 || !strings.Contains(stderr.String(), "no log in this directory") {
			t.Errorf("%s: exit code %d, %s %s", command, code, stdout, stderr)
		}
	}
}

// scrubbed is a store whose updates wait while it rewrites its files, which takes until its context ends.
type scrubbed struct {
	*breakable
	begun chan struct{}
	busy  sync.RWMutex
}

func (s *scrubbed) Update(ctx context.Context, fn func(store.Tx) error) error {
	s.busy.RLock()
	defer s.busy.RUnlock()
	return s.breakable.Update(ctx, fn)
}

func (s *scrubbed) Capabilities() store.Capabilities {
	c := s.breakable.Capabilities()
	c.Scrub = s.scrub
	return c
}

func (s *scrubbed) scrub(ctx context.Context, _ func(context.Context) error) error {
	s.busy.Lock()
	defer s.busy.Unlock()
	close(s.begun)
	<-ctx.Done()
	return ctx.Err()
}

// TestStopEndsAScrub: a manager that is stopped does not let its callers wait until the store has rewritten its
// files. It answers them, and ends in order.
func TestStopEndsAScrub(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	st := &scrubbed{breakable: &breakable{Store: mem.New(mem.Options{}), failed: make(chan struct{})}, begun: make(chan struct{})}
	s := serveStore(t, st, "--encryption-key-file", keyFile(t), "--admin", "127.0.0.1:0")
	<-st.begun
	status := make(chan int, 1)
	go func() {
		resp, err := http.Post("http://"+s.addr+"/v1/ledger/reserve", "application/json", strings.NewReader(`{"key":"k","token":"t"}`))
		if err != nil {
			status <- 0
			return
		}
		resp.Body.Close()
		status <- resp.StatusCode
	}()
	waitFor(t, "the request waits", func() bool {
		_, text := get(t, s.admin, "/metrics")
		return strings.Contains(text, "\noncegate_http_requests_in_flight 1\n")
	})
	s.stop()
	if err := s.ended(t); err != nil {
		t.Errorf("ended with %v", err)
	}
	if got := <-status; got != 201 {
		t.Errorf("the request got %d", got)
	}
}

// When the store has failed, nothing is answered from it any more, and the program ends with exit code 1.
func TestFailedStoreEndsTheProcess(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	s := serveBreakable(t, "--drain-delay-seconds", "3600")
	if status, body := post(t, s.addr, "/v1/ledger/reserve", `{"key":"k","token":"t"}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	// A request that is held keeps the server up while the test looks at it.
	held := make(chan struct{})
	go func() {
		defer close(held)
		resp, err := http.Post("http://"+s.addr+"/v1/ledger/reserve", "application/json", strings.NewReader(`{"key":"k","token":"u","wait_ms":30000}`))
		if err == nil {
			resp.Body.Close()
		}
	}()
	s.store.fail(fmt.Errorf("%w: fsync: input/output error", store.ErrFailed))
	if err := s.ended(t); err == nil || !strings.Contains(err.Error(), "fsync: input/output error") {
		t.Errorf("ended with %v", err)
	}
	<-held
	if !strings.Contains(s.stderr.String(), `"msg":"store failed, stopping"`) {
		t.Errorf("the log does not say so: %s", s.stderr)
	}
	if c, err := net.Dial("tcp", s.addr); err == nil {
		c.Close()
		t.Error("it still listens")
	}
}

// TestStartFailuresReleaseEverything: whatever goes wrong at start, nothing is
// left; goleak looks at the end.
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
