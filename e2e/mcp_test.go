package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
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

	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// mcpFront is a load balancer before the gate. It may lose the next answer to a payment, after its first bytes.
type mcpFront struct {
	next http.Handler

	mu sync.Mutex
	// lose is how many bytes of the next answer the client gets; -1: all.
	lose int
	ids  map[string]bool // of payments, as JSON
}

// begin loses the next answer. It returns how many ids the payments had since the last time.
func (f *mcpFront) begin(lose int) (ids int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids = len(f.ids)
	f.lose, f.ids = lose, map[string]bool{}
	return ids
}

func (f *mcpFront) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var message struct {
		ID     json.RawMessage
		Params struct{ Name string }
	}
	if json.Unmarshal(body, &message) != nil || message.Params.Name != "pay" {
		f.next.ServeHTTP(w, r)
		return
	}
	f.mu.Lock()
	lose := f.lose
	f.lose = -1
	f.ids[string(message.ID)] = true
	f.mu.Unlock()
	if lose < 0 {
		f.next.ServeHTTP(w, r)
		return
	}
	whole := httptest.NewRecorder()
	f.next.ServeHTTP(whole, r)
	if lose > 0 {
		w.Header().Set("Content-Type", whole.Header().Get("Content-Type"))
		w.WriteHeader(whole.Code)
		_, _ = w.Write(whole.Body.Bytes()[:lose])
		_ = http.NewResponseController(w).Flush()
	}
	panic(http.ErrAbortHandler)
}

// A client of the MCP's own SDK calls a tool again, with another id, after the answer got lost. The tool ran once, and the
// client takes the replay for the answer to its second call.
func TestMCPClient(t *testing.T) {
	deep.Only(t)
	library, err := filepath.Abs(filepath.Join("..", "build", "mcp", "node_modules"))
	if err != nil {
		t.Fatal(err)
	}
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		cmd := exec.CommandContext(t.Context(), "node", filepath.Join("testdata", "mcp", "mcp.js"))
		cmd.Env = append(os.Environ(), "NODE_PATH="+library, "NO_PROXY=*")
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
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		answer := func() string {
			t.Helper()
			if !lines.Scan() {
				t.Fatalf("the program ended (run make build/mcp): %v\n%s", cmd.Wait(), &log)
			}
			return lines.Text()
		}
		say := func(want, format string, args ...any) {
			t.Helper()
			command := fmt.Sprintf(format, args...)
			_, _ = fmt.Fprintln(in, command)
			if got := answer(); !strings.HasPrefix(got, want) {
				t.Errorf("%s: %s, want %s...", command, got, want)
			}
		}
		s := &stack{dir: t.TempDir(), target: target, mode: "body", paymentsAddr: "127.0.0.1:" + answer(), plugin: map[string]any{
			"protocol": "jsonrpc", "mode": "body",
			"match": []any{map[string]any{"path": "/json"}, map[string]any{"path": "/events", "key": map[string]any{"json_path": "params._meta.idempotency-key"}}},
		}}
		s.stopAtEnd(t)
		s.startManager(t)
		envoy, err := url.Parse(s.startProxy(t).url(""))
		if err != nil {
			t.Fatal(err)
		}
		front := &mcpFront{next: &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(envoy); r.Out.Host = host }}}
		server := httptest.NewServer(front)
		t.Cleanup(server.Close)

		for _, kind := range []string{"json", "events"} {
			address := server.URL + "/" + kind
			say("connected", "connect a %s", address)
			for _, n := range []int{0, 1, 60} {
				key := fmt.Sprintf("%s-%d", kind, n)
				front.begin(n)
				say("error ", "pay a %s 5 plain", key)
				say("paid 5, run 1 of "+key, "pay a %s 5 plain", key)
				say("error 422 ", "pay a %s 6 plain", key)
				// A client that starts again has a session of its own.
				say("connected", "connect b %s", address)
				say("paid 5, run 1 of "+key, "pay b %s 5 plain", key)
				say("its own", "session b")
				say("1", "runs %s", key)
				if ids := front.begin(-1); ids < 3 {
					t.Errorf("%s: the payments had %d ids", key, ids)
				}
			}
			key := kind + "-cut"
			say("error ", "pay a %s 5 cut", key)
			say("error 409 ", "pay a %s 5 cut", key)
			say("1", "runs %s", key)
		}
		// In events, the tool may ask the client's user. A replay does not ask again.
		for range 2 {
			say("paid 5, run 1 of asked", "pay a asked 5 ask")
			say("1", "asked")
		}
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, &log)
		}
	})
}
