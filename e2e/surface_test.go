package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// What a client and an operator see of the gate besides the answers.

// newSurface is a stack whose upstream is the test's and whose Envoy is configured further
// by edit.
func newSurface(t *testing.T, target envoyTarget, mode string, plugin map[string]any, upstream http.HandlerFunc, edit func(*hcmv3.HttpConnectionManager) error) *stack {
	t.Helper()
	server := httptest.NewServer(upstream)
	t.Cleanup(server.Close)
	s := &stack{dir: t.TempDir(), target: target, mode: mode, plugin: plugin, edit: edit, paymentsAddr: server.Listener.Addr().String()}
	s.stopAtEnd(t)
	s.startManager(t)
	s.startProxy(t)
	return s
}

// One host has one scope, however a client writes it.
func TestHostsAreNormalized(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := sharedStack(t, target, mode)
		p := s.proxies[0]
		key := newKey()
		c := pay(key)
		c.host = "pay.test:8443"
		first := wantFirst(t, p, c, 201)
		for _, c.host = range []string{"pay.test", "PAY.test:443", "pay.test.", "pay.test.:443"} {
			wantReplay(t, p, c, first)
		}
		s.wantExecutions(t, key, 1)
		c.host = "other.test"
		wantFirst(t, p, c, 201)
	})
}

// Content types of RPCs are no way around the gate: what cannot be protected is refused where a key is present or required,
// and marked and counted where a route lets it pass.
func TestGRPC(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		var runs atomic.Int64
		s := newSurface(t, target, mode, map[string]any{
			"match": []any{
				map[string]any{"path_prefix": "/free/required", "key": map[string]any{"required": true}, "unsupported": "pass"},
				map[string]any{"path_prefix": "/free", "unsupported": "pass"},
				map[string]any{"path_prefix": "/required", "key": map[string]any{"required": true}},
				map[string]any{},
			},
		}, func(w http.ResponseWriter, r *http.Request) {
			runs.Add(1)
			w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
			w.Header().Set("Grpc-Status", "0")
		}, nil)
		p := s.proxies[0]
		h2 := new(http.Protocols)
		h2.SetUnencryptedHTTP2(true)
		transport := &http.Transport{Protocols: h2}
		defer transport.CloseIdleConnections()
		call := func(path, key, media string) *http.Response {
			req, err := http.NewRequestWithContext(t.Context(), "POST", p.url(path), strings.NewReader("\x00\x00\x00\x00\x00"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header = http.Header{"Content-Type": {media}, "Te": {"trailers"}}
			if key != "" {
				req.Header.Set("Idempotency-Key", key)
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			return resp
		}
		refused, bypassed, passed := 0, 0, 0
		for _, media := range []string{"application/grpc", "application/grpc+proto", "application/grpc-web", "application/grpc-web-text+proto", "Application/gRPC-Web; x=y"} {
			for _, c := range []struct{ path, key, want string }{
				{"/p.Pay/Do", newKey(), "refused"},
				{"/p.Pay/Do", "", "passed"},
				{"/required/p.Pay/Do", "", "refused"},
				{"/required/p.Pay/Do", newKey(), "refused"},
				{"/free/required/p.Pay/Do", "", "bypassed"},
				{"/free/p.Pay/Do", newKey(), "bypassed"},
				{"/free/p.Pay/Do", "", "passed"},
			} {
				resp := call(c.path, c.key, media)
				h := resp.Header
				status, code := h.Get("Idempotency-Status"), resp.StatusCode
				switch c.want {
				case "passed":
					passed++
					if status != "" || h.Get("Grpc-Status") != "0" {
						t.Errorf("%s %s %q: %d %v; want it passed", media, c.path, c.key, code, h)
					}
				case "bypassed":
					bypassed++
					if status != "bypassed" || h.Get("Grpc-Status") != "0" {
						t.Errorf("%s %s %q: %d %v; want it passed and marked", media, c.path, c.key, code, h)
					}
				default:
					refused++
					// Envoy makes gRPC of an answer to gRPC; gRPC-Web and unusual spellings get a problem.
					rpc := h.Get("Grpc-Status") == "12" && strings.Contains(h.Get("Grpc-Message"), "unsupported-protocol") && code == 200
					problem := h.Get("Content-Type") == "application/problem+json" && code == 400
					if status != "unsupported-protocol" || !rpc && !problem || rpc != (media == "application/grpc" || media == "application/grpc+proto") {
						t.Errorf("%s %s %q: %d %v; want it refused", media, c.path, c.key, code, h)
					}
				}
			}
		}
		if n := int(runs.Load()); n != bypassed+passed {
			t.Errorf("%d calls were executed, want %d", n, bypassed+passed)
		}
		p.awaitMetric(t, "oncegate_gate_requests_unsupported_total", refused)
		p.awaitMetric(t, "oncegate_gate_requests_bypass_total", bypassed)
	})
}

func TestWebSocketsPass(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newSurface(t, target, mode, map[string]any{
			"match": []any{map[string]any{"methods": []string{"GET"}, "path_prefix": "/free", "unsupported": "pass"}, map[string]any{"methods": []string{"GET"}}},
		}, func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		}, func(hcm *hcmv3.HttpConnectionManager) error {
			hcm.UpgradeConfigs = []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}}
			return nil
		})
		for _, c := range []struct {
			path, key, status string
			code              int
		}{
			{"/", "Idempotency-Key: k\r\n", "unsupported-protocol", 400},
			{"/", "", "", 101},
			{"/free", "Idempotency-Key: k\r\n", "bypassed", 101},
		} {
			conn := dial(t, s.proxies[0])
			fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n%s\r\n", c.path, c.key)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != c.code || resp.Header.Get("Idempotency-Status") != c.status {
				t.Errorf("%s %q: %d %v", c.path, c.key, resp.StatusCode, resp.Header)
			}
			conn.Close()
		}
	})
}

