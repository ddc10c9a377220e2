package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const checkUpdates = "envoy: updates"

// updates looks for configurations that Envoy refused. Envoy then keeps the previous configuration, or has none.
func updates(r *report, dump object, stats statistics) {
	const do = "correct it; until then Envoy keeps what it had before, or has none"
	before := len(r.findings)
	for _, c := range dump.list("configs") {
		for _, kind := range slices.Sorted(maps.Keys(c)) {
			for _, o := range c.list(kind) {
				if e := o.at("error_state"); e != nil {
					r.fail(checkUpdates, fmt.Sprintf("Envoy refused an update among %s%s: %s", kind, named(o, e), oneLine(cmp.Or(e.text("details"), "no details"))), do)
				}
			}
		}
	}
	if len(r.findings) > before {
		return
	}
	// Without an error_state, Envoy has since accepted an update of the same name, or dropped it.
	for _, name := range slices.Sorted(maps.Keys(stats)) {
		for _, end := range []string{".update_rejected", ".config_fail", ".listener_create_failure"} {
			if n := stats[name]; n > 0 && strings.HasSuffix(name, end) {
				r.warn(checkUpdates, fmt.Sprintf("Envoy refused %s since its start (%s)", many(n, "update"), oneLine(name)), "see Envoy's log, and compare /config_dump with what you wrote")
			}
		}
	}
	r.okUnless(before, checkUpdates, "none was refused")
}

// named says what a refused update is about.
func named(o, failed object) string {
	name := cmp.Or(o.text("name"), failed.at("failed_configuration").text("name"))
	for _, member := range []string{"cluster", "route_config", "ecds_filter"} {
		name = cmp.Or(name, o.at(member).text("name"))
	}
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" (%q)", oneLine(name))
}
