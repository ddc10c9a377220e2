package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"
)

const (
	checkInner    = "envoy: inner listener"
	checkUpstream = "envoy: upstream time-outs"
)

// answerFormat must begin the inner listener's oncegate-answer header. From it the gate knows whether a request ran.
const answerFormat = "%RESPONSE_CODE_DETAILS% %RESPONSE_FLAGS% %UPSTREAM_REQUEST_ATTEMPT_COUNT% %UPSTREAM_HOST%"

const (
	// gateTimeout is the default of upstream.timeout_ms, in milliseconds.
	gateTimeout = 15000
	// routeTimeout is Envoy's for a route that has none.
	routeTimeout = 15 * time.Second
)

// innerClusters returns the values of upstream.cluster that count, each with the shortest upstream.timeout_ms of its rules.
func (g gate) innerClusters() map[string]time.Duration {
	found := map[string]time.Duration{}
	for _, rule := range g.rules() {
		name := rule.at("upstream").text("cluster")
		if name == "" || rule.text("mode") != "body" || rule.text("client_abort") == "cancel" || rule.text("ledger") == "upstream" {
			continue
		}
		timeout := time.Duration(rule.at("upstream").number("timeout_ms", gateTimeout)) * time.Millisecond
		if known, ok := found[name]; !ok || timeout < known {
			found[name] = timeout
		}
	}
	return found
}

// listenersAt returns the listeners of this Envoy that a cluster's endpoints lead to, and the names of the internal
// listeners that are missing.
func listenersAt(dump, status object) (found []object, missing []string) {
	for _, host := range status.list("host_statuses") {
		address := host.at("address")
		internal, socket := address.at("envoy_internal_address").text("server_listener_name"), address.at("socket_address")
		addresses := []string{socket.text("address")}
		if ip := net.ParseIP(addresses[0]); ip != nil && ip.IsLoopback() { // the port of another machine is another listener's
			addresses = append(addresses, "0.0.0.0", "::")
		}
		known := false
		for _, l := range listeners(dump) {
			own := l.at("address").at("socket_address")
			if internal != "" && l["internal_listener"] != nil && l.text("name") == internal ||
				internal == "" && own != nil && own.number("port_value", -1) == socket.number("port_value", -2) &&
					slices.Contains(addresses, own.text("address")) {
				found, known = append(found, l), true
			}
		}
		if internal != "" && !known {
			missing = append(missing, internal)
		}
	}
	return found, missing
}

// findInner sets the gate's inner listeners.
func (g *gate) findInner(dump object, statuses map[string]object) {
	for name := range g.innerClusters() {
		found, _ := listenersAt(dump, statuses[name])
		for _, l := range found {
			if !slices.ContainsFunc(g.inner, func(o object) bool { return sameObject(o, l) }) {
				g.inner = append(g.inner, l)
			}
		}
	}
}

// innerListener checks the listener that the gate's own upstream calls go to.
func (g gate) innerListener(r *report, dump object, statuses map[string]object) {
	clusters := g.innerClusters()
	if len(clusters) == 0 {
		return
	}
	before := len(r.findings)
	for _, name := range slices.Sorted(maps.Keys(clusters)) {
		where := fmt.Sprintf("%s: upstream.cluster %q", g.place(), oneLine(name))
		status, known := statuses[name]
		if !known {
			r.fail(checkInner, where+" is no cluster of this Envoy: requests are cancelled with their clients",
				"correct the name, or add the cluster and the inner listener of envoy/body-mode.yaml")
			continue
		}
		found, missing := listenersAt(dump, status)
		switch {
		case len(missing) > 0:
			r.fail(checkInner, fmt.Sprintf("%s leads to the internal listener %q, which this Envoy does not have: requests with a key get 503", where, oneLine(missing[0])),
				"add the inner listener, as in envoy/body-mode.yaml")
		case len(found) == 0:
			r.warn(checkInner, where+" leads to no listener of this Envoy, so the gate may take Envoy's own answers for those of the upstream",
				`let it lead to an inner listener with the routes, as in envoy/body-mode.yaml, or set "cluster": ""`)
		}
		for _, l := range found {
			g.innerRoutes(r, dump, l)
			for _, m := range l.all("HttpConnectionManager") {
				if !saysAnswer(m) {
					r.fail(checkInner, fmt.Sprintf("%s: listener %q does not say in oncegate-answer who made an answer: an error of Envoy's own is recorded as the upstream's, and replayed", g.place(), oneLine(l.text("name"))),
						"add the filter oncegate_answer of envoy/body-mode.yaml to it, as the first one")
				}
			}
		}
	}
	r.okUnless(before, checkInner, "%s: it has the routes, and says who made an answer", g.place())
	g.upstreamTimeouts(r, dump, statuses, clusters)
}

