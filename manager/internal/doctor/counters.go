package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

const (
	checkCounters = "envoy: counters"
	checkAnswers  = "envoy: answers of managers"
)

// statistics are Envoy's, by name. They count from Envoy's start.
type statistics map[string]int

// statsFilter selects what the doctor reads of /stats.
const statsFilter = `^wasmcustom\.oncegate_|^wasm_.*oncegate_|^cluster\..*\.upstream_rq_(40.|5xx)$|\.(update_rejected|config_fail|listener_create_failure)$`

func (t Target) statistics(ctx context.Context) statistics {
	text, err := t.getOK(ctx, t.Envoy+"/stats?filter="+url.QueryEscape(statsFilter))
	if err != nil {
		return nil
	}
	all := statistics{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		n, _ := strconv.Atoi(value) // a histogram has no number, and its name is enough
		all[name] = n
	}
	return all
}

// loaded reports whether the gate has defined its metrics.
func (s statistics) loaded() bool {
	for name := range s {
		if strings.HasPrefix(name, "wasmcustom.oncegate_") || strings.HasPrefix(name, "wasm_") && strings.Contains(name, "oncegate_") {
			return true
		}
	}
	return false
}

// gateAlarms are counters of the gate that should be 0.
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
	{"call_wrong_shard", Fail, "a manager refuses calls that mean another shard or another ledger", "correct manager.shards of the gate, the clusters' addresses, or --shard of the manager: see docs/operating.md#oncegatewrongshard"},
	{"ledger_changed", Fail, "a manager answers with another ledger than before, which knows none of the earlier keys", "restore the earlier ledger, or wait until the quarantine is over: see docs/operating.md#oncegateledgerchanged"},
	{"outcomes_abandoned", Warn, "outcomes never reached the manager", "retries get 409 until they are settled: see docs/operating.md#oncegateoutcomeslost"},
}

// counters looks at the gate's counters in Envoy's statistics.
func counters(r *report, stats statistics) {
	before := len(r.findings)
	for _, a := range gateAlarms {
		sum := 0
		for name, n := range stats {
			if strings.HasSuffix(name, "oncegate_gate_"+a.counter+"_total") {
				sum += n
			}
		}
		if sum > 0 {
			r.findings = append(r.findings, Finding{Level: a.level, Check: checkCounters, Found: fmt.Sprintf("%s (%d since Envoy's start)", a.found, sum), Do: a.do})
		}
	}
	r.okUnless(before, checkCounters, "no refusal or failure of the gate since Envoy's start")
}

// answerAlarms are answers that the gate gets from managers only if something is wrong.
var answerAlarms = []struct{ class, do string }{
	{"401", "set manager.auth_token of the gate, or the variable that manager.auth_token_env names, to a token of the managers' --auth-token-file"},
	{"403", `give the gate's token the word "gate" in the managers' --auth-token-file`},
	{"404", "look whether the cluster leads to managers and not to another service"},
	{"405", "look whether the cluster leads to managers and not to another service"},
	{"5xx", "look at the managers' logs, and whether Envoy reaches them"},
}

// answersOfManagers looks at the statuses that the managers' clusters returned since Envoy's start. The cause may be gone, so
// these are warnings.
func answersOfManagers(r *report, gates []gate, dump object, statuses map[string]object, stats statistics) {
	shared := map[string]bool{} // clients' requests go there as well, so a 4xx may be a client's mistake
	for _, g := range gates {
		for _, routes := range g.routes(dump) {
			for name := range clustersOf(routes) {
				shared[name] = true
			}
		}
	}
	before := len(r.findings)
	for _, name := range clustersOfManagers(gates) {
		label := cmp.Or(statuses[name].text("observability_name"), name)
		for _, a := range answerAlarms {
			n := stats["cluster."+strings.ReplaceAll(label, ":", "_")+".upstream_rq_"+a.class]
			if n > 0 && (a.class == "5xx" || !shared[name]) {
				r.warn(checkAnswers, fmt.Sprintf("cluster %q answered %s with %s since Envoy's start", oneLine(name), many(n, "call"), a.class), a.do)
			}
		}
	}
	r.okUnless(before, checkAnswers, "no refusal or failure since Envoy's start")
}
