package cli

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
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
	bin, err := managerBinary()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(bin, append([]string{"serve", "--listen", "unix:" + path}, args...)...), stderr: new(output), exited: make(chan struct{})}
	p.cmd.Stderr = p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(p.kill)
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

	// Another one is told that the place is taken, and takes nothing away.
	env, _, stderr := testEnv(nil)
	code := Run(t.Context(), env, []string{"serve", "--store", "memory", "--listen", "unix:" + path})
	if want := fmt.Sprintf("oncegate serve: --listen %q: a program listens there already\n", "unix:"+path); code != 2 || stderr.String() != want {
		t.Errorf("exit code %d\n got %swant %s", code, stderr, want)
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
	env, stdout, stderr := testEnv(map[string]string{managerURLEnv: "unix:" + path})
	if code := Run(t.Context(), env, []string{"ledger", "list"}); code != 0 || !strings.Contains(stdout.String(), "pending") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr)
	}
	for _, file := range []string{path, admin} {
		if _, err := os.Lstat(file); err == nil {
			t.Errorf("%s is left behind", file)
		}
	}
}

// TestSocketMistakesAreTold: one line and exit code 2, and what is there stays.
func TestSocketMistakesAreTold(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	datagram, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "gram"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer datagram.Close()
	const longestPath = len(syscall.RawSockaddrUnix{}.Path) - 1
	long := dir + "/" + strings.Repeat("x", longestPath-len(dir))
	for _, c := range []struct{ args, want string }{
		{"--listen unix:", `--listen "unix:": must be unix: and the path of a file`},
		{"--listen unix:@name", `--listen "unix:@name": must be unix: and the path of a file`},
		{"--listen unix:" + long, fmt.Sprintf(`--listen "unix:%s": the path must have at most %d bytes, it has %d`, long, longestPath, longestPath+1)},
		{"--listen unix:" + dir + "/none/s", fmt.Sprintf(`--listen "unix:%[1]s/none/s": the path must be in a directory that exists; stat %[1]s/none: no such file or directory`, dir)},
		{"--listen unix:" + file, fmt.Sprintf(`--listen "unix:%s": must be the path of a new file, or of a socket that nobody uses; something else is there`, file)},
		{"--listen unix:" + dir + "/gram", fmt.Sprintf(`--listen "unix:%s/gram": must be the path of a new file, or of a socket that nobody uses; something else is there`, dir)},
		{"--listen unix:" + dir + "/s --admin unix:" + dir + "/s", fmt.Sprintf(`--admin "unix:%s/s": a program listens there already`, dir)},
		{"--listen unix:" + dir + "/s --socket-mode 1777", `--socket-mode "1777": must be an octal number from 0 to 777`},
		{"--listen unix:" + dir + "/s --socket-mode rw", `--socket-mode "rw": must be an octal number from 0 to 777`},
	} {
		env, _, stderr := testEnv(nil)
		code := Run(t.Context(), env, append([]string{"serve", "--store", "memory", "--log-level", "error"}, strings.Fields(c.args)...))
		if want := "oncegate serve: " + c.want + "\n"; code != 2 || stderr.String() != want {
			t.Errorf("%s: exit code %d\n got %swant %s", c.args, code, stderr, want)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("%q %v", b, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "s")); err == nil {
		t.Error("a manager that did not start left its socket")
	}
}
