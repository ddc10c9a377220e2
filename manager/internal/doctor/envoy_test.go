package doctor

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// file returns a dump of a real Envoy that runs the published configuration.
func file(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestEnvoyIsJudged changes one thing at a time in what a good Envoy says.
func TestEnvoyIsJudged(t *testing.T) {
	for name, c := range map[string]struct {
		// replace is text of the dump and what takes its place, in turns.
		replace               []string
		clusters, stats, info []string
		level                 Level
		check, found, do      string
	}{
		"a retry policy of the route": {
			replace: []string{`"timeout": "15s"`, `"timeout": "15s", "retry_policy": {"retry_on": "5xx"}`},
			level:   Fail, check: checkRetries, found: "retry_policy", do: "remove it",
		},
		"a retry policy of the virtual host": {
			replace: []string{`"domains":`, `"retry_policy": {"retry_on": "reset"}, "domains":`},
			level:   Fail, check: checkRetries, found: "virtual_hosts[0]: retry_policy",
		},
		"a mirror": {
			replace: []string{`"timeout": "15s"`, `"timeout": "15s", "request_mirror_policies": [{"cluster": "b"}]`},
			level:   Fail, check: checkRetries, found: "request_mirror_policies",
		},
		"an internal redirect": {
			replace: []string{`"timeout": "15s"`, `"timeout": "15s", "internal_redirect_policy": {}`},
			level:   Fail, check: checkRetries, found: "internal_redirect_policy",
		},
		"a retry policy that repeats nothing": {
			replace: []string{`"timeout": "15s"`, `"timeout": "15s", "retry_policy": {"num_retries": 0}`},
			level:   OK, check: checkRetries, found: "no route repeats",
		},
		"a route without the filter": {
			replace: []string{`"timeout": "15s"`, `"timeout": "15s"}, "typed_per_filter_config": {"oncegate": {"disabled": true}}, "rest": {"a": 1`},
			level:   Warn, check: checkAround, found: "virtual_hosts[0].routes[2]: the filter is disabled", do: "remove the setting",
		},
		"a filter that no route enables": {
			replace: []string{`"name": "oncegate",`, `"name": "oncegate", "disabled": true,`},
			level:   Warn, check: checkAround, found: "no route enables it", do: `remove "disabled"`,
		},
		"a filter that a route enables, as in Envoy Gateway": {
			replace: []string{
				`"name": "oncegate",`, `"name": "oncegate", "disabled": true,`,
				`"timeout": "15s"`, `"timeout": "15s"}, "typed_per_filter_config": {"oncegate": {"config": {}}}, "rest": {"a": 1`,
			},
			level: OK, check: checkAround, found: "enabled on 1 routes",
		},
		"another listener": {
			replace: []string{`"static_listeners": [`, `"static_listeners": [{"listener": {"name": "back", "c": {"@type": "x.HttpConnectionManager", "route_config": {"virtual_hosts": [{"routes": [
				{"route": {"weighted_clusters": {"clusters": [{"name": "upstream"}]}}}]}]}}}},`},
			level: Warn, check: checkAround, found: `listener "back" has no gate, and leads to cluster "upstream" as well`, do: "put the filter into that listener",
		},
		"another filter chain of the same listener": {
			replace: []string{`"filter_chains": [`, `"filter_chains": [{"c": {"@type": "x.HttpConnectionManager", "route_config": {"virtual_hosts": [{"routes": [
				{"route": {"cluster": "upstream"}}]}]}}},`},
			level: Warn, check: checkAround, found: `a filter chain of listener "ingress" has no gate. It leads to cluster "upstream" as well`, do: "put the filter into that filter chain",
		},
		"two gates in a row": {
			replace: []string{`"http_filters": [`, `"http_filters": [{"name": "first", "typed_config": {"config": {"name": "first", "configuration": {"value": "{\"manager\":{}}"}}}},`},
			level:   Fail, check: checkRow, found: `filter "first" stands before filter "oncegate-body", which has the same managers`, do: "remove one of them",
		},
		"another listener to another cluster": {
			replace: []string{`"static_listeners": [`, `"static_listeners": [{"listener": {"name": "back", "c": {"@type": "x.HttpConnectionManager", "route_config": {"virtual_hosts": [{"routes": [
				{"route": {"cluster": "other"}}]}]}}}},`},
			level: OK, check: checkAround, found: "no other listener",
		},
		"another listener to the managers": { // where a route leads to them as well, for gRPC
			replace: []string{
				`"cluster": "oncegate_routes",`, `"cluster": "oncegate_manager",`,
				`"static_listeners": [`, `"static_listeners": [{"listener": {"name": "back", "c": {"@type": "x.HttpConnectionManager", "route_config": {"virtual_hosts": [{"routes": [
				{"route": {"cluster": "oncegate_manager"}}]}]}}}},`,
			},
			level: OK, check: checkAround, found: "no other listener",
		},
		"headers that ask for retries and are removed early, as in Envoy Gateway": {
			replace: []string{
				"x-envoy-retry-on", "x-other",
				`"stream_idle_timeout": "60s"`, `"stream_idle_timeout": "60s", "early_header_mutation_extensions": [{"typed_config": {"mutations": [{"remove": "X-Envoy-Retry-On"}]}}]`,
			},
			level: OK, check: checkRetries, found: "no route repeats",
		},
		"headers that ask for retries": {
			replace: []string{"x-envoy-retry-on", "x-other"},
			level:   Warn, check: checkRetries, found: "nothing removes x-envoy-retry-on",
		},
		"no flag": {
			replace: []string{`"allow_on_headers_stop_iteration": true`, `"allow_on_headers_stop_iteration": false`},
			level:   Fail, check: checkFlag, found: "without allow_on_headers_stop_iteration", do: "set allow_on_headers_stop_iteration",
		},
		"the flag in headers mode": {
			replace: []string{`\"mode\":\"body\"`, `\"mode\":\"headers\"`},
			level:   OK, check: checkFlag, found: "fits mode headers",
		},
		"an old Envoy": {
			info:  []string{"1.40.0", "1.34.2"},
			level: Fail, check: checkFlag, found: "mode body in Envoy 1.34",
		},
		"fail open": {
			replace: []string{"FAIL_RELOAD", "FAIL_OPEN"},
			level:   Fail, check: checkFailure, found: "pass unprotected",
		},
		"fail closed": {
			replace: []string{"FAIL_RELOAD", "FAIL_CLOSED"},
			level:   Warn, check: checkFailure, found: "until Envoy is started again",
		},
		"no filter": {
			replace: []string{"http.wasm.v3.Wasm", "http.other.v3.Other", `"config":`, `"settings":`},
			level:   Fail, check: checkFilter, found: "no listener",
		},
		"jwt_authn that removes the token": {
			replace: []string{`"http_filters": [`, `"http_filters": [{"name": "jwt", "typed_config": {"@type": "x.v3.JwtAuthentication", "providers": {"p": {"payload_in_metadata": "payload"}}}},`},
			level:   Fail, check: checkCallers, found: `jwt_authn (provider "p") removes the header "authorization"`, do: "forward: true",
		},
		"jwt_authn that keeps the token": {
			replace: []string{`"http_filters": [`, `"http_filters": [{"name": "jwt", "typed_config": {"@type": "x.v3.JwtAuthentication", "providers": {"p": {"forward": true}}}},`},
			level:   OK, check: checkCallers, found: "no filter before it removes",
		},
		"jwt_authn that takes tokens from another header": {
			replace: []string{`"http_filters": [`, `"http_filters": [{"name": "jwt", "typed_config": {"@type": "x.v3.JwtAuthentication", "providers": {"p": {"from_headers": [{"name": "x-jwt"}]}}}},`},
			level:   OK, check: checkCallers, found: "no filter before it removes",
		},
		"jwt_authn that removes the token, where callers share their keys": {
			replace: []string{
				`"http_filters": [`, `"http_filters": [{"name": "jwt", "typed_config": {"@type": "x.v3.JwtAuthentication", "providers": {"p": {}}}},`,
				`\"mode\":\"body\"`, `\"mode\":\"body\",\"anonymous\":\"shared\"`,
			},
			level: OK, check: checkCallers, found: "no filter before it removes",
		},
		"claims that jwt_authn keeps": {
			replace: []string{
				`"http_filters": [`, `"http_filters": [{"name": "jwt", "typed_config": {"@type": "x.v3.JwtAuthentication", "providers": {"p": {"payload_in_metadata": "a.b"}}}},`,
				`\"mode\":\"body\"`, `\"mode\":\"body\",\"scope\":[\"host\",\"jwt:a\\\\.b.sub\"]`,
			},
			level: OK, check: checkCallers, found: "no filter before it removes",
		},
		"claims that nothing keeps": {
			replace: []string{`\"mode\":\"body\"`, `\"mode\":\"body\",\"match\":[{\"scope\":[\"host\",\"jwt:payload.sub\"]}]`},
			level:   Fail, check: checkCallers, found: `scope names "jwt:payload.sub", and no jwt_authn before the gate keeps that`,
		},
		"api_key_auth that hides keys": {
			replace: []string{
				`"http_filters": [`, `"http_filters": [{"name": "key", "typed_config": {"@type": "x.v3.ApiKeyAuth", "key_sources": [{"header": "X-Api-Key"}], "forwarding": {"hide_credentials": true}}},`,
				`\"mode\":\"body\"`, `\"mode\":\"body\",\"scope\":[\"host\",\"header:x-api-key\"]`,
			},
			level: Fail, check: checkCallers, found: `api_key_auth removes the header "x-api-key"`, do: "hide_credentials: false",
		},
		"requests without a caller": {
			stats: []string{"wasmcustom.oncegate_gate_waiters: 0", "wasmcustom.oncegate_gate_waiters: 0\nwasmcustom.oncegate_gate_requests_scope_ambiguous_total: 3"},
			level: Warn, check: checkCounters, found: "get 400 scope-ambiguous (3 since Envoy's start)", do: "takes it away",
		},
		"bodies that do not come": {
			stats: []string{"wasmcustom.oncegate_gate_waiters: 0", "wasmcustom.oncegate_gate_requests_body_unavailable_total: 1"},
			level: Fail, check: checkCounters, found: "get 500, because Envoy does not deliver bodies to the gate (1 since", do: "allow_on_headers_stop_iteration",
		},
		"no module": {
			stats: []string{"wasmcustom.oncegate_gate_waiters: 0", ""},
			level: Fail, check: checkLoaded, found: "not loaded or refused",
		},
		"small buffers": {
			replace: []string{`\"max_request_body_bytes\":524288`, `\"max_request_body_bytes\":16777216`},
			level:   Warn, check: checkBuffers, found: "holds bodies of 16777216 bytes",
		},
		"paths as they come": {
			replace: []string{`"normalize_path": true`, `"normalize_path": false`},
			level:   Warn, check: checkPaths, do: "normalize_path: true",
		},
		"a short idle time-out": {
			replace: []string{`"stream_idle_timeout": "60s"`, `"stream_idle_timeout": "30s"`},
			level:   Warn, check: checkIdle, found: "stream_idle_timeout is 30s, and a duplicate may wait for 35s",
		},
		"unused connections": {
			replace: []string{`"idle_timeout": "30s"`, `"idle_timeout": "300s"`},
			level:   Warn, check: checkUnused, found: `cluster "upstream" are kept for 5m0s`, do: "set common_http_protocol_options.idle_timeout",
		},
		"unused connections by default": {
			replace: []string{`"idle_timeout": "30s"`, `"max_requests_per_connection": 5`},
			level:   Warn, check: checkUnused, found: `cluster "upstream" are kept for 1h0m0s`,
		},
		"unused connections without an end": {
			replace: []string{`"idle_timeout": "30s"`, `"idle_timeout": "0s"`},
			level:   Warn, check: checkUnused, found: `cluster "upstream" are kept forever`,
		},
		"unused connections that are closed": {
			replace: []string{`"idle_timeout": "30s"`, `"idle_timeout": "4.500s"`},
			level:   OK, check: checkUnused, found: "closed in less than 1m0s",
		},
		"no cluster": {
			replace: []string{`\"cluster\":\"oncegate_manager\"`, `\"cluster\":\"elsewhere\"`},
			level:   Fail, check: checkCluster, found: `no cluster "elsewhere"`,
		},
		"the cluster that is the default": {
			replace:  []string{`\"cluster\":\"oncegate_manager\",`, ``},
			clusters: []string{`"oncegate_manager"`, `"other"`},
			level:    Fail, check: checkCluster, found: `no cluster "oncegate_manager"`,
		},
		"a shard without a cluster": {
			replace: []string{`\"cluster\":\"oncegate_manager\"`, `\"shards\":[\"oncegate_manager\",\"m1\"]`},
			level:   Fail, check: checkCluster, found: `no cluster "m1"`,
		},
		"managers with HTTP/2": {
			level: OK, check: checkHTTP2, found: `the gate's streams reach cluster "oncegate_manager"`,
		},
		"managers without HTTP/2": {
			replace: []string{`"http2_protocol_options": {
          "connection_keepalive"`, `"http_protocol_options": {
          "connection_keepalive"`},
			level: Fail, check: checkHTTP2, found: `cluster "oncegate_manager" has no HTTP/2`, do: "set explicit_http_config.http2_protocol_options",
		},
		"managers with HTTP/2 if they agree to it": {
			replace: []string{`"explicit_http_config": {
         "http2_protocol_options": {
          "connection_keepalive"`, `"auto_config": {
         "http2_protocol_options": {
          "connection_keepalive"`},
			level: OK, check: checkHTTP2,
		},
		// Istio's useClientProtocol. The gate's streams have no client, and Envoy takes HTTP/1 for them.
		"managers with HTTP/2 for clients of HTTP/2": {
			replace: []string{`"explicit_http_config": {
         "http2_protocol_options": {
          "connection_keepalive"`, `"use_downstream_protocol_config": {
         "http2_protocol_options": {
          "connection_keepalive"`},
			level: Fail, check: checkHTTP2, found: `cluster "oncegate_manager" has no HTTP/2`,
		},
		"no healthy endpoint": {
			clusters: []string{`"eds_health_status": "HEALTHY"`, `"eds_health_status": "UNHEALTHY"`},
			level:    Fail, check: checkCluster, found: "none of them healthy",
		},
		"an outlier": {
			clusters: []string{`"eds_health_status": "HEALTHY"`, `"eds_health_status": "HEALTHY", "failed_outlier_check": true`},
			level:    Fail, check: checkCluster, found: "none of them healthy",
		},
		"a starting Envoy": {
			info:  []string{"LIVE", "INITIALIZING"},
			level: Fail, check: checkEnvoy, found: "INITIALIZING",
		},
		"another program": {
			info:  []string{"{", "<"},
			level: Fail, check: checkEnvoy, do: "correct --envoy",
		},
	} {
		t.Run(name, func(t *testing.T) {
			info := `{"version": "9e558/1.40.0/Clean/RELEASE/BoringSSL", "state": "LIVE"}`
			s := admin(t, change(t, file(t, "config_dump.json"), c.replace), change(t, file(t, "clusters.json"), c.clusters),
				change(t, "wasmcustom.oncegate_gate_waiters: 0", c.stats), change(t, info, c.info))
			var r report
			Target{Envoy: s.URL, Client: s.Client()}.envoy(t.Context(), &r)
			for _, f := range r.findings {
				if f.Check == c.check && f.Level == c.level && strings.Contains(f.Found, c.found) && strings.Contains(f.Do, c.do) {
					return
				}
			}
			t.Errorf("no finding %s %s %q %q among %+v", c.level, c.check, c.found, c.do, r.findings)
		})
	}
}

// Each rule that a direct call passes by is found.
func TestDirectRoutesAreJudged(t *testing.T) {
	// The route's action is followed by more of the route. The member "rest" takes the end of the action.
	route := func(action, rest string) []string {
		return []string{`"timeout": "15s"`, `"timeout": "15s"` + action + `}, "metadata": {"filter_metadata": {"oncegate": {"direct": true}}}` + rest + `, "rest": {"a": 1`}
	}
	const name = `, "name": "pay"`
	removed := []string{`"name": "upstream",`, `"name": "upstream", "mutation": {"remove": "x-envoy-internal"},`}
	for what, c := range map[string]struct {
		replace   []string
		level     Level
		found, do string
	}{
		"nothing":              {append(route("", name), removed...), OK, "have no rules", ""},
		"no name":              {append(route("", ""), removed...), Fail, "no name", "give it a name"},
		"hash policy":          {append(route(`, "hash_policy": [{}]`, name), removed...), Fail, `route "pay" has direct and hash_policy`, `remove "direct"`},
		"metadata match":       {append(route(`, "metadata_match": {}`, name), removed...), Fail, "metadata_match", `remove "direct"`},
		"weights":              {append(route(`, "weighted_clusters": {}`, name), removed...), Fail, "weighted_clusters", `remove "direct"`},
		"a mirror":             {append(route(`, "request_mirror_policies": [{}]`, name), removed...), Fail, "request_mirror_policies", `remove "direct"`},
		"settings of a filter": {append(route("", name+`, "typed_per_filter_config": {}`), removed...), Fail, "typed_per_filter_config", `remove "direct"`},
		"the internal header":  {route("", name), Fail, `cluster "upstream" does not remove x-envoy-internal`, "oncegate_no_internal"},
		"a filter inside":      {append(append(route("", name), removed...), `"name": "oncegate_answer"`, `"name": "quota"`), Fail, `the filter "quota"`, "before the gate"},
		"a filter after it":    {append(append(route("", name), removed...), `"name": "envoy.filters.http.router"`, `"name": "other"}, {"name": "envoy.filters.http.router"`), Fail, `the filter "other"`, "before the gate"},
	} {
		t.Run(what, func(t *testing.T) {
			s := admin(t, change(t, file(t, "config_dump.json"), c.replace), file(t, "clusters.json"), "wasmcustom.oncegate_gate_waiters: 0", `{"version": "x/1.40.0/Clean", "state": "LIVE"}`)
			var r report
			Target{Envoy: s.URL, Client: s.Client()}.envoy(t.Context(), &r)
			seen := 0
			for _, f := range r.findings {
				if f.Check == checkDirect {
					if seen++; f.Level != c.level || !strings.Contains(f.Found, c.found) || !strings.Contains(f.Do, c.do) {
						t.Errorf("%+v", f)
					}
				}
			}
			if seen != 1 {
				t.Errorf("%d findings among %+v", seen, r.findings)
			}
		})
	}
}

// change replaces all of each text, which must be there.
func change(t *testing.T, text string, replace []string) string {
	t.Helper()
	for i := 0; i+1 < len(replace); i += 2 {
		if !strings.Contains(text, replace[i]) {
			t.Fatalf("the dump lacks %s", replace[i])
		}
		text = strings.ReplaceAll(text, replace[i], replace[i+1])
	}
	return text
}

func TestGoodEnvoyHasNoComplaint(t *testing.T) {
	s := admin(t, file(t, "config_dump.json"), file(t, "clusters.json"), "wasmcustom.oncegate_gate_waiters: 0", `{"version": "x/1.40.0/Clean", "state": "LIVE"}`)
	var r report
	gates := Target{Envoy: s.URL, Client: s.Client()}.envoy(t.Context(), &r)
	if len(gates) != 1 {
		t.Errorf("%d gates, not 1", len(gates))
	}
	for _, f := range r.findings {
		if f.Level != OK || f.Do != "" {
			t.Errorf("%+v", f)
		}
	}
	if shortest, longest := askedTTLs(gates, time.Hour); shortest != time.Hour || longest != time.Hour {
		t.Errorf("TTLs %s to %s", shortest, longest)
	}
}

// FuzzDump: no answer of an admin listener makes the doctor panic.
func FuzzDump(f *testing.F) {
	for _, seed := range []string{`{}`, `{"configs":[{"static_listeners":[{"listener":{"@type":"a.HttpConnectionManager","http_filters":[{"typed_config":{"config":{"name":"oncegate","configuration":{"value":"{\"manager\":3}"}}}}]}}]}]}`,
		`{"configs":[null,1,{"dynamic_listeners":[{"active_state":{"listener":{}}}]}]}`, `[]`} {
		f.Add(seed, `{"cluster_statuses":[{"name":"oncegate_manager","host_statuses":[{}]}]}`)
	}
	transport := &answers{}
	client := &http.Client{Transport: transport}
	f.Fuzz(func(t *testing.T, dump, clusters string) {
		transport.dump, transport.clusters = dump, clusters
		var r report
		Target{Envoy: "http://envoy", Client: client}.envoy(context.Background(), &r)
		if len(r.findings) == 0 {
			t.Error("no finding")
		}
	})
}

// answers stands for the admin listener without a connection.
type answers struct{ dump, clusters string }

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	switch r.URL.Path {
	case "/config_dump":
		_, _ = w.WriteString(a.dump)
	case "/clusters":
		_, _ = w.WriteString(a.clusters)
	default:
		_, _ = w.WriteString(`{"state": "LIVE", "version": "1.40.0"}`)
	}
	return w.Result(), nil
}

