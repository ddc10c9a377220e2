package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"

	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_metadata/v3" // for protojson
)

// What a route's settings make of keys, fingerprints, outcomes and the upstream's headers, in real Envoys.

// askedUpstream answers as the request asks it to: with the status x-status, and with the headers
// whose names the request has after x-reply-. The body of its answer is what the request was.
type askedUpstream struct {
	address string

	mu    sync.Mutex
	count int
}

// seen is the body of an askedUpstream's answer.
type seen struct {
	Count   int
	Path    string
	Headers http.Header
	Body    string
}

func newAskedUpstream(t *testing.T) *askedUpstream {
	u := new(askedUpstream)
	server := serveBoth(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		u.mu.Lock()
		u.count++
		n := u.count
		u.mu.Unlock()
		for name, values := range r.Header {
			if name, ok := strings.CutPrefix(name, "X-Reply-"); ok {
				w.Header()[name] = values
			}
		}
		status := http.StatusCreated
		if asked, err := strconv.Atoi(r.Header.Get("X-Status")); err == nil {
			status = asked
		}
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(seen{n, r.URL.RequestURI(), r.Header, string(body)})
	}))
	u.address = server.Listener.Addr().String()
	t.Cleanup(server.Close)
	return u
}

// newAskedStack starts a proxy before an askedUpstream.
func newAskedStack(t *testing.T, target envoyTarget, mode string, plugin map[string]any) *stack {
	t.Helper()
	s := &stack{dir: t.TempDir(), target: target, mode: mode, plugin: plugin, paymentsAddr: newAskedUpstream(t).address}
	s.stopAtEnd(t)
	s.startManager(t)
	s.startProxy(t)
	return s
}

func (a answer) seen(t *testing.T) (s seen) {
	t.Helper()
	if err := json.Unmarshal(a.body, &s); err != nil {
		t.Fatalf("%v: %v", a, err)
	}
	return s
}

func TestUpstreamDecidesTheOutcome(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newAskedStack(t, target, mode, map[string]any{
			"outcome_header": "oncegate-outcome",
			"match":          []any{map[string]any{"path_prefix": "/v2/", "outcomes": map[string]any{"release": []string{"5xx"}}}, map[string]any{}},
		})
		p := s.proxies[0]
		said := func(outcome string) call { return pay(newKey(), "x-reply-oncegate-outcome", outcome) }
		hidden := func(a answer) answer {
			if v := a.headers.Values("oncegate-outcome"); len(v) > 0 {
				t.Errorf("the client sees the outcome: %v", a)
			}
			return a
		}
		for _, outcome := range []string{"commit", "reject", "something"} {
			c := said(outcome)
			wantReplay(t, p, c, hidden(wantFirst(t, p, c, 201)))
		}
		c := said("release")
		hidden(wantFirst(t, p, c, 201))
		wantFirst(t, p, c, 201)
		c = said("hold")
		hidden(wantFirst(t, p, c, 201))
		wantProblem(t, p, c, 409, "outcome-unknown")

		c = pay(newKey(), "x-status", "500")
		wantReplay(t, p, c, wantFirst(t, p, c, 500))
		c.path = "/v2/payments"
		wantFirst(t, p, c, 500)
		delete(c.headers, "x-status")
		wantReplay(t, p, c, wantFirst(t, p, c, 201))
	})
}

func TestFingerprintSettings(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		fingerprint := map[string]any{"body": "none", "query": []string{"currency"}, "headers": []string{"x-tenant"}}
		if mode == "body" {
			fingerprint = map[string]any{"body": "canonical_json", "exclude": []string{"sent_at", "meta.id"}, "query": []string{"currency"}, "headers": []string{"x-tenant"}}
		}
		s := newAskedStack(t, target, mode, map[string]any{"fingerprint": fingerprint, "scope_secret": "0123456789abcdef"})
		p := s.proxies[0]
		c := pay(newKey(), "x-tenant", "a")
		c.path, c.body = "/payments?trace=1&currency=eur", `{"amount": 100.0, "sent_at": 1, "meta": {"id": "a"}}`
		first := wantFirst(t, p, c, 201)
		c.path, c.body = "/payments?currency=eur", `{"meta":{},"sent_at":123456789,"amount":1e2}`
		wantReplay(t, p, c, first)
		c.path = "/payments?currency=usd"
		wantProblem(t, p, c, 422, "fingerprint-mismatch")
		c.path = "/payments?currency=eur"
		c.headers["x-tenant"] = "b"
		wantProblem(t, p, c, 422, "fingerprint-mismatch")
		c.headers["x-tenant"] = "a"
		if mode == "body" {
			for _, body := range []string{`{"meta":{},"amount":101}`, `{"meta":{},"amount":100,"amount":100}`, `{"meta":{},"amount":100`} {
				c.body = body
				wantProblem(t, p, c, 422, "fingerprint-mismatch")
			}
		}
	})
}

