package e2e

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/doctor"
)

// socketClient speaks HTTP with whatever listens on a Unix socket.
func socketClient(t testing.TB, path string) *http.Client {
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// ask makes one call and returns the status, 0 without an answer, and the answer.
func ask(c *http.Client, path, body string) (int, string) {
	method := "POST"
	if body == "" {
		method = "GET"
	}
	req, err := http.NewRequest(method, "http://manager"+path, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

// startOnSocket starts a manager on a Unix socket and waits until it is ready.
func startOnSocket(t testing.TB, path string, args ...string) *process {
	t.Helper()
	p := spawn(t, environ(nil).command(t, append([]string{"serve", "--listen", "unix:" + path}, args...)...))
	c := socketClient(t, path)
	waitFor(t, "the manager is ready", func() bool {
		select {
		case <-p.exited:
			t.Fatalf("it ended: %s", p.stderr)
		default:
		}
		status, _ := ask(c, "/readyz", "")
		return status == 200
	})
	return p
}

// Life on a Unix socket, kill -9 and the restart included.
func TestManagerServesOnAUnixSocket(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, admin := filepath.Join(dir, "api.sock"), filepath.Join(dir, "admin.sock")
	args := []string{"--data-dir", filepath.Join(dir, "data"), "--admin", "unix:" + admin}
	p := startOnSocket(t, path, args...)
	for _, file := range []string{path, admin} {
		if info, err := os.Lstat(file); err != nil || info.Mode() != fs.ModeSocket|0o660 {
			t.Errorf("%v %v", info, err)
		}
	}
	want := fmt.Sprintf(`"listener":"api","addr":"unix:%s"`, path)
	waitFor(t, "the log has "+want, func() bool { return strings.Contains(p.stderr.String(), want) })
	if status, body := ask(socketClient(t, path), "/v1/ledger/reserve", `{"key":"k","token":"t"}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	if status, body := ask(socketClient(t, admin), "/metrics", ""); status != 200 || !strings.Contains(body, "oncegate_wal_fsync_duration_seconds_count") {
		t.Errorf("metrics: %d %.200s", status, body)
	}
	// A client that leaves while it is held is noticed here as well.
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		req, _ := http.NewRequestWithContext(ctx, "POST", "http://manager/v1/ledger/reserve", strings.NewReader(`{"key":"k","token":"u","wait_ms":3600000}`))
		if resp, err := socketClient(t, path).Do(req); err == nil {
			resp.Body.Close()
		}
	}()
	waiters := func(n string) func() bool {
		return func() bool {
			_, body := ask(socketClient(t, admin), "/metrics", "")
			return strings.Contains(body, "oncegate_ledger_waiters "+n+"\n")
		}
	}
	waitFor(t, "the reserve is held", waiters("1"))
	leave()
	<-left
	waitFor(t, "the reserve is given up", waiters("0"))

	// Another manager gets the error that the address is taken, and removes nothing.
	code, out := oncegate(t, "serve", "--store", "memory", "--listen", "unix:"+path)
	if want := fmt.Sprintf("oncegate serve: --listen %q: a program listens there already\n", "unix:"+path); code != 2 || out != want {
		t.Errorf("exit code %d\n got %swant %s", code, out, want)
	}
	if status, body := ask(socketClient(t, path), "/v1/ledger/reserve", `{"key":"k","token":"t"}`); status != 201 {
		t.Errorf("%d %s", status, body)
	}

	p.kill()
	if _, err := os.Lstat(path); err != nil {
		t.Fatalf("the test shows nothing: %v", err)
	}
	p = startOnSocket(t, path, args...)
	if status, body := ask(socketClient(t, path), "/v1/ledger/reserve", `{"key":"k","token":"u"}`); status != 202 {
		t.Errorf("after the restart: %d %s", status, body)
	}
	if code, out := (environ{"ONCEGATE_MANAGER_URL=unix:" + path}).oncegate(t, "ledger", "list"); code != 0 || !strings.Contains(out, "pending") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if code, found, errs := examine(t, "--manager", "unix:"+path, "--metrics", "unix:"+admin); code != 0 || !has(found, doctor.OK, "manager: alarms", "") {
		t.Errorf("the doctor: exit code %d, %s: %+v", code, errs, found)
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr)
	}
	for _, file := range []string{path, admin} {
		if _, err := os.Lstat(file); err == nil {
			t.Errorf("%s is still there", file)
		}
	}
}
