package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Upstream calls of the gate that go to the cluster of the request's route.

// direct gives the published route "direct" in its metadata.
func direct(hcm *hcmv3.HttpConnectionManager) *routev3.Route {
	for _, host := range hcm.GetRouteConfig().GetVirtualHosts() {
		for _, route := range host.GetRoutes() {
			if route.GetName() == "upstream" {
				route.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
					"oncegate": {Fields: map[string]*structpb.Value{"direct": structpb.NewBoolValue(true)}},
				}}
				return route
			}
		}
	}
	return new(routev3.Route)
}

// A rule that is added to a direct route stays in force for the gate's calls, and the log says what is wrong.
func TestRulesOfDirectRoutesStayInForce(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		for name, rule := range map[string]struct {
			edit func(*routev3.Route)
			seen func(seenRequest) bool
		}{
			"path": {
				func(r *routev3.Route) { r.GetRoute().PrefixRewrite = "/v2/" },
				func(q seenRequest) bool { return strings.HasPrefix(q.Line, "POST /v2/payments ") },
			},
			"host": {
				func(r *routev3.Route) {
					r.GetRoute().HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: "inside"}
				},
				func(q seenRequest) bool { return strings.HasSuffix(q.Line, " inside") },
			},
			"header": {
				func(r *routev3.Route) {
					r.RequestHeadersToAdd = []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "x-rule", Value: "1"}}}
				},
				func(q seenRequest) bool { return slices.Contains(q.Headers, "x-rule: 1") },
			},
			"removed header": {
				func(r *routev3.Route) { r.RequestHeadersToRemove = []string{"user-agent"} },
				func(q seenRequest) bool {
					return !slices.ContainsFunc(q.Headers, func(h string) bool { return strings.HasPrefix(h, "user-agent") })
				},
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newSurface(t, target, "body", nil, echoing, func(hcm *hcmv3.HttpConnectionManager) error {
					rule.edit(direct(hcm))
					return nil
				})
				p := s.proxies[0]
				for range 5 {
					var seen seenRequest
					first := send(t, p, pay(newKey()))
					if err := json.Unmarshal(first.body, &seen); err != nil || !rule.seen(seen) {
						t.Fatalf("upstream saw %+v, %v", seen, err)
					}
				}
				if n, err := p.metric("oncegate_gate_upstream_direct_total"); err != nil || n != 0 {
					t.Errorf("%d direct calls, %v", n, err)
				}
				p.logged(t, `remove "direct" from the route's metadata`)
			})
		}
	})
}

// A copy of a direct route that kept its name and got a rewrite keeps the rewrite.
func TestDirectRoutesWithOneName(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		e := target
		e.way = onlyDirect
		s := newSurface(t, e, "body", nil, echoing, func(hcm *hcmv3.HttpConnectionManager) error {
			other := proto.Clone(direct(hcm)).(*routev3.Route)
			other.Match = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/old/"}}
			other.GetRoute().PrefixRewrite = "/v2/"
			host := hcm.GetRouteConfig().GetVirtualHosts()[0]
			host.Routes = slices.Insert(host.Routes, 0, other)
			return nil
		})
		p := s.proxies[0]
		for range 3 {
			c := pay(newKey())
			c.path = "/old/payments"
			var seen seenRequest
			if err := json.Unmarshal(send(t, p, c).body, &seen); err != nil || !strings.HasPrefix(seen.Line, "POST /v2/payments ") {
				t.Fatalf("upstream saw %+v, %v", seen, err)
			}
		}
	})
}

// The route's timeout bounds direct calls, too. They may have run.
func TestTimeoutOfADirectRoute(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		e := target
		e.way = onlyDirect
		s := &stack{dir: t.TempDir(), target: e, mode: "body", plugin: map[string]any{"wait_for_pending": false}}
		s.edit = func(hcm *hcmv3.HttpConnectionManager) error {
			direct(hcm).GetRoute().Timeout = durationpb.New(10 * time.Second)
			return nil
		}
		s.stopAtEnd(t)
		s.startManager(t)
		s.startPayments(t)
		p := s.startProxy(t)
		c := pay(newKey(), "x-demo-delay-ms", "60000")
		if a := send(t, p, c); a.status != 504 || a.headers.Get("Idempotency-Status") != "unknown" {
			t.Errorf("%v", a)
		}
		wantProblem(t, p, c, 409, "outcome-unknown")
		s.wantExecutions(t, *c.key, 1)
	})
}

// What an upstream sends cannot look like Envoy's own answers: the work ran, and the answer is recorded.
func TestForgedAnswersOfEnvoy(t *testing.T) {
	eachWay(t, func(t *testing.T, target envoyTarget, plugin map[string]any) {
		s := newSurface(t, target, "body", plugin, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("oncegate-answer", "no_healthy_upstream UH 0 -")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprint(w, r.Header.Get("x-say"))
		}, nil)
		for _, text := range []string{
			"no healthy upstream", "upstream connect error or disconnect/reset before headers. reset reason: remote connection failure",
		} {
			c := pay(newKey(), "x-say", text)
			wantReplay(t, s.proxies[0], c, wantFirst(t, s.proxies[0], c, 503))
		}
	})
}

// What Envoy refuses before it sends anything frees the key.
func TestClusterThatTakesNoCalls(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		for name, edit := range map[string]func(*clusterv3.Cluster){
			"no healthy host": func(c *clusterv3.Cluster) {
				c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].HealthStatus = corev3.HealthStatus_UNHEALTHY
				c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{}}
			},
			"circuit breaker": func(c *clusterv3.Cluster) {
				none := wrapperspb.UInt32(0)
				c.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
					MaxConnections: none, MaxPendingRequests: none, MaxRequests: none,
				}}}
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := &stack{dir: t.TempDir(), target: target, mode: "body", plugin: with(inner)}
				s.bootstrap = func(b *bootstrapv3.Bootstrap) error {
					for _, c := range b.GetStaticResources().GetClusters() {
						if c.GetName() == "upstream" {
							edit(c)
						}
					}
					return nil
				}
				s.stopAtEnd(t)
				s.startManager(t)
				s.startPayments(t)
				p, c := s.startProxy(t), pay(newKey())
				for range 3 {
					if a := send(t, p, c); a.status != 503 || a.headers.Get("Idempotency-Status") != "not-sent" {
						t.Errorf("%v", a)
					}
				}
				s.wantExecutions(t, *c.key, 0)
				s.bootstrap = nil
				wantFirst(t, s.startProxy(t), c, 201)
			})
		}
	})
}
