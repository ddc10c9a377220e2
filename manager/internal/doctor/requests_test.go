package doctor

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// parsed reads a recorded answer of Envoy.
func parsed(t *testing.T, name string) object {
	t.Helper()
	var o object
	if err := json.Unmarshal([]byte(file(t, name)), &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// theGate is the gate of the recorded Envoy.
func theGate(dump object) gate { return findGates(dump)[0] }

// configure changes the gate's configuration.
func configure(change func(config object)) func(object) {
	return func(dump object) {
		g := theGate(dump)
		change(g.config)
		text, err := json.Marshal(g.config)
		if err != nil {
			panic(err)
		}
		g.filter.at("configuration")["value"] = string(text)
	}
}

// set gives the gate's configuration a field.
func set(name string, value any) func(object) {
	return configure(func(config object) { config[name] = value })
}

// innerManager is the connection manager of the inner listener.
func innerManager(dump object) object {
	for _, l := range listeners(dump) {
		if l["internal_listener"] != nil {
			return l.all("HttpConnectionManager")[0]
		}
	}
	panic("the dump has no inner listener")
}

// lastRoute is the route to the upstream.
func lastRoute(manager object) object {
	routes := manager.at("route_config").list("virtual_hosts")[0].list("routes")
	return routes[len(routes)-1]
}

// withoutInner removes the inner listener.
func withoutInner(dump object) {
	for _, c := range dump.list("configs") {
		if list, ok := c["static_listeners"].([]any); ok {
			c["static_listeners"] = slices.DeleteFunc(list, func(l any) bool {
				return object(l.(map[string]any)).at("listener")["internal_listener"] != nil
			})
		}
	}
}

// withoutCluster removes a cluster of /clusters.
func withoutCluster(name string) func(object) {
	return func(clusters object) {
		list := clusters["cluster_statuses"].([]any)
		clusters["cluster_statuses"] = slices.DeleteFunc(list, func(c any) bool { return object(c.(map[string]any)).text("name") == name })
	}
}

// secondEndpoint gives the managers' cluster another endpoint, with another port.
func secondEndpoint(clusters object) {
	for _, c := range clusters.list("cluster_statuses") {
		if c.text("name") == "oncegate_manager" {
			var more map[string]any
			text, _ := json.Marshal(c.list("host_statuses")[0])
			_ = json.Unmarshal(text, &more)
			object(more).at("address").at("socket_address")["port_value"] = 18091.0
			c["host_statuses"] = append(c["host_statuses"].([]any), more)
		}
	}
}

// deployment is what a doctor meets: the recorded Envoy with one thing changed, and managers.
type deployment struct {
	dump, clusters func(object) // nil: as recorded
	stats          string       // besides those of a gate that is loaded
	hosts          map[string]http.Handler
	token          string
}

const firstManager, secondManager = "127.0.0.1:18090", "127.0.0.1:18091"

// look runs the doctor. The manager is the endpoint of the managers' cluster, unless hosts say otherwise.
func (d deployment) look(t *testing.T) []Finding {
	t.Helper()
	text := map[string]string{}
	for name, change := range map[string]func(object){"config_dump.json": d.dump, "clusters.json": d.clusters} {
		o := parsed(t, name)
		if change != nil {
			change(o)
		}
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		text[name] = string(b)
	}
	n := admin(t, text["config_dump.json"], text["clusters.json"], "wasmcustom.oncegate_gate_waiters: 0\n"+d.stats, `{"version": "x/1.40.0/Clean", "state": "LIVE"}`)
	n.hosts[firstManager] = aManager{ledger: "L1"}
	maps.Copy(n.hosts, d.hosts)
	if n.hosts["manager"] == nil {
		n.hosts["manager"] = n.hosts[firstManager]
	}
	return Run(t.Context(), Target{Manager: "http://manager", Token: d.token, Envoy: n.URL, Client: n.Client(), Sample: time.Millisecond})
}

// TestEnvoyWhoseRequestsFail: each of these deployments answers requests with keys wrongly, or runs them twice.
func TestEnvoyWhoseRequestsFail(t *testing.T) {
	secured := aManager{ledger: "L1", gate: "gate-token", operator: "operator-token"}
	withToken := func(token string) func(object) {
		return set("manager", map[string]any{"cluster": "oncegate_manager", "auth_token": token})
	}
	other := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	for name, c := range map[string]struct {
		deployment
		level            Level
		check, found, do string
	}{
		"no inner listener": {
			deployment: deployment{dump: withoutInner},
			level:      Fail, check: checkInner, found: `leads to the internal listener "oncegate_routes", which this Envoy does not have`, do: "add the inner listener",
		},
		"inner listener without the route": {
			deployment: deployment{dump: func(dump object) {
				hosts := innerManager(dump).at("route_config").list("virtual_hosts")
				routes := hosts[0]["routes"].([]any)
				hosts[0]["routes"] = routes[:len(routes)-1]
			}},
			level: Fail, check: checkInner, found: `listener "oncegate_routes" has no route to cluster "upstream"`, do: "the same routes",
		},
		"inner listener that takes smaller requests": {
			deployment: deployment{dump: func(dump object) { delete(innerManager(dump), "max_request_headers_kb") }},
			level:      Warn, check: checkLimits, found: "takes requests with 100 headers and 60 kB, and the inner listener \"oncegate_routes\" those with 65535 headers and 60 kB", do: "raise",
		},
		"inner listener whose cluster takes smaller answers": {
			deployment: deployment{dump: func(dump object) {
				for _, c := range dump.all("Cluster") {
					if c.text("name") == "oncegate_routes" {
						delete(c.all("HttpProtocolOptions")[0], "common_http_protocol_options")
					}
				}
			}},
			level: Warn, check: checkLimits, found: `cluster "upstream" takes answers with 100 headers and 60 kB, and cluster "oncegate_routes" those with 100 headers and 60 kB`, do: "raise",
		},
		"inner listener with raised limits outside": {
			deployment: deployment{dump: func(dump object) { theGate(dump).manager["max_request_headers_kb"] = 8192.0 }},
			level:      Warn, check: checkLimits, found: "takes requests with 100 headers and 8192 kB", do: "raise",
		},
		"inner listener without one of the routes": {
			deployment: deployment{dump: func(dump object) {
				hosts := theGate(dump).manager.at("route_config").list("virtual_hosts")
				hosts[0]["routes"] = append(hosts[0]["routes"].([]any), map[string]any{"match": map[string]any{"prefix": "/b"}, "route": map[string]any{"cluster": "b"}})
			}},
			level: Warn, check: checkInner, found: `has no route to cluster "b"`, do: "the same routes",
		},
		"inner listener without its filter": {
			deployment: deployment{dump: func(dump object) {
				m := innerManager(dump)
				m["http_filters"] = m["http_filters"].([]any)[1:]
			}},
			level: Fail, check: checkInner, found: "does not say in oncegate-answer who made an answer", do: "add the filter oncegate_answer",
		},
		"inner listener whose filter says something else": {
			deployment: deployment{dump: func(dump object) {
				innerManager(dump).list("http_filters")[0].walk("", func(_ string, o object) {
					if o["key"] == "oncegate-answer" {
						o["value"] = "%RESPONSE_CODE%"
					}
				})
			}},
			level: Fail, check: checkInner, found: "does not say in oncegate-answer",
		},
		"upstream.cluster misspelt": {
			deployment: deployment{dump: set("upstream", map[string]any{"cluster": "oncegate_routs"})},
			level:      Fail, check: checkInner, found: `upstream.cluster "oncegate_routs" is no cluster of this Envoy`, do: "correct the name",
		},
		"upstream.cluster without a listener": {
			deployment: deployment{dump: set("upstream", map[string]any{"cluster": "upstream"})},
			level:      Warn, check: checkInner, found: `upstream.cluster "upstream" leads to no listener of this Envoy`, do: `"cluster": ""`,
		},
		"wrong token": {
			deployment: deployment{dump: withToken("other"), hosts: map[string]http.Handler{firstManager: secured}, token: "operator-token"},
			level:      Fail, check: checkToken, found: "does not know it: requests with a key get 503", do: "set manager.auth_token",
		},
		"no token": {
			deployment: deployment{hosts: map[string]http.Handler{firstManager: secured}, token: "operator-token"},
			level:      Fail, check: checkToken, found: "has none, and the manager at http://" + firstManager + " asks for one", do: "set manager.auth_token",
		},
		"a token of another role": {
			deployment: deployment{dump: withToken("operator-token"), hosts: map[string]http.Handler{firstManager: secured}},
			level:      Fail, check: checkToken, found: "does not let it make the calls of a gate", do: `the word "gate"`,
		},
		"wrong token where the failure mode is open": {
			deployment: deployment{
				dump:  configure(func(config object) { config["failure_mode"] = "open"; config.at("manager")["auth_token"] = "other" }),
				hosts: map[string]http.Handler{firstManager: secured},
			},
			level: Fail, check: checkToken, found: "requests with a key pass unprotected",
		},
		"wrong token, and endpoints that cannot be reached": {
			deployment: deployment{dump: withToken("other"), hosts: map[string]http.Handler{firstManager: nil, "manager": secured}},
			level:      Fail, check: checkToken, found: "the manager at http://manager does not know it",
		},
		"the right token": {
			deployment: deployment{dump: withToken("gate-token"), hosts: map[string]http.Handler{firstManager: secured}},
			level:      OK, check: checkToken, found: "managers take its calls",
		},
		"calls that were refused": {
			deployment: deployment{stats: "cluster.oncegate_manager.upstream_rq_401: 3\n"},
			level:      Warn, check: checkAnswers, found: `cluster "oncegate_manager" answered 3 calls with 401`, do: "set manager.auth_token",
		},
		"managers that failed": {
			deployment: deployment{stats: "cluster.oncegate_manager.upstream_rq_5xx: 3\n"},
			level:      Warn, check: checkAnswers, found: "3 calls with 5xx", do: "look at the managers' logs",
		},
		"requests that passed": {
			deployment: deployment{stats: "wasmcustom.oncegate_gate_requests_bypass_total: 2\n"},
			level:      Warn, check: checkCounters, found: "requests pass without protection (2 since",
		},
		"requests without a manager": {
			deployment: deployment{stats: "wasmcustom.oncegate_gate_requests_manager_error_total: 2\n"},
			level:      Warn, check: checkCounters, found: "requests get 503, because no manager answers",
		},
		"managers of another shard": {
			deployment: deployment{stats: "wasmcustom.oncegate_gate_call_wrong_shard_total: 2\n"},
			level:      Fail, check: checkCounters, found: "a manager refuses calls that mean another shard", do: "correct manager.shards",
		},
		"another service in the managers' place": {
			deployment: deployment{hosts: map[string]http.Handler{firstManager: other, "manager": aManager{}}},
			level:      Fail, check: checkEndpoints, found: `cluster "oncegate_manager": 127.0.0.1:18090 answers, and it is no manager`, do: "correct the endpoints",
		},
		"a missing capability": {
			deployment: deployment{dump: func(dump object) {
				delete(theGate(dump).filter.at("capability_restriction_config").at("allowed_capabilities"), "proxy_grpc_send")
			}},
			level: Fail, check: checkCapabilities, found: "capability_restriction_config lacks proxy_grpc_send", do: "use the list of envoy/capabilities.yaml",
		},
		"a missing capability of an Envoy 1.40": {
			deployment: deployment{dump: func(dump object) {
				f := theGate(dump).filter
				f.at("vm_config")["capability_restriction_config"] = f["capability_restriction_config"]
				delete(f, "capability_restriction_config")
				delete(f.at("vm_config").at("capability_restriction_config").at("allowed_capabilities"), "proxy_on_tick")
			}},
			level: Fail, check: checkCapabilities, found: "lacks proxy_on_tick",
		},
		"no list of capabilities": {
			deployment: deployment{dump: func(dump object) { delete(theGate(dump).filter, "capability_restriction_config") }},
			level:      OK, check: checkCapabilities, found: "no list restricts the module",
		},
		"region of one manager": {
			deployment: deployment{dump: set("durability", "region")},
			level:      Fail, check: checkDurable, found: `a gate asks for durability "region", and this manager can give local`, do: "--store etcd",
		},
		"global of a rule": {
			deployment: deployment{dump: set("match", []any{map[string]any{"durability": "global"}})},
			level:      Fail, check: checkDurable, found: `durability "global"`, do: "--origin",
		},
		"region of a manager that can give it": {
			deployment: deployment{dump: set("durability", "region"), hosts: map[string]http.Handler{firstManager: aManager{ledger: "L1", durabilities: `["local","region"]`}}},
			level:      OK, check: checkDurable, found: "can give region",
		},
		"answers that the manager records": {
			level: OK, check: checkSizes, found: "the manager records those of up to 1048576 bytes, and a gate at most 1000000", deployment: deployment{dump: set("max_response_body_bytes", 1e6)},
		},
		"answers beyond the manager's limit": {
			deployment: deployment{dump: set("max_response_body_bytes", 2097152.0)},
			level:      Warn, check: checkSizes, found: "a gate records answers of up to 2097152 bytes (max_response_body_bytes), and the manager less than 1048576 (--max-result-bytes)", do: "raise --max-result-bytes",
		},
		"answers at the manager's limit, in a rule": {
			deployment: deployment{dump: set("match", []any{map[string]any{}, map[string]any{"max_response_body_bytes": 1048576.0}})},
			level:      Warn, check: checkSizes, found: "up to 1048576 bytes",
		},
		"answers of a rule without a manager": {
			deployment: deployment{dump: set("match", []any{map[string]any{"ledger": "none", "max_response_body_bytes": 1048576.0}, map[string]any{}})},
			level:      OK, check: checkSizes, found: "a gate at most 524288",
		},
		"a refused listener": {
			deployment: deployment{dump: func(dump object) {
				for _, c := range dump.list("configs") {
					if c["static_listeners"] != nil {
						c["dynamic_listeners"] = []any{map[string]any{"name": "ingress", "error_state": map[string]any{"details": "the filter is terminal"}}}
					}
				}
			}},
			level: Fail, check: checkUpdates, found: `Envoy refused an update among dynamic_listeners ("ingress"): the filter is terminal`, do: "correct it",
		},
		"a listener that was refused once": {
			deployment: deployment{stats: "listener_manager.lds.update_rejected: 2\n"},
			level:      Warn, check: checkUpdates, found: "Envoy refused 2 updates since its start (listener_manager.lds.update_rejected)", do: "see Envoy's log",
		},
		"two ledgers in one cluster": {
			deployment: deployment{clusters: secondEndpoint, hosts: map[string]http.Handler{secondManager: aManager{ledger: "L2"}}},
			level:      Fail, check: checkEndpoints, found: `cluster "oncegate_manager" leads to 2 ledgers (L1 at 127.0.0.1:18090, L2 at 127.0.0.1:18091)`, do: "a cluster of its own",
		},
		"two ledgers at one address": {
			deployment: deployment{hosts: map[string]http.Handler{firstManager: &inTurns{[]http.Handler{aManager{ledger: "L1"}, aManager{ledger: "L2"}}, 0}}},
			level:      Fail, check: checkEndpoints, found: "leads to 2 ledgers",
		},
		"two managers that share a store": {
			deployment: deployment{clusters: secondEndpoint, hosts: map[string]http.Handler{secondManager: aManager{ledger: "L1"}}},
			level:      OK, check: checkEndpoints, found: "one ledger at 2 endpoints",
		},
		"two managers that do not say who they are": {
			deployment: deployment{clusters: secondEndpoint, hosts: map[string]http.Handler{firstManager: secured, secondManager: secured}},
			level:      Warn, check: checkEndpoints, found: "2 of 2 endpoints did not say which ledger they are", do: "an operator's --token-file",
		},
		"another manager than the gate's": {
			deployment: deployment{hosts: map[string]http.Handler{"manager": aManager{ledger: "L9"}}},
			level:      Warn, check: checkLedger, found: "lead to other ledgers (L1) than this manager's (L9)", do: "correct --manager",
		},
		"a gate that waits for less than the route": {
			deployment: deployment{dump: configure(func(config object) { config.at("upstream")["timeout_ms"] = 5000.0 })},
			level:      Warn, check: checkUpstream, found: "waits for 15s, and the gate ends its call after upstream.timeout_ms (5s)", do: "make upstream.timeout_ms longer",
		},
		"a route without a timeout": {
			deployment: deployment{dump: func(dump object) { delete(lastRoute(innerManager(dump)).at("route"), "timeout") }},
			level:      Warn, check: checkUpstream, found: "routes[2] has no timeout, so Envoy's 15s count", do: "set the route's timeout",
		},
		"a route without an end": {
			deployment: deployment{dump: func(dump object) { lastRoute(innerManager(dump)).at("route")["timeout"] = "0s" }},
			level:      Warn, check: checkUpstream, found: "has no end (timeout 0), so the gate ends its call after upstream.timeout_ms (1m0s)", do: "set the route's timeout",
		},
		"100-continue of the upstream": {
			deployment: deployment{dump: func(dump object) { theGate(dump).manager["proxy_100_continue"] = true }},
			level:      Fail, check: checkContinue, found: "proxy_100_continue in body mode", do: "remove proxy_100_continue",
		},
		"a rule after one for all": {
			deployment: deployment{dump: set("match", []any{map[string]any{"path_prefix": "/"}, map[string]any{"path": "/payments"}})},
			level:      Warn, check: checkRules, found: "match[1] never counts, because match[0] takes all of its requests", do: "put the narrower rule first",
		},
		"a scope that differs in each try": {
			deployment: deployment{dump: set("scope", []any{"host", "header:X-Request-Id"})},
			level:      Fail, check: checkScope, found: `scope names "header:X-Request-Id", which differs in each try`, do: "header:authorization",
		},
		"a rule's scope that differs with the way": {
			deployment: deployment{dump: set("match", []any{map[string]any{"scope": []any{"header:x-forwarded-for?"}}})},
			level:      Warn, check: checkScope, found: `scope names "header:x-forwarded-for?"`,
		},
		"a fingerprint that differs in each try": {
			deployment: deployment{dump: set("fingerprint", map[string]any{"headers": []any{"traceparent"}})},
			level:      Fail, check: checkScope, found: `fingerprint.headers names "traceparent"`, do: "remove it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			found := c.look(t)
			if !slices.ContainsFunc(found, func(f Finding) bool {
				return f.Check == c.check && f.Level == c.level && strings.Contains(f.Found, c.found) && strings.Contains(f.Do, c.do)
			}) {
				t.Errorf("no finding %s %s %q %q among %+v", c.level, c.check, c.found, c.do, found)
			}
		})
	}
}

// inTurns stands for an address at which each connection reaches another manager.
type inTurns struct {
	handlers []http.Handler
	next     int
}

func (i *inTurns) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.handlers[i.next%len(i.handlers)].ServeHTTP(w, r)
	i.next++
}

