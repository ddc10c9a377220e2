package gatetest

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
)

// Routes of the proxy that let the gate's upstream calls go to their clusters ("direct" in their metadata).

var directly = map[string][]byte{"xds.route_metadata.filter_metadata.oncegate.direct": {1}}

// carriedBy sends a request with a new key and returns its call.
func carriedBy(t *testing.T, r *Rig, b *backend, q Request) (*Exchange, backendCall) {
	t.Helper()
	n := b.count()
	q.Key, q.Body = fmt.Sprintf("k%d", n), "b"
	x := r.Send(q)
	return x, b.await(t, n)
}

// ended answers a call and waits for its client's answer.
func ended(t *testing.T, x *Exchange, c backendCall, answer hostsim.CallResponse) {
	t.Helper()
	c.answer(answer)
	want(t, "status", x.Response().Status, answer.Headers.Get(":status"))
}

func said(words string) hostsim.CallResponse {
	return upstream(200, "ok", "oncegate-answer: via_upstream - 1 192.0.2.1:80 "+words)
}

const plainRoute = "300 - 335 15000 route-cluster api.test /payments"

func TestCallsGoDirectlyWhereTheRouteHasNoRules(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r, b := abortRig(t, guest, Options{Config: `{"mode":"body","client_abort":"continue","upstream":{"cluster":"routes","timeout_ms":60000}}`})
		send := func(q Request, cluster string) {
			t.Helper()
			x, c := carriedBy(t, r, b, q)
			want(t, "cluster", c.Cluster, cluster)
			answer := upstream(200, "ok")
			if cluster == "routes" {
				answer = said(plainRoute)
			} else {
				want(t, "timeout", c.Timeout, 15*time.Second)
			}
			ended(t, x, c, answer)
		}
		send(Request{}, "routes")
		send(Request{Properties: directly}, "routes")
		send(Request{Properties: directly}, "route-cluster")
		send(Request{Properties: map[string][]byte{"xds.route_metadata.filter_metadata.oncegate.direct": {0}}}, "routes")
		send(Request{}, "routes")
		// A client that the proxy trusts has set another timeout.
		send(Request{Properties: directly, Headers: []string{"x-envoy-upstream-rq-timeout-ms: 1"}}, "routes")
		send(Request{Properties: directly}, "route-cluster")
		// From time to time the gate looks again.
		r.Clock.Advance(11 * time.Second)
		send(Request{Properties: directly}, "routes")
		send(Request{Properties: directly}, "route-cluster")
		want(t, "counted", r.Metric("oncegate_gate_upstream_direct_total"), 3)

		// The answer to a direct call says nothing about itself that the gate would believe.
		x, c := carriedBy(t, r, b, Request{Properties: directly})
		want(t, "cluster", c.Cluster, "route-cluster")
		ended(t, x, c, upstream(503, "no healthy upstream", "oncegate-answer: no_healthy_upstream UH 0 -"))
		want(t, "mark", x.Response().Header("idempotency-status"), "executed")
	})
}

func TestRulesKeepCallsFromGoingDirectly(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for name, words := range map[string]string{
			"path":               "300 - 335 15000 route-cluster api.test /v2/payments",
			"host":               "300 - 335 15000 route-cluster inside /payments",
			"header":             "300 - 345 15000 route-cluster api.test /payments",
			"removed header":     "300 - 330 15000 route-cluster api.test /payments",
			"header, timeout":    "300 9999 302 15000 route-cluster api.test /payments",
			"other cluster":      "300 - 335 15000 other-cluster api.test /payments",
			"no words":           "",
			"half of them":       "300 - 335",
			"no bytes before":    "- - 335 15000 route-cluster api.test /payments",
			"path with a blank":  "300 - 335 15000 route-cluster api.test /payments x",
			"bytes out of range": "300 - 99999999999999999999 15000 route-cluster api.test /payments",
		} {
			t.Run(name, func(t *testing.T) {
				r, b := abortRig(t, guest, Options{Config: `{"mode":"body","client_abort":"continue","upstream":{"cluster":"routes"}}`})
				send := func(words, cluster string) {
					t.Helper()
					x, c := carriedBy(t, r, b, Request{Properties: directly})
					want(t, "cluster", c.Cluster, cluster)
					ended(t, x, c, said(words))
				}
				send(words, "routes")
				// Rules may concern some requests only.
				send(plainRoute, "routes")
				send(plainRoute, "routes")
				r.Clock.Advance(61 * time.Second)
				send(plainRoute, "routes")
				send(plainRoute, "route-cluster")
				r.Clock.Advance(11 * time.Second)
				send(words, "routes")
				send(plainRoute, "routes")
			})
		}
	})
}

// Routes without a timeout, and timeouts that a filter before the rules has seen.
func TestTimeoutsOfDirectCalls(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for words, timeout := range map[string]time.Duration{
			"300 - 300 - route-cluster api.test /payments":         60 * time.Second,
			"335 60000 335 15000 route-cluster api.test /payments": 15 * time.Second,
			"335 60000 335 60000 route-cluster api.test /payments": 60 * time.Second,
			"300 - 337 9900000 route-cluster api.test /payments":   60 * time.Second,
			"335 60000 334 1500 route-cluster api.test /payments":  1500 * time.Millisecond,
		} {
			r, b := abortRig(t, guest, Options{Config: `{"mode":"body","client_abort":"continue","upstream":{"cluster":"routes","timeout_ms":60000}}`})
			x, c := carriedBy(t, r, b, Request{Properties: directly})
			ended(t, x, c, said(words))
			x, c = carriedBy(t, r, b, Request{Properties: directly})
			want(t, "cluster", c.Cluster, "route-cluster")
			want(t, words, c.Timeout, timeout)
			ended(t, x, c, upstream(200, "ok"))
		}
	})
}

