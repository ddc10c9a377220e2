package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	checkEnvoy   = "envoy: answers"
	checkFilter  = "envoy: filter"
	checkLoaded  = "envoy: module"
	checkFlag    = "envoy: flag"
	checkFailure = "envoy: failure policy"
	checkNames   = "envoy: names"
	checkRetries = "envoy: retries"
	checkBuffers = "envoy: buffers"
	checkPaths   = "envoy: paths"
	checkIdle    = "envoy: time-outs"
	checkCluster = "envoy: managers"
	checkUnused  = "envoy: unused connections"
	checkHTTP2   = "envoy: HTTP/2"
)

// bodyModeSince is the first minor release of Envoy 1 that delivers bodies to a filter that holds headers.
const bodyModeSince = 35

// gate is a filter of Oncegate in a connection manager.
type gate struct {
	listener object
	// manager is the HTTP connection manager.
	manager object
	// entry is the filter as the manager lists it, between those before and after it.
	entry         object
	before, after []object
	// filter is the entry's "config".
	filter object
	// config is the filter's own configuration.
	config object
	// explained is config with every field spelled out; nil: it could not be.
	explained object
	// inner are the listeners of this Envoy that the gate's own upstream calls go to.
	inner []object
	// ledgers are the ids of those that its clusters were found to lead to.
	ledgers []string
}

func (g gate) place() string {
	return fmt.Sprintf("listener %q, filter %q", g.listener.text("name"), g.filter.text("name"))
}

// envoy looks at Envoy's admin listener and returns the gates that it finds.
func (t Target) envoy(ctx context.Context, r *report) []gate {
	var info, dump, clusters object
	for _, part := range []struct {
		path string
		into *object
	}{{"/server_info", &info}, {"/config_dump", &dump}, {"/clusters?format=json", &clusters}} {
		body, err := t.getOK(ctx, t.Envoy+part.path)
		if err == nil {
			err = json.Unmarshal(body, part.into)
		}
		if err != nil {
			r.fail(checkEnvoy, oneLine(err.Error()), "correct --envoy: it is the URL of Envoy's admin listener, which answers "+part.path)
			return nil
		}
	}
	discovered(dump)
	minor, version := envoyVersion(info.text("version"))
	if state := info.text("state"); state != "LIVE" {
		r.fail(checkEnvoy, fmt.Sprintf("version %s, state %q", version, state), "see Envoy's log: a listener or a cluster is not ready")
	} else {
		r.ok(checkEnvoy, "version %s", version)
	}
	stats := t.statistics(ctx)
	updates(r, dump, stats)
	gates := findGates(dump)
	if len(gates) == 0 {
		r.fail(checkFilter, "no listener has a Wasm filter of Oncegate", "put the filter into the listener, as in envoy/body-mode.yaml; until then all requests pass unprotected")
		return nil
	}
	for i := range gates {
		gates[i].explained = t.explain(gates[i].config)
	}
	r.ok(checkFilter, "%d of %d listeners", countListeners(gates), len(listeners(dump)))
	if !stats.loaded() {
		r.fail(checkLoaded, "the module has not defined its metrics, so it is not loaded or refused its configuration", `see Envoy's log for "wasm"`)
	} else {
		r.ok(checkLoaded, "loaded and configured")
		counters(r, stats)
	}
	statuses := map[string]object{}
	for _, c := range clusters.list("cluster_statuses") {
		statuses[c.text("name")] = c
	}
	for i := range gates {
		gates[i].findInner(dump, statuses)
	}
	names(r, gates)
	inARow(r, gates)
	for _, g := range gates {
		g.check(r, minor, dump, statuses)
		g.around(r, dump)
	}
	checkClusters(r, gates, statuses)
	streams(r, gates, dump)
	answersOfManagers(r, gates, dump, statuses, stats)
	t.endpoints(ctx, r, gates, dump, statuses)
	return gates
}

// envoyVersion takes the release from text such as "9e55.../1.40.0/Clean/RELEASE/BoringSSL".
func envoyVersion(text string) (minor int, version string) {
	parts := strings.Split(text, "/")
	if len(parts) < 2 {
		return 0, oneLine(text)
	}
	if fields := strings.Split(parts[1], "."); len(fields) > 1 && fields[0] == "1" {
		minor, _ = strconv.Atoi(fields[1])
	}
	return minor, oneLine(parts[1])
}