// The access log shows what became of each request, also where no answer went out.
func TestAccessLogNamesTheDecision(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		target.alone = true // the log is written when the Envoy ends
		arrived := make(chan struct{}, 1)
		s := newSurface(t, target, mode, map[string]any{
			"match":                   []any{map[string]any{"path_prefix": "/open", "failure_mode": "open"}, map[string]any{}},
			"max_response_body_bytes": 1000, "pending_wait_timeout": 0.1, "pending_ttl_seconds": 3600,
			"client_abort": "cancel", "manager": refusing()["manager"],
		}, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // until then the server does not notice who leaves
			switch r.URL.Path {
			case "/hang":
				arrived <- struct{}{}
				<-r.Context().Done()
			case "/drop":
				panic(http.ErrAbortHandler)
			case "/large":
				_, _ = w.Write(make([]byte, 2000))
			}
		}, nil)
		p := s.proxies[0]
		post := func(path, key string) {
			c := pay(key)
			c.path = path
			send(t, p, c)
		}
		// leave sends a request and goes away when it has arrived.
		leave := func(path string, arrived func()) {
			conn := dial(t, p)
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nIdempotency-Key: k\r\n\r\n{}", path)
			arrived()
			conn.Close()
		}
		want := map[string][]string{} // by path: "status flags details idempotency"
		post("/twice", "k")
		post("/twice", "k")
		want["/twice"] = []string{"200 - via_upstream executed", "200 - oncegate_replayed replayed"}
		post("/invalid", "a,b")
		want["/invalid"] = []string{"400 - oncegate_invalid-key invalid-key"}
		post("/large", "k")
		post("/large", "k")
		want["/large"] = []string{"200 - via_upstream executed", "410 - oncegate_answer-not-recorded answer-not-recorded"}
		post("/drop", "k")
		post("/drop", "k")
		want["/drop"] = []string{
			"503 UC upstream_reset_before_response_started{connection_termination} unknown", "409 - oncegate_outcome-unknown outcome-unknown",
		}
		leave("/hang", func() { <-arrived })
		want["/hang"] = []string{"0 DC downstream_remote_disconnect unknown"}
		if a := send(t, p, call{path: "/keyless"}); a.status != 200 {
			t.Errorf("%v", a)
		}
		want["/keyless"] = []string{"200 - via_upstream <nil>"}
		s.manager.kill()
		post("/closed", "k")
		post("/open", "k")
		want["/closed"] = []string{"503 - oncegate_manager-unavailable manager-unavailable"}
		want["/open"] = []string{"200 - via_upstream bypassed"}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
		got := map[string][]string{}
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, line := range p.lines {
			var l map[string]any
			if json.Unmarshal([]byte(line), &l) == nil && l["path"] != nil {
				path := l["path"].(string)
				got[path] = append(got[path], fmt.Sprintf("%v %v %v %v", l["status"], l["flags"], l["details"], l["idempotency"]))
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("the access log has\n%v, want\n%v", got, want)
		}
	})
}
