package http

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/managertest"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// lossy is a way to a manager with trouble: see troubles. It counts the calls of each path that can be repeated.
type lossy struct {
	proxy *httputil.ReverseProxy
	mu    sync.Mutex
	calls map[string]int
}

// troubles are what happens to the first calls of a path, in order.
var troubles = []func(*lossy, http.ResponseWriter, *http.Request){
	// The manager has done it, and its answer is lost.
	func(l *lossy, _ http.ResponseWriter, r *http.Request) {
		l.proxy.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	},
	// A proxy on the way does not reach the manager. Its answer is not JSON.
	func(_ *lossy, w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no healthy upstream", http.StatusServiceUnavailable)
	},
	// The first attempt is still running.
	func(_ *lossy, w http.ResponseWriter, _ *http.Request) {
		problem := api.Problem{Status: 409, Code: api.CodePending, Title: "Request pending"}
		w.Header().Set("Content-Type", api.ContentTypeProblem)
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(problem.Status)
		_, _ = w.Write(problem.AppendJSON(nil))
	},
	// The answer breaks off.
	func(l *lossy, w http.ResponseWriter, r *http.Request) {
		answer := httptest.NewRecorder()
		l.proxy.ServeHTTP(answer, r)
		w.Header().Set("Content-Length", strconv.Itoa(answer.Body.Len()))
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes()[:answer.Body.Len()/2])
		panic(http.ErrAbortHandler)
	},
}

func (l *lossy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A claim whose answer is lost is not repeated: its job comes back when its lease ends.
	if r.Method != http.MethodPost || r.URL.Path == "/v1/jobs/claim" {
		l.proxy.ServeHTTP(w, r)
		return
	}
	l.mu.Lock()
	n := l.calls[r.URL.Path]
	l.calls[r.URL.Path]++
	l.mu.Unlock()
	if n < len(troubles) {
		troubles[n](l, w, r)
		return
	}
	l.proxy.ServeHTTP(w, r)
}

// TestProgramsRunOnce runs each program against a manager that cannot always be reached, and whose answers get lost. Each submits one job and executes once.
func TestProgramsRunOnce(t *testing.T) {
	for name, command := range map[string]func(t *testing.T) []string{
		"curl":       func(*testing.T) []string { return []string{"bash", "once.sh"} },
		"python":     func(*testing.T) []string { return []string{"python3", "once.py"} },
		"java":       func(*testing.T) []string { return []string{"java", "-XX:TieredStopAtLevel=1", "Once.java"} },
		"typescript": compile,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "java" || name == "typescript" {
				deep.Only(t) // their compilers take long to install and to start
			}
			args := command(t)
			m := managertest.Start(t, managertest.Options{})
			target, err := url.Parse(m.URL)
			if err != nil {
				t.Fatal(err)
			}
			way := &lossy{proxy: httputil.NewSingleHostReverseProxy(target), calls: map[string]int{}}
			server := httptest.NewServer(way)
			defer server.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, args[0], append(args[1:], server.URL, "order-17")...)
			var errs strings.Builder
			cmd.Stderr = &errs
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s%s", err, out, &errs)
			}
			const want = "submitted, replayed: true\nsubmitted, replayed: true\njob: complete attempt 1\nexecuted: {\"paid\":100}\nreplayed: {\"paid\":100}\n"
			if string(out) != want {
				t.Errorf("it printed\n%s%swant\n%s", out, &errs, want)
			}
			resp, err := http.Get(m.URL + "/v1/jobs?function=mail.send")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			var list struct{ Jobs []struct{ State string } }
			if err := json.Unmarshal(body, &list); err != nil || len(list.Jobs) != 1 || list.Jobs[0].State != "complete" {
				t.Errorf("the manager has %s (%v), not one job that is complete", body, err)
			}
			for _, path := range []string{"/v1/jobs", "/v1/ledger/reserve", "/v1/ledger/commit"} {
				if n := way.calls[path]; n <= len(troubles) {
					t.Errorf("%s was called %d times, and met %d troubles", path, n, len(troubles))
				}
			}
		})
	}
}

// compile makes a program of once.ts with the pinned compiler of build/node (make test-deps).
func compile(t *testing.T) []string {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "node", filepath.Join(root, "build/node/node_modules/typescript/bin/tsc"),
		"--strict", "--target", "es2022", "--module", "esnext", "--lib", "es2023,dom", "--outDir", dir, "once.ts")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tsc: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"type": "module"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"node", filepath.Join(dir, "once.js")}
}