func countListeners(gates []gate) int {
	seen := map[string]bool{}
	for _, g := range gates {
		seen[g.listener.text("name")] = true
	}
	return len(seen)
}

// names looks for filters that Envoy or the gate would take for one another.
func names(r *report, gates []gate) {
	first := map[string]gate{}
	before := len(r.findings)
	for _, g := range gates {
		id := g.filter.at("vm_config").text("vm_id") + " " + g.filter.text("root_id")
		if other, ok := first[id]; ok && !same(other.config, g.config) {
			r.warn(checkNames, fmt.Sprintf("%s and %s have one vm_id and root_id, and different configurations", other.place(), g.place()),
				"give each its own name, root_id and vm_id: Envoys from before August 2026 may use one for both")
		}
		first[id] = g
	}
	r.okUnless(before, checkNames, "each configuration has its own")
}

// check looks at one filter and what is around it.
func (g gate) check(r *report, minor int, dump object, statuses map[string]object) {
	body := g.body()
	flag, _ := g.filter["allow_on_headers_stop_iteration"].(bool)
	switch {
	case body && minor > 0 && minor < bodyModeSince:
		r.fail(checkFlag, fmt.Sprintf("%s: mode body in Envoy 1.%d", g.place(), minor), `use Envoy 1.35 or newer, or "mode": "headers"`)
	case body && !flag:
		r.fail(checkFlag, g.place()+": mode body without allow_on_headers_stop_iteration: requests get 500", "set allow_on_headers_stop_iteration: true")
	default:
		r.ok(checkFlag, "%s: fits mode %s", g.place(), map[bool]string{true: "body", false: "headers"}[body])
	}
	switch policy := g.filter.text("failure_policy"); {
	case policy == "FAIL_OPEN" || g.filter["fail_open"] == true:
		r.fail(checkFailure, g.place()+": requests pass unprotected after a fault of the module", "set failure_policy: FAIL_RELOAD")
	case policy != "FAIL_RELOAD":
		r.warn(checkFailure, g.place()+": all requests get 503 after a fault of the module, until Envoy is started again", "set failure_policy: FAIL_RELOAD")
	default:
		r.ok(checkFailure, "%s: FAIL_RELOAD", g.place())
	}
	g.restrictions(r)
	g.shadowed(r)
	g.headersOfTries(r)
	g.callers(r)
	g.innerListener(r, dump, statuses)
	g.innerLimits(r, dump, statuses)
	g.continues(r)
	g.retries(r, dump)
	g.direct(r, dump)
	g.buffers(r, body)
	g.paths(r)
	g.timeouts(r)
	g.unused(r, dump)
}

// retries looks for what repeats or copies a request after the gate, where nothing counts it.
func (g gate) retries(r *report, dump object) {
	found := false
	for _, routes := range g.routes(dump) {
		routes.walk("", func(path string, o object) {
			for _, name := range []string{"retry_policy", "hedge_policy", "internal_redirect_policy", "request_mirror_policies"} {
				if v, ok := o[name]; ok && !harmless(name, v) {
					r.fail(checkRetries, fmt.Sprintf("%s: route configuration %q, %s: %s", g.place(), routes.text("name"), path, name),
						"remove it: Envoy sends a request more than once after the gate, and the work runs more than once")
					found = true
				}
			}
		})
	}
	if found {
		return
	}
	if !g.removesRetryHeaders() {
		r.warn(checkRetries, g.place()+": nothing removes x-envoy-retry-on from requests", "put the filter no_retries_by_header of envoy/body-mode.yaml before the gate: a client could ask Envoy to repeat its request after the gate")
		return
	}
	r.ok(checkRetries, "%s: no route repeats requests", g.place())
}

// harmless reports whether a policy repeats nothing.
func harmless(name string, v any) bool {
	o, ok := v.(map[string]any)
	return name == "retry_policy" && ok && object(o).text("retry_on") == ""
}

