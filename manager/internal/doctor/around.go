package doctor

import (
	"fmt"
	"maps"
	"slices"
)

const (
	checkAround = "envoy: ways around"
	checkRow    = "envoy: gates in a row"
)

// around looks for ways to the gate's upstreams on which it is switched off, or on which there is no gate. Such a way may be
// meant, so it is no failure.
func (g gate) around(r *report, dump object) {
	before := len(r.findings)
	warn := func(found, do string) { r.warn(checkAround, g.place()+": "+found, do) }
	protected, enabling := map[string]bool{}, 0
	for _, routes := range routesOf(dump, g.manager) {
		routes.walk("", func(path string, o object) {
			setting := o.at("typed_per_filter_config").at(g.entry.text("name"))
			if setting != nil && setting["disabled"] != true {
				enabling++
			}
			if setting["disabled"] == true {
				warn(fmt.Sprintf("route configuration %q, %s: the filter is disabled", oneLine(routes.text("name")), path),
					"requests pass unprotected there: remove the setting unless that is meant")
			}
		})
		maps.Copy(protected, clustersOf(routes))
	}
	// Blanks for recorded gRPC answers come from the managers, which count their keys themselves.
	for _, name := range g.clusters() {
		delete(protected, name)
	}
	// Envoy Gateway disables filters, and enables them on the routes of their policies.
	if g.entry["disabled"] == true && enabling == 0 {
		warn("the filter is disabled, and no route enables it", `remove "disabled" from the filter, or enable it on the routes to protect: all requests pass unprotected`)
	}
	for _, l := range listeners(dump) {
		if l["internal_listener"] != nil {
			continue
		}
		// A listener may have several filter chains.
		open := l.all("HttpConnectionManager")
		chains := len(open)
		open = slices.DeleteFunc(open, func(m object) bool { return len(gatesOf(l, m)) > 0 })
		what, where := fmt.Sprintf("listener %q has no gate, and", oneLine(l.text("name"))), "that listener"
		if len(open) < chains {
			what, where = fmt.Sprintf("a filter chain of listener %q has no gate. It", oneLine(l.text("name"))), "that filter chain"
		}
		for _, routes := range routesOf(dump, open...) {
			for _, name := range slices.Sorted(maps.Keys(clustersOf(routes))) {
				if protected[name] {
					warn(fmt.Sprintf("%s leads to cluster %q as well", what, oneLine(name)),
						"requests pass unprotected there: put the filter into "+where+" unless that is meant")
				}
			}
		}
	}
	switch {
	case len(r.findings) > before:
	case g.entry["disabled"] == true:
		r.ok(checkAround, "%s: enabled on %d routes or virtual hosts, and no other listener or filter chain leads to its upstreams", g.place(), enabling)
	default:
		r.ok(checkAround, "%s: all routes have it, and no other listener or filter chain leads to its upstreams", g.place())
	}
}

// inARow looks for gates that a request passes one after the other and that have one ledger.
func inARow(r *report, gates []gate) {
	for i, g := range gates {
		for _, next := range gates[i+1:] {
			if !sameObject(g.manager, next.manager) || g.entry["disabled"] == true || next.entry["disabled"] == true ||
				g.config.text("ledger") == "none" || next.config.text("ledger") == "none" || !slices.Equal(g.clusters(), next.clusters()) {
				continue
			}
			r.fail(checkRow, fmt.Sprintf("%s stands before filter %q, which has the same managers", g.place(), oneLine(next.filter.text("name"))),
				"remove one of them: the second finds the reservation of the first, and requests with a key get 409")
		}
	}
}

// routesOf returns the route configurations of connection managers, those that Envoy discovered among them.
func routesOf(dump object, managers ...object) (found []object) {
	for _, m := range managers {
		if o := m.at("route_config"); o != nil {
			found = append(found, o)
		}
		if name := m.at("rds").text("route_config_name"); name != "" {
			for _, rc := range dump.all("RouteConfiguration") {
				if rc.text("name") == name {
					found = append(found, rc)
				}
			}
		}
	}
	return found
}

// clustersOf returns the clusters that routes lead to.
func clustersOf(routes object) map[string]bool {
	names := map[string]bool{}
	routes.walk("", func(_ string, o object) {
		action := o.at("route")
		if name := action.text("cluster"); name != "" {
			names[name] = true
		}
		for _, c := range action.at("weighted_clusters").list("clusters") {
			names[c.text("name")] = true
		}
	})
	return names
}