// TestMetricsThatMeanTrouble: each alarm is raised by its metric, and by nothing else.
func TestMetricsThatMeanTrouble(t *testing.T) {
	var exposition string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(exposition)) }))
	t.Cleanup(s.Close)
	look := func(text string) []Finding {
		exposition = text
		var r report
		Target{Metrics: s.URL, Client: s.Client()}.metrics(t.Context(), &r)
		return r.findings
	}
	const good = "# HELP a b\na{route=\"GET /v1/logs/{log}\"} 1\noncegate_store_sync_standbys 1\noncegate_store_sync_standbys_required 1\n"
	if found := look(good); len(found) != 1 || found[0].Level != OK {
		t.Errorf("good metrics: %+v", found)
	}
	for _, a := range alarms {
		if found := look(good + a.metric + "{log=\"a b\"} 2\n"); len(found) != 1 || found[0].Level != a.level || found[0].Do != a.do {
			t.Errorf("%s: %+v", a.metric, found)
		}
	}
	if found := look("oncegate_store_sync_standbys 1\noncegate_store_sync_standbys_required 2\n"); len(found) != 1 || found[0].Level != Fail {
		t.Errorf("standbys are missing: %+v", found)
	}
	for text, want := range map[string]Level{"oncegate_ship_lease_term 0\n": Fail, "oncegate_ship_lease_term 3\n": OK} {
		if found := look(good + text); len(found) != 1 || found[0].Level != want {
			t.Errorf("%s: %+v", text, found)
		}
	}
	for seconds, want := range map[string]string{"1.5": "", "3600": "1h0m0s behind", "-3600": "-1h0m0s behind"} {
		found := look(good + keptClock + " " + seconds + "\n")
		if want == "" && len(found) != 1 || want != "" && (found[0].Level != Warn || found[0].Check != checkKept || !strings.Contains(found[0].Found, want)) {
			t.Errorf("the store's clock is %s s behind: %+v", seconds, found)
		}
	}
}

