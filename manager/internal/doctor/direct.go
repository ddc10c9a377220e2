package doctor

import (
	"fmt"
	"slices"
	"strings"
)

const checkDirect = "envoy: direct routes"

// unseen are rules that a direct call passes by and that the gate's own check does not see. Each is a member of a route,
// of its action or of its match.
var unseen = []string{
	"hash_policy", "metadata_match", "weighted_clusters", "cluster_header", "cluster_specifier_plugin", "inline_cluster_specifier_plugin", "request_mirror_policies",
	"runtime_fraction", "response_headers_to_add", "response_headers_to_remove", "typed_per_filter_config",
}

// direct looks at the routes that let the gate's calls go around the inner listener.
func (g gate) direct(r *report, dump object) {
	var direct []object
	for _, routes := range g.routes(dump) {
		routes.walk("", func(_ string, o object) {
			if o["match"] != nil && o.at("metadata").at("filter_metadata").at("oncegate")["direct"] == true {
				direct = append(direct, o)
			}
		})
	}
	if len(direct) == 0 {
		return
	}
	before := len(r.findings)
	seen := map[string]bool{}
	fail := func(found, do string) {
		if found = g.place() + ": " + found; !seen[found] {
			seen[found] = true
			r.fail(checkDirect, found, do)
		}
	}
	for _, o := range direct {
		name := fmt.Sprintf("route %q", oneLine(o.text("name")))
		if o.text("name") == "" {
			fail(`a route has "direct" in its metadata and no name, so no call goes directly`, "give it a name")
		}
		for _, part := range []object{o, o.at("route"), o.at("match")} {
			for _, rule := range unseen {
				if part[rule] != nil {
					fail(name+" has direct and "+rule+", which direct calls pass by", `remove "direct" from its metadata, or the rule`)
				}
			}
		}
		if cluster := o.at("route").text("cluster"); cluster != "" && !removesInternal(dump, cluster) {
			fail(name+fmt.Sprintf(" has direct, and its cluster %q does not remove x-envoy-internal, which Envoy adds to the gate's calls", oneLine(cluster)),
				"add the filter oncegate_no_internal of envoy/body-mode.yaml to the cluster, or an upstream may take clients for internal ones")
		}
	}
	for _, f := range g.bypassed() {
		fail("direct calls pass the filter "+f+" by", `remove "direct" from the metadata of the routes, or put the filter before the gate`)
	}
	r.okUnless(before, checkDirect, "%s: %d routes have no rules that direct calls pass by", g.place(), len(direct))
}

// removesInternal reports whether a cluster's own filters remove the header. A cluster that the dump does not have is
// taken for one that does.
func removesInternal(dump object, name string) bool {
	known, removes := false, false
	for _, c := range dump.all("Cluster") {
		if c.text("name") != name {
			continue
		}
		known = true
		c.walk("", func(_ string, o object) { removes = removes || strings.EqualFold(o.text("remove"), "x-envoy-internal") })
	}
	return removes || !known
}

// bypassed returns the filters between the gate and the routers, except those of envoy/body-mode.yaml.
func (g gate) bypassed() []string {
	var found []string
	add := func(filters []object) {
		for _, f := range filters {
			if name := f.text("name"); !strings.HasPrefix(name, "oncegate_") && !strings.HasSuffix(f.at("typed_config").text("@type"), ".Router") && f["disabled"] != true {
				found = append(found, fmt.Sprintf("%q", oneLine(name)))
			}
		}
	}
	add(g.after)
	for _, l := range g.inner {
		for _, m := range l.all("HttpConnectionManager") {
			add(m.list("http_filters"))
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}