func TestUpstreamGetsToKnowTheReservation(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newAskedStack(t, target, mode, map[string]any{
			"outcome_header": "oncegate-outcome",
			"forward": map[string]any{
				"key_header": "x-provider-key", "attempt_header": "x-attempt", "token_header": "x-token", "scope_header": "x-scope",
			},
		})
		p := s.proxies[0]
		forged := []string{"x-provider-key", "forged", "x-attempt", "1", "x-token", "forged", "x-scope", "forged"}
		key := newKey()
		c := pay(`"`+key+`"`, append(forged, "x-reply-oncegate-outcome", "hold")...)
		first := wantFirst(t, p, c, 201).seen(t)
		sent := func(name string) string {
			t.Helper()
			values := first.Headers.Values(name)
			if len(values) != 1 || values[0] == "forged" {
				t.Fatalf("%s: %v", name, first.Headers)
			}
			return values[0]
		}
		if got := sent("x-provider-key"); got != key {
			t.Errorf("the key is %q", got)
		}
		if n, err := strconv.ParseInt(sent("x-attempt"), 10, 64); err != nil || n < 1e15 {
			t.Errorf("attempt %d: %v", n, err)
		}
		wantProblem(t, p, c, 409, "outcome-unknown")
		// Upstream settles what it held, with what it got.
		commit, err := json.Marshal(map[string]any{
			"key": key, "scope": sent("x-scope"), "token": sent("x-token"),
			"result": map[string]any{"status": 200, "headers": [][2]string{{"x-settled", "yes"}}, "body": []byte("settled")},
		})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the manager does not take the outcome", func() error {
			resp, err := client.Post("http://"+s.managerAddr+"/v1/ledger/commit", "application/json", bytes.NewReader(commit))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				text, err := io.ReadAll(resp.Body)
				return fmt.Errorf("%s: %s: %w", resp.Status, text, err)
			}
			return nil
		})
		eventually(t, "the outcome does not arrive", func() error {
			if a := send(t, p, c); a.status != 200 || string(a.body) != "settled" || !a.replayed() {
				return fmt.Errorf("%v", a)
			}
			return nil
		})

		// A request that the router carries gets them, too.
		h := wantFirst(t, p, pay(newKey(), append(forged, "Accept", "text/event-stream")...), 201).seen(t).Headers
		if len(h.Values("x-token")) != 1 || len(h.Get("x-token")) != 32 || h.Get("x-scope") != sent("x-scope") || h.Get("x-attempt") <= sent("x-attempt") {
			t.Errorf("the router's request: %v", h)
		}
		c = pay("", forged...)
		c.key = nil
		if h := wantFirst(t, p, c, 201).seen(t).Headers; len(h.Values("x-token"))+len(h.Values("x-provider-key"))+len(h.Values("x-attempt"))+len(h.Values("x-scope")) != 0 {
			t.Errorf("without a key: %v", h)
		}
	})
}

// A key with blanks is one key, in quotes and bare, in the ledger and for the upstream.
func TestKeysWithBlanks(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newAskedStack(t, target, mode, map[string]any{"forward": map[string]any{"key_header": "x-key"}})
		p := s.proxies[0]
		key := newKey() + ` "a"  b`
		quoted := `"` + strings.ReplaceAll(key, `"`, `\"`) + `";v=1`
		first := wantFirst(t, p, pay(quoted), 201)
		if got := first.seen(t).Headers.Get("x-key"); got != key {
			t.Errorf("the upstream got the key %q, want %q", got, key)
		}
		wantReplay(t, p, pay(quoted), first)
		wantReplay(t, p, pay(key), first)
		resp, err := client.Get("http://" + s.managerAddr + "/v1/ledger/entries?key=" + url.QueryEscape(key))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var page struct{ Entries []struct{ Key, State string } }
		if err := json.NewDecoder(resp.Body).Decode(&page); err != nil || len(page.Entries) != 1 || page.Entries[0].Key != key {
			t.Errorf("the ledger has %+v, %v", page, err)
		}
	})
}

// Keys whose parts come from several sources. Instead of the claim there is metadata that another filter takes from a
// header: the gate reads both in the same way.
func TestKeysFromSeveralSources(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		sources := []string{"header:idempotency-key", "jwt:payload.sub", "metadata:test:tenant", "cookie:session", "path:1", "query:currency?"}
		if mode == "body" {
			sources = append(sources, "json:order.id")
		}
		s := &stack{dir: t.TempDir(), target: target, mode: mode, paymentsAddr: newAskedUpstream(t).address, plugin: map[string]any{
			"key":       map[string]any{"sources": sources, "format": "pattern", "pattern": "key-*"},
			"forward":   map[string]any{"key_header": "x-joined"},
			"anonymous": "shared", // the cookie is in the key
		}}
		s.edit = func(hcm *hcmv3.HttpConnectionManager) error {
			filter := new(hcmv3.HttpFilter)
			if err := protojson.Unmarshal([]byte(`{"name": "claims", "typed_config": {
				"@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config", "metadata": [
				{"metadata_namespace": "envoy.filters.http.jwt_authn", "value": {"payload": {"sub": "alice, b"}}},
				{"metadata_namespace": "test", "value": {"tenant": "t"}}]}}`), filter); err != nil {
				return err
			}
			hcm.HttpFilters = append([]*hcmv3.HttpFilter{filter}, hcm.GetHttpFilters()...)
			return nil
		}
		s.stopAtEnd(t)
		s.startManager(t)
		s.startProxy(t)
		p := s.proxies[0]
		key := newKey()
		c := pay(key, "Cookie", "x=1; session=s")
		c.path, c.body = "/v1/payments?currency=eur", `{"order": {"id": 7}}`
		first := wantFirst(t, p, c, 201)
		joined := key + ",alice%2C%20b,t,s,payments,eur"
		if mode == "body" {
			joined += ",7"
		}
		if got := first.seen(t).Headers.Get("x-joined"); got != joined {
			t.Errorf("the key is %q, want %q", got, joined)
		}
		wantReplay(t, p, c, first)
		c.headers["Cookie"] = "session=other"
		wantFirst(t, p, c, 201)
		delete(c.headers, "Cookie")
		wantProblem(t, p, c, 400, "key-required")
		other := "other"
		c.key = &other
		wantProblem(t, p, c, 400, "invalid-key")
	})
}
