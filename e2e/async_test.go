package e2e

import (
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

// A client that prefers respond-async gets 202 at once, and looks up the answer there and at another proxy. A duplicate gets 202
// while the work runs.
func TestClientsPreferAsyncAnswers(t *testing.T) {
	eachWay(t, func(t *testing.T, target envoyTarget, plugin map[string]any) {
		s := newStack(t, target, "body", with(plugin, map[string]any{"lookup": map[string]any{"path": "/lost"}, "respond_async": true}))
		here, there := s.proxies[0], s.startProxy(t)
		accepted := func(p *proxy, c call) call {
			t.Helper()
			a := send(t, p, c)
			if a.status != 202 || string(a.body) != `{"state":"pending"}` || a.headers.Get("Preference-Applied") != "respond-async" || a.headers.Get("Retry-After") == "" {
				t.Fatalf("not accepted: %v", a)
			}
			look := c
			look.method, look.path, look.body = "GET", a.headers.Get("Location"), ""
			return look
		}
		key := newKey()
		c := pay(key, "prefer", "respond-async", "x-demo-delay-ms", "2500")
		look := accepted(here, c)
		if !strings.HasPrefix(look.path, "/lost?path=/payments&method=POST&wait_ms=") {
			t.Errorf("location %s", look.path)
		}
		accepted(here, c)
		accepted(there, c)
		a := send(t, there, look)
		if a.status != 201 || !a.replayed() {
			t.Errorf("looked up at another proxy: %v", a)
		}
		a.headers.Del("Cache-Control")
		wantReplay(t, here, c, a)
		a = send(t, here, look)
		if a.status != 201 || !a.replayed() {
			t.Errorf("looked up: %v", a)
		}
		s.wantExecutions(t, key, 1)

		// Within the wait there is no 202.
		c = pay(newKey(), "prefer", "respond-async, wait=20")
		wantReplay(t, here, c, wantFirst(t, here, c, 201))
	})
}

// A call that fails at once, and one that the proxy refuses: then the router carries the request, and its answer is no 202.
func TestAsyncCallThatFailsAtOnce(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		for cluster, status := range map[string]int{"oncegate_routes": 202, "upstream": 503} {
			s := &stack{dir: t.TempDir(), target: target, mode: "body", plugin: map[string]any{
				"client_abort": "continue", "upstream": map[string]any{"cluster": cluster}, "lookup": map[string]any{"path": "/lost"}, "respond_async": true,
			}}
			s.bootstrap = func(b *bootstrapv3.Bootstrap) error {
				for _, c := range b.GetStaticResources().GetClusters() {
					if c.GetName() == "upstream" {
						c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].HealthStatus = corev3.HealthStatus_UNHEALTHY
						c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{}}
					}
				}
				return nil
			}
			s.stopAtEnd(t)
			s.startManager(t)
			s.startPayments(t)
			p := s.startProxy(t)
			for range 20 {
				c := pay(newKey(), "prefer", "respond-async")
				if a := send(t, p, c); a.status != status || (a.headers.Get("Location") != "") != (status == 202) {
					t.Fatalf("%s: %v", cluster, a)
				}
				look := c
				look.method, look.path, look.body = "GET", "/lost?path=/payments&wait_ms=30000", ""
				wantProblem(t, p, look, 404, "not-found") // the key is free
			}
			p.wantNoTrap(t)
		}
	})
}