// TestGoodDeploymentsHaveNoComplaint: neither the published configuration nor the shapes of gateways, which have no inner
// listener, are complained about.
func TestGoodDeploymentsHaveNoComplaint(t *testing.T) {
	headers := func(dump object) {
		withoutInner(dump)
		configure(func(config object) {
			config["mode"] = "headers"
			delete(config, "upstream")
		})(dump)
		delete(theGate(dump).filter, "allow_on_headers_stop_iteration")
		delete(theGate(dump).filter, "capability_restriction_config")
	}
	for name, d := range map[string]deployment{
		"published": {},
		"headers":   {dump: headers, clusters: withoutCluster("oncegate_routes")},
		"Istio": {dump: func(dump object) {
			headers(dump)
			lastRoute(theGate(dump).manager).at("route")["timeout"] = "0s"
		}, clusters: withoutCluster("oncegate_routes")},
		"Envoy Gateway": {dump: func(dump object) {
			headers(dump)
			theGate(dump).entry["disabled"] = true
			route := lastRoute(theGate(dump).manager)
			delete(route.at("route"), "timeout")
			route["typed_per_filter_config"] = map[string]any{"oncegate": map[string]any{"config": map[string]any{}}}
		}, clusters: withoutCluster("oncegate_routes")},
		"the route's own cluster": {dump: func(dump object) {
			withoutInner(dump)
			configure(func(config object) { config["upstream"] = map[string]any{"cluster": ""} })(dump)
		}, clusters: withoutCluster("oncegate_routes")},
		"managers that cannot be reached": {hosts: map[string]http.Handler{firstManager: nil, "manager": aManager{ledger: "L1"}}},
		"a gate whose ledger is its upstream": {
			dump:     configure(func(config object) { config["ledger"] = "upstream"; delete(config, "upstream") }),
			clusters: withoutCluster("oncegate_manager"),
			hosts:    map[string]http.Handler{"manager": aManager{ledger: "L1", gate: "gate-token"}},
		},
		"endpoints whose TLS depends on a match": {
			dump: func(dump object) {
				for _, c := range dump.all("Cluster") {
					c["transport_socket_matches"] = []any{map[string]any{}}
				}
			},
			hosts: map[string]http.Handler{firstManager: http.NotFoundHandler(), "manager": aManager{ledger: "L1"}},
		},
		"rules from narrow to wide": {dump: set("match", []any{
			map[string]any{"path": "/a"}, map[string]any{"path_prefix": "/a"}, map[string]any{"path_pattern": "/b/*/c"}, map[string]any{"path_pattern": "/b/**"},
			map[string]any{"methods": []any{"PUT"}}, map[string]any{},
		})},
	} {
		t.Run(name, func(t *testing.T) {
			for _, f := range d.look(t) {
				if f.Level != OK {
					t.Errorf("%+v", f)
				}
			}
		})
	}
}

