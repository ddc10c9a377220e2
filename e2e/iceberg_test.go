package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// lossyFront is a load balancer before the gate. If lose is set it loses the next answer to a commit, and sends the request
// once more by itself.
type lossyFront struct {
	next http.Handler
	lose atomic.Bool
	keys atomic.Int64 // commits that had a key
}

func (f *lossyFront) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/tables/t") {
		if r.Header.Get("Idempotency-Key") != "" {
			f.keys.Add(1)
		}
		if f.lose.Swap(false) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			again := r.Clone(r.Context())
			again.Body = io.NopCloser(bytes.NewReader(body))
			f.next.ServeHTTP(httptest.NewRecorder(), again)
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
	}
	f.next.ServeHTTP(w, r)
}

// Iceberg's own client appends to a table while answers get lost, before and after the catalog has committed, before and
// after the gate. No file is committed twice, and none of a committed snapshot is deleted: the client takes what the gate
// does not know for unknown, never for failed. The catalog does not say that it supports keys; the gate does.
func TestIcebergClientLosesNothing(t *testing.T) {
	deep.Only(t)
	library, err := filepath.Abs(filepath.Join("..", "build", "iceberg"))
	if err != nil {
		t.Fatal(err)
	}
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		cmd := exec.CommandContext(t.Context(), "java", "-cp", filepath.Join(library, "*"), filepath.Join("testdata", "iceberg", "Iceberg.java"))
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		cmd.Stderr = &log
		if err := cmd.Start(); err != nil {
			t.Fatal(err, ": run make build/iceberg")
		}
		lines := bufio.NewScanner(out)
		say := func(format string, args ...any) string {
			t.Helper()
			if format != "" {
				fmt.Fprintf(in, format+"\n", args...)
			}
			if !lines.Scan() {
				t.Fatalf("the program ended: %v\n%s", cmd.Wait(), &log)
			}
			return lines.Text()
		}
		port := say("")
		s := &stack{dir: t.TempDir(), target: target, mode: mode, paymentsAddr: "127.0.0.1:" + port, plugin: map[string]any{"protocol": "iceberg", "mode": mode}}
		s.stopAtEnd(t)
		s.startManager(t)
		envoy, err := url.Parse(s.startProxy(t).url(""))
		if err != nil {
			t.Fatal(err)
		}
		front := &lossyFront{next: &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(envoy); r.Out.Host = host }}}
		server := httptest.NewServer(front)
		t.Cleanup(server.Close)

		snapshots := 0
		for _, c := range []struct {
			fault   string
			lose    bool
			commits int
			want    string // how the client's result begins
		}{
			{"none", false, 1, "committed"},
			{"none", true, 1, "committed"}, // the front's second try gets the first answer
			{"busy", false, 1, "committed"},
			{"busy", true, 1, "committed"},
			{"after", false, 1, "committed"}, // the client looks into the table, and finds its snapshot there
			{"after", true, 1, "committed"},
			{"before", false, 0, "CommitStateUnknownException"},
			{"before", true, 0, "CommitStateUnknownException"},
			{"none", false, 1, "committed"},
		} {
			front.lose.Store(c.lose)
			got := say("append %s %s", server.URL, c.fault)
			snapshots += c.commits
			state := say("check")
			if want := fmt.Sprintf("snapshots %d twice 0 missing 0", snapshots); !strings.HasPrefix(got, c.want) || state != want {
				t.Errorf("%s, lost %v: the client says %.200s, want %s...; the catalog %s, want %s", c.fault, c.lose, got, c.want, state, want)
			}
		}
		if front.keys.Load() == 0 {
			t.Error("no commit had a key")
		}
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, &log)
		}
	})
}