// saysAnswer reports whether a filter of a connection manager sets the header that the gate reads.
func saysAnswer(manager object) bool {
	says := false
	for _, f := range manager.list("http_filters") {
		if f["disabled"] == true {
			continue
		}
		f.walk("", func(_ string, o object) {
			says = says || strings.EqualFold(o.text("key"), "oncegate-answer") && strings.HasPrefix(o.text("value"), answerFormat)
		})
	}
	return says
}

// innerRoutes compares the routes of an inner listener with those of the gate's listener.
func (g gate) innerRoutes(r *report, dump, inner object) {
	outside, inside := map[string]bool{}, map[string]bool{}
	for _, routes := range routesOf(dump, g.manager) {
		maps.Copy(outside, clustersOf(routes))
	}
	g.keepUpstreams(outside)
	dynamic := false // leads to clusters that the routes do not name
	for _, routes := range routesOf(dump, inner.all("HttpConnectionManager")...) {
		maps.Copy(inside, clustersOf(routes))
		routes.walk("", func(_ string, o object) {
			dynamic = dynamic || o["cluster_header"] != nil || o["cluster_specifier_plugin"] != nil || o["inline_cluster_specifier_plugin"] != nil
		})
	}
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(outside)) {
		if !inside[name] {
			missing = append(missing, fmt.Sprintf("%q", oneLine(name)))
		}
	}
	if len(missing) == 0 || dynamic {
		return
	}
	found := fmt.Sprintf("%s: listener %q has no route to cluster %s, which the gate's listener leads to: such requests with a key get 404", g.place(), oneLine(inner.text("name")), strings.Join(missing, ", "))
	const do = "give both listeners the same routes"
	if len(missing) == len(outside) {
		r.fail(checkInner, found, do)
		return
	}
	// The inner listener needs no routes for requests without keys.
	r.warn(checkInner, found, do)
}

// upstreamTimeouts compares the time-outs of an inner listener's routes with the gate's own.
func (g gate) upstreamTimeouts(r *report, dump object, statuses map[string]object, clusters map[string]time.Duration) {
	before := len(r.findings)
	for _, name := range slices.Sorted(maps.Keys(clusters)) {
		own := clusters[name]
		found, _ := listenersAt(dump, statuses[name])
		for _, l := range found {
			for _, routes := range routesOf(dump, l.all("HttpConnectionManager")...) {
				routes.walk("", func(path string, o object) {
					if o["match"] == nil || o["route"] == nil || !g.leadsToUpstreams(o) {
						return
					}
					where := fmt.Sprintf("%s: route configuration %q, %s", g.place(), oneLine(routes.text("name")), path)
					text := o.at("route").text("timeout")
					timeout, err := time.ParseDuration(cmp.Or(text, routeTimeout.String()))
					switch {
					case err != nil:
					case timeout == 0:
						r.warn(checkUpstream, fmt.Sprintf("%s has no end (timeout 0), so the gate ends its call after upstream.timeout_ms (%s)", where, own),
							"set the route's timeout, and make upstream.timeout_ms longer: longer work has an unknown outcome")
					case own < timeout:
						r.warn(checkUpstream, fmt.Sprintf("%s waits for %s, and the gate ends its call after upstream.timeout_ms (%s)", where, timeout, own),
							"make upstream.timeout_ms longer than the route's timeout: longer work has an unknown outcome")
					case text == "":
						r.warn(checkUpstream, fmt.Sprintf("%s has no timeout, so Envoy's %s count", where, routeTimeout),
							"set the route's timeout to the longest time that its work takes: longer work has an unknown outcome")
					}
				})
			}
		}
	}
	r.okUnless(before, checkUpstream, "%s: the routes' time-outs end calls before the gate's does", g.place())
}

// leadsToUpstreams reports whether a route leads to another cluster than the managers' and the inner listener's.
func (g gate) leadsToUpstreams(route object) bool {
	names := clustersOf(route)
	g.keepUpstreams(names)
	return len(names) > 0
}

// keepUpstreams removes the managers' clusters and the inner listener's.
func (g gate) keepUpstreams(names map[string]bool) {
	for name := range g.innerClusters() {
		delete(names, name)
	}
	for _, name := range g.clusters() {
		delete(names, name)
	}
}