// TestRulesThatCoverOthers: a rule covers another one only if it takes all of its requests.
func TestRulesThatCoverOthers(t *testing.T) {
	rule := func(text string) (o object) {
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{`{}`, `{}`, true},
		{`{}`, `{"methods":["PUT"]}`, false},
		{`{"methods":["*"]}`, `{"methods":["PUT"]}`, true},
		{`{"methods":["POST"]}`, `{}`, false},
		{`{"path_prefix":"/a"}`, `{"path":"/ab"}`, true},
		{`{"path_prefix":"/a"}`, `{"path_prefix":"/a/b"}`, true},
		{`{"path_prefix":"/a/b"}`, `{"path_prefix":"/a"}`, false},
		{`{"path_prefix":"/a"}`, `{"path_pattern":"/a/*"}`, true},
		{`{"path_prefix":"/a/b"}`, `{"path_pattern":"/a/*"}`, false},
		{`{"path":"/a"}`, `{"path":"/a"}`, true},
		{`{"path":"/a"}`, `{"path_prefix":"/a"}`, false},
		{`{"path_pattern":"/a/*"}`, `{"path":"/a/b"}`, true},
		{`{"path_pattern":"/a/*"}`, `{"path":"/a/b/c"}`, false},
		{`{"path_pattern":"/a/*"}`, `{"path":"/a/"}`, false},
		{`{"path_pattern":"/a/**"}`, `{"path":"/a/"}`, true},
		{`{"path_pattern":"/a/**"}`, `{"path":"/a"}`, false},
		{`{"path_pattern":"/a/**"}`, `{"path_prefix":"/a/"}`, true},
		{`{"path_pattern":"/a/**"}`, `{"path_prefix":"/a"}`, false},
		{`{"path_pattern":"/**"}`, `{}`, true},
		{`{"path_pattern":"/*/**"}`, `{}`, false},
		{`{"path_pattern":"/*/**"}`, `{"path_prefix":"/a/"}`, true},
		{`{"path_pattern":"/a/*"}`, `{"path_pattern":"/a/*"}`, true},
		{`{"path_pattern":"/a/*"}`, `{"path_pattern":"/a/**"}`, false},
	} {
		if got := covers(rule(c.a), rule(c.b)); got != c.want {
			t.Errorf("%s covers %s: %v", c.a, c.b, got)
		}
	}
}
