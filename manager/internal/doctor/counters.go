package doctor

import (
	"fmt"
	"strconv"
	"strings"
)

const checkCounters = "envoy: counters"

// gateAlarms are counters of the gate that should be 0. They count from Envoy's start.
var gateAlarms = []struct {
	counter   string
	level     Level
	found, do string
}{
	{"requests_scope_ambiguous", Warn, "requests lack what scope names, and get 400 scope-ambiguous",
		`look whether a filter before the gate takes it away; see "scope" in docs/reference/CONFIGURATION.md`},
	{"requests_body_unavailable", Fail, "requests get 500, because Envoy does not deliver bodies to the gate", "set allow_on_headers_stop_iteration: true"},
	{"requests_manager_error", Warn, "requests get 503, because no manager answers or the cache is full", "look at the managers, at the gate's token, and at Envoy's log"},
	{"requests_bypass", Warn, "requests pass without protection", `look at the managers ("failure_mode": "open") and at "unsupported": "pass"`},
	{"outcomes_abandoned", Warn, "outcomes never reached the manager", "retries get 409 until it is settled: see docs/runbooks.md"},
}

// counters looks at the gate's counters in Envoy's statistics.
func counters(r *report, stats string) {
	quiet := true
	for _, a := range gateAlarms {
		sum := 0
		for line := range strings.Lines(stats) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			if n, err := strconv.Atoi(value); err == nil && strings.HasSuffix(name, "oncegate_gate_"+a.counter+"_total") {
				sum += n
			}
		}
		if sum > 0 {
			quiet = false
			r.findings = append(r.findings, Finding{Level: a.level, Check: checkCounters, Found: fmt.Sprintf("%s (%d since Envoy's start)", a.found, sum), Do: a.do})
		}
	}
	if quiet {
		r.ok(checkCounters, "no refusal or failure of the gate since Envoy's start")
	}
}
