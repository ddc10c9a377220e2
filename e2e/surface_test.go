package e2e

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// What a client and an operator see of the gate, beyond answers that are right.

// newSurface is a stack whose upstream is the test's and whose Envoy is configured further
// by edit.
func newSurface(t *testing.T, target Target, mode string, plugin map[string]any, upstream http.HandlerFunc, edit func(*hcmv3.HttpConnectionManager) error) *stack {
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
	eachMode(t, func(t *testing.T, target Target, mode string) {
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

// What a gRPC client sees of a call that the gate refuses, and of one that a route lets pass.
func TestGRPC(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target Target, mode string) {
		var runs atomic.Int64
		s := newSurface(t, target, mode, map[string]any{
			"match": []any{map[string]any{"path_prefix": "/free", "unsupported": "pass"}, map[string]any{}},
		}, func(w http.ResponseWriter, r *http.Request) {
			runs.Add(1)
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Grpc-Status", "0")
		}, nil)
		h2 := new(http.Protocols)
		h2.SetUnencryptedHTTP2(true)
		transport := &http.Transport{Protocols: h2}
		defer transport.CloseIdleConnections()
		call := func(path, key string) *http.Response {
			req, err := http.NewRequestWithContext(t.Context(), "POST", s.proxies[0].url(path), strings.NewReader("\x00\x00\x00\x00\x00"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}
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
		for range 2 {
			h := call("/p.Pay/Do", newKey()).Header
			if h.Get("Grpc-Status") != "12" || !strings.Contains(h.Get("Grpc-Message"), "unsupported-protocol") || h.Get("Content-Type") != "application/grpc" {
				t.Errorf("refused with %v", h)
			}
		}
		if n := runs.Load(); n != 0 {
			t.Errorf("%d refused calls were executed", n)
		}
		if h := call("/p.Pay/Do", "").Header; h.Get("Grpc-Status") != "0" || h.Get("Idempotency-Status") != "" {
			t.Errorf("without a key: %v", h)
		}
		if h := call("/free/p.Pay/Do", newKey()).Header; h.Get("Grpc-Status") != "0" || h.Get("Idempotency-Status") != "bypassed" {
			t.Errorf("let pass: %v", h)
		}
	})
}

func TestWebSocket(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target Target, mode string) {
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