func TestFindingsAreOneLineOfPlainText(t *testing.T) {
	if got, want := oneLine("a\x1b[2Jb\n\tc \u202e\xff"+strings.Repeat("x", 300)), "a?[2Jb c ??xxx"; !strings.HasPrefix(got, want) || len(got) > 210 {
		t.Errorf("%q, want it to begin with %q", got, want)
	}
}

// TestAlarmsAreMetrics: the metrics that the doctor looks at are in the reference.
func TestAlarmsAreMetrics(t *testing.T) {
	var reference strings.Builder
	pages, err := filepath.Glob("../../../docs/reference/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(err, len(pages))
	}
	for _, name := range append(pages, "../../../docs/backup.md", "../../../docs/datacenters.md") {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		reference.Write(b)
	}
	for _, a := range alarms {
		if !strings.Contains(reference.String(), "`"+a.metric+"`") {
			t.Errorf("no page describes %s", a.metric)
		}
	}
}

// TestFilterByDiscovery: a filter whose configuration Envoy gets by extension discovery (as in envoy/xds, and from Istio) is
// judged like one in the listener.
func TestFilterByDiscovery(t *testing.T) {
	var dump map[string]any
	if err := json.Unmarshal([]byte(file(t, "config_dump.json")), &dump); err != nil {
		t.Fatal(err)
	}
	moved := 0
	object(dump).walk("", func(_ string, o object) {
		if o.text("name") != "oncegate" || !strings.HasSuffix(o.at("typed_config").text("@type"), ".Wasm") {
			return
		}
		moved++
		dump["configs"] = append(dump["configs"].([]any), map[string]any{
			"@type": "type.googleapis.com/envoy.admin.v3.EcdsConfigDump",
			"ecds_filters": []any{map[string]any{"ecds_filter": map[string]any{
				"@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig", "name": "oncegate", "typed_config": o["typed_config"],
			}}},
		})
		delete(o, "typed_config")
		o["config_discovery"] = map[string]any{"type_urls": []any{"type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"}}
	})
	if moved != 1 {
		t.Fatalf("%d filters moved", moved)
	}
	text, err := json.Marshal(dump)
	if err != nil {
		t.Fatal(err)
	}
	look := func(dump string) []Finding {
		s := admin(t, dump, file(t, "clusters.json"), "wasmcustom.oncegate_gate_waiters: 0\n", `{"state": "LIVE", "version": "a/1.40.0/b"}`)
		var r report
		Target{Envoy: s.URL, Client: s.Client()}.envoy(t.Context(), &r)
		return r.findings
	}
	in, by := look(file(t, "config_dump.json")), look(string(text))
	if !slices.Equal(in, by) {
		t.Errorf("in the listener: %+v\nby discovery: %+v", in, by)
	}
}
