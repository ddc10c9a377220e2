package cli

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/app"
	"github.com/oncegate/oncegate/manager/internal/settings"
)

// sendHangup is SIGHUP for a manager in this process. One that is not taken yet stands for all that follow, as with the signal.
func (s *served) sendHangup() {
	select {
	case s.hangup <- syscall.SIGHUP:
	default:
	}
}

// TestStopWhileStarting: with every engine, what is stopped before it
// serves ends as if it had served.
func TestStopWhileStarting(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	dir := t.TempDir()
	s := serveStore(t, nil, "--store", "wal", "--data-dir", filepath.Join(dir, "wal"))
	if status, body := post(t, s.addr, "/v1/ledger/reserve", `{"key":"k","token":"t"}`); status != 201 { // so that there is something to recover
		t.Fatalf("%d %s", status, body)
	}
	s.stop()
	if err := s.ended(t); err != nil {
		t.Fatal(err)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range []string{
		"--data-dir " + filepath.Join(dir, "wal"), "--store sqlite --data-dir " + filepath.Join(dir, "sqlite"), "--store memory",
		"--store redis --store-dsn redis://127.0.0.1:1", "--store postgres --store-dsn postgres://u:p@127.0.0.1:1/d",
		"--store etcd --store-dsn http://127.0.0.1:1",
	} {
		env, _, stderr := testEnv(nil)
		code := Run(stopped, env, strings.Fields("serve --listen 127.0.0.1:0 "+args))
		if code != 0 || !strings.Contains(stderr.String(), `"msg":"stopping"`) {
			t.Errorf("%s: exit code %d, %s", args, code, stderr)
		}
	}
}

// TestHangupWhileStarting: what was asked for before it served is done then.
func TestHangupWhileStarting(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("first-token-of-20-bytes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		`"msg":"tokens reloaded"`: {"--auth-token-file", file}, `"msg":"SIGHUP has no effect: there are no files of tokens, roles or certificates"`: nil,
	} {
		stderr := new(output)
		s, err := settings.Parse(noEnv, append([]string{"--store", "memory", "--listen", "127.0.0.1:0"}, args...))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		hangup := make(chan os.Signal, 1)
		hangup <- syscall.SIGHUP
		done := make(chan error, 1)
		go func() { done <- app.Run(ctx, app.Options{Version: "test", Settings: s, Log: stderr, Hangup: hangup}) }()
		waitFor(t, want, func() bool { return strings.Contains(stderr.String(), want) })
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
