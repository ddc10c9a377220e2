package cluster

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	root = "../.."
	// patience ends what hangs on a busy machine. Nothing is measured with it.
	patience = 5 * time.Minute
	// tick is how often something is looked at that cannot be waited for.
	tick = 50 * time.Millisecond
)

// built is a program of `make build/cluster` or `make build`, as an absolute path.
func built(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(root, "build", name))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v: run `make build build/cluster`", err)
	}
	return path
}

// process is a program that runs until the test ends.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed after err is set
	err  error
}

// start runs a program in an environment with the variables of env, and ends it with the test. The end of its log is a part of a failed
// test's output.
func start(t *testing.T, env []string, name, path string, args ...string) *process {
	t.Helper()
	p, err := startProcess(env, filepath.Join(t.TempDir(), "log"), path, args...)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	p.name = name
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("%s (%v):\n%s", name, p.err, p.tail())
		}
	})
	return p
}

// startProcess runs it in the folder of its log.
func startProcess(env []string, log, path string, args ...string) (*process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	p := &process{name: filepath.Base(path), cmd: exec.Command(path, args...), log: log, done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env = filepath.Dir(log), append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		out.Close()
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		out.Close()
		close(p.done)
	}()
	return p, nil
}

// stop ends the process, by force if it takes its time.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-6000):])
}

// await waits until ok returns nil, and fails with its last error if the process ends before or nothing happens for long.
func (p *process) await(t *testing.T, what string, ok func(context.Context) error) {
	t.Helper()
	if err := p.until(t.Context(), ok); err != nil {
		t.Fatalf("%s: %s: %v", p.name, what, err)
	}
}

func (p *process) until(ctx context.Context, ok func(context.Context) error) error {
	return poll(ctx, p.done, ok)
}

// await waits until ok returns nil.
func await(t *testing.T, what string, ok func(context.Context) error) {
	t.Helper()
	if err := poll(t.Context(), nil, ok); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func poll(ctx context.Context, ended <-chan struct{}, ok func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := ok(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("it has ended: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(tick):
		}
	}
}

// answers is nil if a GET has status 200.
func answers(client *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", url, resp.Status)
		}
		return nil
	}
}

// givenPorts are the ports that freePort has returned.
var givenPorts sync.Map

// freePort is below the ports that outgoing connections get, so that none takes it before its server does.
func freePort(t *testing.T) string {
	t.Helper()
	for range 1000 {
		port := strconv.Itoa(15_000 + rand.IntN(15_000))
		if _, given := givenPorts.LoadOrStore(port, true); given {
			continue
		}
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return ""
}

// output runs a command to its end and returns what it prints to stdout.
func output(ctx context.Context, dir string, env []string, path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w\n%s%s", err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// moduleDir is the source of a module that the module in a folder needs, with files that are no Go.
func moduleDir(t *testing.T, in, module string) string {
	t.Helper()
	dir, err := output(t.Context(), in, nil, "go", "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(dir)
}
