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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/managertest"
)

// lossy is a way to a manager that loses the first answer of each call that can be repeated. The manager has done it.
type lossy struct {
	proxy *httputil.ReverseProxy
	mu    sync.Mutex
	lost  map[string]bool
}

func (l *lossy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	// A claim whose answer is lost is not repeated: its job comes back when its lease ends.
	lose := r.Method == http.MethodPost && r.URL.Path != "/v1/jobs/claim" && !l.lost[r.URL.Path]
	l.lost[r.URL.Path] = l.lost[r.URL.Path] || lose
	l.mu.Unlock()
	if lose {
		l.proxy.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}
	l.proxy.ServeHTTP(w, r)
}

// TestProgramsRunOnce runs each program against a manager whose answers get lost. Each submits one job and executes once.
func TestProgramsRunOnce(t *testing.T) {
	for name, command := range map[string]func(t *testing.T) []string{
		"curl":       func(*testing.T) []string { return []string{"bash", "once.sh"} },
		"python":     func(*testing.T) []string { return []string{"python3", "once.py"} },
		"java":       func(*testing.T) []string { return []string{"java", "-XX:TieredStopAtLevel=1", "Once.java"} },
		"typescript": compile,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := command(t)
			m := managertest.Start(t, managertest.Options{})
			target, err := url.Parse(m.URL)
			if err != nil {
				t.Fatal(err)
			}
			way := &lossy{proxy: httputil.NewSingleHostReverseProxy(target), lost: map[string]bool{}}
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
				if !way.lost[path] {
					t.Errorf("no answer of %s got lost", path)
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