// routes returns the route configurations that requests take after the gate: those of its connection manager, and
// those of the inner listener that its own calls go to.
func (g gate) routes(dump object) []object {
	managers := []object{g.manager}
	for _, l := range g.inner {
		managers = append(managers, l.all("HttpConnectionManager")...)
	}
	return routesOf(dump, managers...)
}

func (g gate) removesRetryHeaders() bool {
	removed := false
	for _, e := range g.manager.list("early_header_mutation_extensions") {
		e.walk("", func(_ string, o object) { removed = removed || strings.EqualFold(o.text("remove"), "x-envoy-retry-on") })
	}
	for _, f := range g.before {
		f.walk("", func(_ string, o object) { removed = removed || strings.EqualFold(o.text("remove"), "x-envoy-retry-on") })
	}
	for _, h := range g.manager.at("route_config").texts("request_headers_to_remove") {
		removed = removed || strings.EqualFold(h, "x-envoy-retry-on")
	}
	return removed
}

// buffers compares the listener's buffer with the bodies that the gate holds.
func (g gate) buffers(r *report, body bool) {
	if !body {
		return
	}
	const envoyDefault, gateDefault = 1 << 20, 512 << 10
	have := g.listener.number("per_connection_buffer_limit_bytes", envoyDefault)
	need := 0.0
	for _, rule := range g.rules() {
		need = max(need, rule.number("max_request_body_bytes", gateDefault), rule.number("max_response_body_bytes", gateDefault))
	}
	if have < need {
		r.warn(checkBuffers, fmt.Sprintf("%s: per_connection_buffer_limit_bytes is %.0f, and the gate holds bodies of %.0f bytes", g.place(), have, need),
			"raise it: larger answers begin to pass before they are recorded, and some uploads stop")
		return
	}
	r.ok(checkBuffers, "%s: %.0f bytes for bodies of up to %.0f", g.place(), have, need)
}

// paths checks whether a path can be written in several ways, each with a scope of its own.
func (g gate) paths(r *report) {
	var missing []string
	for _, name := range []string{"normalize_path", "merge_slashes"} {
		if g.manager[name] != true {
			missing = append(missing, name+": true")
		}
	}
	if len(missing) > 0 {
		r.warn(checkPaths, g.place()+": one path can be written in several ways, and each is a scope of its own", "set "+strings.Join(missing, ", "))
		return
	}
	r.ok(checkPaths, "%s: written in one way", g.place())
}

// timeouts compares the idle time-out of streams with the gate's longest wait.
func (g gate) timeouts(r *report) {
	idle, err := time.ParseDuration(g.manager.text("stream_idle_timeout"))
	if g.manager.text("stream_idle_timeout") == "" {
		idle, err = 5*time.Minute, nil
	}
	longest := 0.0
	for _, rule := range g.rules() {
		longest = max(longest, rule.number("pending_wait_timeout", 30))
	}
	wait := time.Duration(longest*float64(time.Second)) + time.Duration(g.config.at("manager").number("timeout_ms", 5000))*time.Millisecond
	if err == nil && idle > 0 && idle <= wait {
		r.warn(checkIdle, fmt.Sprintf("%s: stream_idle_timeout is %s, and a duplicate may wait for %s", g.place(), idle, wait), "make it longer than pending_wait_timeout and manager.timeout_ms together")
		return
	}
	r.ok(checkIdle, "%s: waits end before streams do", g.place())
}

// unusedLimit is how long common proxies and load balancers keep a connection that carries no request: nginx 75 s, others
// 60 s. Some servers keep it for less, which nothing here shows.
const unusedLimit = time.Minute

