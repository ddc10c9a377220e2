package cli

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/app"
	"github.com/oncegate/oncegate/manager/internal/settings"
)

// sendHangup is SIGHUP for a manager in this process. One that is not taken yet
// stands for all that follow, as with the signal.
func (s *served) sendHangup() {
	select {
	case s.hangup <- syscall.SIGHUP:
	default:
	}
}

// TestSignalsWhileStarting: a manager that still waits for its store survives
// SIGHUP, and SIGTERM ends it in order.
func TestSignalsWhileStarting(t *testing.T) {
	bin, err := managerBinary()
	if err != nil {
		t.Fatal(err)
	}
	// A database that takes the connection and then says nothing.
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	p := &process{stderr: new(output), exited: make(chan struct{})}
	p.cmd = exec.Command(bin, "serve", "--listen", "127.0.0.1:0", "--store", "postgres",
		"--store-dsn", "postgres://u:p@"+mute.Addr().String()+"/d?sslmode=disable")
	p.cmd.Stderr = p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(p.kill)
	if err := mute.(*net.TCPListener).SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	c, err := mute.Accept()
	if err != nil {
		t.Fatalf("%v: %s", err, p.stderr)
	}
	defer c.Close()
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if code := p.stop(t); code != 0 || p.err != nil {
		t.Errorf("exit code %d, %v: %s", code, p.err, p.stderr)
	}
	if got := p.stderr.String(); !strings.Contains(got, `"msg":"stopping"`) || strings.Contains(got, "cancel") {
		t.Errorf("it said %s", got)
	}
}

// TestStopWhileStarting: with every engine, what is told to stop before it
// serves ends as if it had served.
func TestStopWhileStarting(t *testing.T) {
	dir := t.TempDir()
	p := startManager(t, "--data-dir", filepath.Join(dir, "wal"))
	post(t, p.addr["api"], "/v1/ledger/reserve", `{"key":"k","token":"t"}`)
	p.kill() // so that there is something to recover
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
		`"msg":"tokens reloaded"`: {"--auth-token-file", file}, `"msg":"SIGHUP has no effect: neither --auth-token-file nor --tls-cert nor --admin-tls-cert nor --peer-token-file is set"`: nil,
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

// TestSilentClientsDoNotFailTheStop: a request of which only a part has come is
// nothing that a stop could cut off.
func TestSilentClientsDoNotFailTheStop(t *testing.T) {
	p := startManager(t, "--store", "memory", "--read-timeout-seconds", "3600")
	c, err := net.Dial("tcp", p.addr["api"])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "POST /v1/ledger/reserve HTTP/1.1\r\nhost: x\r\n"); err != nil {
		t.Fatal(err)
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr)
	}
}
