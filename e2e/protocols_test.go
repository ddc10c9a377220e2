package e2e

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

const progress = "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n"

// protocolServer answers calls of all protocols. The body of an answer has the number of the request, unless it is one of
// JSON-RPC.
type protocolServer struct{ count atomic.Int64 }

func (u *protocolServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var call struct{ ID json.RawMessage }
	if err := json.NewDecoder(r.Body).Decode(&call); err != nil && r.URL.Path == "/jsonrpc" {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if r.URL.Path == "/v1/config" {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"defaults":{},"overrides":{}}`)
		return
	}
	n := u.count.Add(1)
	switch asked, err := strconv.Atoi(r.Header.Get("X-Status")); {
	case err == nil:
		w.WriteHeader(asked)
	case r.URL.Path != "/jsonrpc":
		fmt.Fprint(w, n)
	case r.Header.Get("Accept") == "text/event-stream":
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, progress)
		w.(http.Flusher).Flush()
		fmt.Fprintf(w, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%d}\n\n", call.ID, n)
	default:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%d}`, call.ID, n)
	}
}

// Each protocol gets the answers that its specification asks for. gatetest has the whole tables.
func TestProtocols(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		upstream := new(protocolServer)
		server := serveBoth(upstream)
		t.Cleanup(server.Close)
		type protocol struct {
			first, retry   string // bodies of the same request
			other, refusal string // the body of another request, and how its answer begins
			release        bool   // a 500 of the upstream frees the key
		}
		protocols := map[string]protocol{
			"ietf":      {`{"a":1}`, `{"a":1}`, `{"a":1, "b":2}`, `422 {"type":"urn:oncegate:problem:fingerprint-mismatch",`, false},
			"iceberg":   {`{"a":1}`, `{"a":1}`, `{"a":1, "b":2}`, `422 {"error": {"message": "The key was already used for another request.`, false},
			"acp":       {`{"a":1,"b":null}`, `{"b": null, "a": 1.0}`, `{"a":1}`, `422 {"type": "invalid_request", "code": "idempotency_conflict",`, true},
			"ucp":       {`{"a":1}`, `{"a":1}`, `{"a": 1}`, `409 {"code": "idempotency_conflict",`, false},
			"stripe-v1": {`a=1`, `a=1`, `a=2`, `400 {"error": {"type": "idempotency_error",`, false},
			"stripe-v2": {`{"a":1}`, `{"a": 1.0}`, `{"a":2}`, `400 {"error": {"type": "idempotency_error",`, true},
		}
		match := []any{}
		for name, p := range protocols {
			rule := map[string]any{"path_prefix": "/" + name, "protocol": name}
			if mode == "headers" && name != "ietf" && name != "iceberg" {
				// What headers mode can do for a protocol that compares bodies: it compares their lengths.
				rule["mode"], rule["fingerprint"] = "headers", map[string]any{"body": "auto"}
				p.retry, p.other = p.first, p.first+" "
				protocols[name] = p
			}
			match = append(match, rule)
		}
		if mode == "body" {
			match = append(match, map[string]any{"path_prefix": "/jsonrpc", "protocol": "jsonrpc"})
		}
		s := &stack{dir: t.TempDir(), target: target, mode: mode, paymentsAddr: server.Listener.Addr().String(), plugin: map[string]any{"match": match}}
		s.stopAtEnd(t)
		s.startManager(t)
		s.startProxy(t)
		p := s.proxies[0]
		begins := func(what string, a answer, want string) {
			t.Helper()
			if got := strconv.Itoa(a.status) + " " + string(a.body); !strings.HasPrefix(got, want) {
				t.Errorf("%s: got %s, want %s...", what, got, want)
			}
		}
		for name, protocol := range protocols {
			c := pay(newUUID())
			c.path, c.body = "/"+name, protocol.first
			first := wantFirst(t, p, c, 200)
			c.body = protocol.retry
			wantReplay(t, p, c, first)
			c.body = protocol.other
			begins(name, send(t, p, c), protocol.refusal)

			c = pay(newUUID(), "x-status", "500")
			c.path = "/" + name
			wantFirst(t, p, c, 500)
			if !protocol.release {
				if a := send(t, p, c); a.status != 500 || upstreamRan(a) {
					t.Errorf("%s: after a 500: %v", name, a)
				}
				continue
			}
			delete(c.headers, "x-status")
			eventually(t, name+": the 500 does not free the key", func() error {
				if a := send(t, p, c); a.status != 200 {
					return fmt.Errorf("%v", a)
				}
				return nil
			})
		}
		config := pay("")
		config.key, config.method, config.path = nil, "GET", "/v1/config?warehouse=w"
		begins("config", send(t, p, config), `200 {"idempotency-key-lifetime":"PT86400S","defaults":{},"overrides":{}}`)
		if mode != "body" {
			return
		}
		for _, accept := range []string{"application/json", "text/event-stream"} {
			call := func(id int, key string, amount int) call {
				c := pay("", "Accept", accept)
				c.key, c.path = nil, "/jsonrpc"
				c.body = fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"arguments":{"meta":{"idempotency-key":"%s"},"amount":%d}}}`, id, key, amount)
				return c
			}
			key := newKey()
			first := string(wantFirst(t, p, call(1, key, 5), 200).body)
			second := send(t, p, call(2, key, 5))
			if want := strings.Replace(strings.TrimPrefix(first, progress), `"id":1`, `"id":2`, 1); string(second.body) != want || !second.replayed() {
				t.Errorf("%s: got %v, want %q", accept, second, want)
			}
			begins(accept, send(t, p, call(3, key, 6)), `422 {"jsonrpc": "2.0", "id": 3, "error": {"code": -32000, "message": "The key was already used for another request",`)
		}
	})
}

func newUUID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// upstreamRan reports whether an answer is the upstream's own, not a replay or the gate's.
func upstreamRan(a answer) bool { return a.headers.Get("Idempotency-Status") == "executed" }