// If the answers about rules do not come, the calls go through the inner listener again.
func TestDirectCallsNeedNews(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r, b := abortRig(t, guest, Options{Config: `{"mode":"body","client_abort":"continue","upstream":{"cluster":"routes","timeout_ms":600000}}`})
		x, c := carriedBy(t, r, b, Request{Properties: directly})
		ended(t, x, c, said(plainRoute))
		for range 5 {
			r.Clock.Advance(11 * time.Second)
			_, c = carriedBy(t, r, b, Request{Properties: directly})
			want(t, "cluster", c.Cluster, "routes")
			x, c = carriedBy(t, r, b, Request{Properties: directly})
			want(t, "cluster", c.Cluster, "route-cluster")
			ended(t, x, c, upstream(200, "ok"))
		}
		r.Clock.Advance(6 * time.Second)
		_, c = carriedBy(t, r, b, Request{Properties: directly})
		want(t, "cluster", c.Cluster, "routes")
	})
}

// Two routes with one name may have different rules, so what the gate knows of one says nothing about the other.
func TestRoutesWithOneName(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		host := func(name string) map[string][]byte {
			p := maps.Clone(directly)
			p["xds.virtual_host_name"] = []byte(name)
			return p
		}
		for name, other := range map[string]Request{
			"other path":         {Path: "/v2/payments", Properties: host("a")},
			"other method":       {Method: "PATCH", Path: "/payments", Properties: host("a")},
			"other virtual host": {Path: "/payments", Properties: host("b")},
		} {
			t.Run(name, func(t *testing.T) {
				r, b := abortRig(t, guest, Options{Config: `{"mode":"body","client_abort":"continue","upstream":{"cluster":"routes"}}`})
				first := Request{Path: "/payments?page=1", Properties: host("a")}
				send := func(q Request, words, cluster string) {
					t.Helper()
					x, c := carriedBy(t, r, b, q)
					want(t, "cluster", c.Cluster, cluster)
					ended(t, x, c, said(words))
				}
				send(first, "300 - 335 15000 route-cluster api.test /payments?page=1", "routes")
				send(Request{Path: "/payments?page=2", Properties: host("a")}, "", "route-cluster")
				send(other, "300 - 335 15000 route-cluster api.test /rewritten", "routes")
				send(other, "300 - 335 15000 route-cluster api.test /rewritten", "routes")
				if name == "other virtual host" {
					send(first, "", "route-cluster")
					return
				}
				// A rule on one path makes the gate distrust all that the name stands for.
				send(first, "300 - 335 15000 route-cluster api.test /payments?page=1", "routes")
				send(first, "300 - 335 15000 route-cluster api.test /payments?page=1", "routes")
			})
		}
	})
}

// A filter of the inner listener that refuses requests must not be bypassed.
func TestRefusalsKeepCallsFromGoingDirectly(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for said, direct := range map[string]bool{
			"rbac_access_denied_matched_policy[none] - 0 -": false,
			"ext_authz_denied UAEX - -":                     false,
			"route_not_found NR 0 -":                        false,
			"no_healthy_upstream UH 0 -":                    true,
			"upstream_reset_before_response_started{connection_failure} UF 1 192.0.2.1:80": true,
		} {
			t.Run(said, func(t *testing.T) {
				r, b := abortRig(t, guest, Options{Config: `{"mode":"body","client_abort":"continue","upstream":{"cluster":"routes"}}`})
				send := func(answer hostsim.CallResponse, cluster string) {
					t.Helper()
					x, c := carriedBy(t, r, b, Request{Properties: directly})
					want(t, "cluster", c.Cluster, cluster)
					ended(t, x, c, answer)
				}
				plain := upstream(200, "ok", "oncegate-answer: via_upstream - 1 192.0.2.1:80 "+plainRoute)
				send(plain, "routes")
				send(plain, "route-cluster")
				r.Clock.Advance(11 * time.Second)
				send(upstream(503, "no", "oncegate-answer: "+said+" "+plainRoute), "routes")
				if direct {
					send(plain, "route-cluster")
				} else {
					send(plain, "routes")
					send(plain, "routes")
				}
			})
		}
	})
}

// Many paths take turns in a bounded memory.
func TestPathsOfDirectRoutesAreBounded(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r, b := abortRig(t, guest, Options{Config: `{"mode":"body","client_abort":"continue","upstream":{"cluster":"routes"}}`})
		send := func(path, cluster string) {
			t.Helper()
			x, c := carriedBy(t, r, b, Request{Path: path, Properties: directly})
			want(t, "cluster", c.Cluster, cluster)
			ended(t, x, c, said("300 - 335 15000 route-cluster api.test "+path))
		}
		for i := range 64 {
			send(fmt.Sprintf("/payments/%d", i), "routes")
		}
		send("/payments/63", "route-cluster")
		for range 3 {
			send("/refunds", "routes")
		}
		r.Clock.Advance(61 * time.Second)
		send("/refunds", "routes")
		send("/refunds", "route-cluster")
	})
}