// unused looks at how long Envoy keeps connections to the gate's upstreams that carry no request.
func (g gate) unused(r *report, dump object) {
	names := map[string]bool{}
	for _, routes := range g.routes(dump) {
		maps.Copy(names, clustersOf(routes))
	}
	short, long := 0, 0
	for _, c := range dump.all("Cluster") {
		text, inside := "1h", false
		c.walk("", func(_ string, o object) {
			text = cmp.Or(o.at("common_http_protocol_options").text("idle_timeout"), text)
			inside = inside || o["envoy_internal_address"] != nil
		})
		idle, err := time.ParseDuration(text)
		// The managers' clusters and the inner listener's are not upstreams.
		if name := c.text("name"); !names[name] || slices.Contains(g.clusters(), name) || inside || err != nil {
			continue
		}
		if idle > 0 && idle < unusedLimit {
			short++
			continue
		}
		long++
		kept := "for " + idle.String()
		if idle == 0 {
			kept = "forever"
		}
		r.warn(checkUnused, fmt.Sprintf("%s: connections to cluster %q are kept %s without a request", g.place(), oneLine(c.text("name")), kept),
			"set common_http_protocol_options.idle_timeout of the cluster (in Istio connectionPool.http.idleTimeout of a DestinationRule) shorter than the upstream keeps them: a request on one that the upstream is just closing has an unknown outcome")
	}
	if long == 0 && short > 0 {
		r.ok(checkUnused, "%s: closed in less than %s, to %d clusters", g.place(), unusedLimit, short)
	}
}

// checkClusters checks whether the managers' clusters have healthy endpoints.
func checkClusters(r *report, gates []gate, statuses map[string]object) {
	for _, name := range clustersOfManagers(gates) {
		c, ok := statuses[name]
		if !ok {
			r.fail(checkCluster, fmt.Sprintf("there is no cluster %q", name), "add it, as in envoy/body-mode.yaml; its keys get 503 until then")
			continue
		}
		hosts := c.list("host_statuses")
		healthy, failed := 0, 0.0
		for _, h := range hosts {
			if h.at("health_status").text("eds_health_status") == "HEALTHY" && len(h.at("health_status")) == 1 {
				healthy++
			}
			for _, s := range h.list("stats") {
				if s.text("name") == "cx_connect_fail" {
					failed += s.number("value", 0)
				}
			}
		}
		switch {
		case healthy == 0:
			r.fail(checkCluster, fmt.Sprintf("cluster %q has %d endpoints, none of them healthy", name, len(hosts)), "look at the managers, their service and its health checks")
		case failed > 0:
			r.warn(checkCluster, fmt.Sprintf("cluster %q: %.0f connections failed since Envoy's start", name, failed), "if this number grows, look at the managers and the network")
		default:
			r.ok(checkCluster, "cluster %q: %d of %d endpoints are healthy", name, healthy, len(hosts))
		}
	}
}

// streams checks whether the managers' clusters carry gRPC streams.
func streams(r *report, gates []gate, dump object) {
	names := clustersOfManagers(gates)
	for _, c := range dump.all("Cluster") {
		name := c.text("name")
		if !slices.Contains(names, name) {
			continue
		}
		http2 := c["http2_protocol_options"] != nil
		for _, o := range c.all("HttpProtocolOptions") {
			http2 = http2 || o["auto_config"] != nil || o.at("explicit_http_config")["http2_protocol_options"] != nil
		}
		if !http2 {
			r.fail(checkHTTP2, fmt.Sprintf("cluster %q has no HTTP/2, which the gate's gRPC streams need: its keys get 503", oneLine(name)),
				"set explicit_http_config.http2_protocol_options of the cluster, as in envoy/body-mode.yaml (in Istio connectionPool.http.h2UpgradePolicy: UPGRADE of a DestinationRule)")
			continue
		}
		r.ok(checkHTTP2, "the gate's streams reach cluster %q", oneLine(name))
	}
}

// clustersOfManagers returns the names of the clusters of all gates' managers.
func clustersOfManagers(gates []gate) []string {
	var names []string
	for _, g := range gates {
		if g.asksManagers() {
			names = append(names, g.clusters()...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// askedTTLs returns the shortest and the longest committed TTL of the gates' routes, where the manager has its own.
func askedTTLs(gates []gate, managers time.Duration) (shortest, longest time.Duration) {
	shortest, longest = managers, managers
	for i, g := range gates {
		for j, rule := range g.rules() {
			ttl := managers
			if seconds := rule.number("committed_ttl_seconds", 0); seconds > 0 {
				ttl = time.Duration(seconds * float64(time.Second))
			}
			if i == 0 && j == 0 {
				shortest, longest = ttl, ttl
			}
			shortest, longest = min(shortest, ttl), max(longest, ttl)
		}
	}
	return shortest, longest
}
