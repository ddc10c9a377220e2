package cli

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long a test waits for what must happen. Only a failure takes that long.
const patience = 3 * time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noEnv is an environment without variables.
func noEnv(string) (string, bool) { return "", false }

// testEnv is an environment with these variables, and what a command writes in it.
func testEnv(vars map[string]string) (Environment, *bytes.Buffer, *bytes.Buffer) {
	var stdout, stderr bytes.Buffer
	return Environment{Stdout: &stdout, Stderr: &stderr, Getenv: func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}}, &stdout, &stderr
}

// output is what a manager in this process wrote. A test may read it meanwhile.
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

// readAddresses reads a file of --addr-file: addresses by listener, nil while there is no file.
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

func waitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
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
