package doctor

import (
	"fmt"
	"strings"
)

const checkLimits = "envoy: header limits"

// headerLimits are the largest headers that a listener takes in a request, or a cluster in an answer.
type headerLimits struct{ count, kb float64 }

// defaultLimits are Envoy's.
var defaultLimits = headerLimits{100, 60}

// addedHeaders is how many headers, and addedKB how many kB, Envoy and the gate add at most on the way inside.
const addedHeaders, addedKB = 20, 4

// narrower reports whether headers that other allows may not fit here.
func (h headerLimits) narrower(other headerLimits) bool {
	return h.count < other.count+addedHeaders || h.kb < other.kb+addedKB
}

func (h headerLimits) String() string { return fmt.Sprintf("%.0f headers and %.0f kB", h.count, h.kb) }

// requestLimits are the limits of a connection manager.
func requestLimits(manager object) headerLimits {
	return headerLimits{
		manager.at("common_http_protocol_options").number("max_headers_count", defaultLimits.count),
		manager.number("max_request_headers_kb", defaultLimits.kb),
	}
}

// answerLimits are the limits of a cluster.
func answerLimits(dump object, name string) headerLimits {
	limits := defaultLimits
	for _, c := range dump.all("Cluster") {
		if c.text("name") != name {
			continue
		}
		for _, o := range c.all("HttpProtocolOptions") {
			common := o.at("common_http_protocol_options")
			limits = headerLimits{common.number("max_headers_count", limits.count), common.number("max_response_headers_kb", limits.kb)}
		}
	}
	return limits
}

// innerLimits compares the limits between the gate and its routes with those outside.
func (g gate) innerLimits(r *report, dump object, statuses map[string]object) {
	before := len(r.findings)
	const do = "raise max_headers_count and max_request_headers_kb of the inner listener, and max_headers_count and max_response_headers_kb of its cluster, as in envoy/body-mode.yaml: " +
		"where they are exceeded, the outcome is unknown"
	for name := range g.innerClusters() {
		found, _ := listenersAt(dump, statuses[name])
		for _, l := range found {
			for _, m := range l.all("HttpConnectionManager") {
				if inside, outside := requestLimits(m), requestLimits(g.manager); inside.narrower(outside) {
					r.warn(checkLimits, fmt.Sprintf("%s takes requests with %s, and the inner listener %q those with %s", g.place(), outside, oneLine(l.text("name")), inside), do)
				}
				for _, routes := range routesOf(dump, m) {
					for upstream := range clustersOf(routes) {
						inside, outside := answerLimits(dump, name), answerLimits(dump, upstream)
						if upstream != name && inside.narrower(outside) {
							r.warn(checkLimits, fmt.Sprintf("%s: cluster %q takes answers with %s, and cluster %q those with %s", g.place(), oneLine(upstream), outside, oneLine(name), inside), do)
						}
					}
				}
			}
		}
	}
	if len(r.findings) == before && len(g.innerClusters()) > 0 {
		r.ok(checkLimits, "%s: the way to the upstream takes larger headers than either end", strings.TrimSpace(g.place()))
	}
}
