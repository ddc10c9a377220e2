package main

import (
	"encoding/json"
	"strings"
)

// board is a Grafana dashboard: rows of panels, three to a line.
type board struct {
	title  string
	metric string // whose labels job and instance are offered as variables
	rows   []row
}

type row struct {
	title  string
	panels []panel
}

// panel is a graph. In a query, $S stands for the selection of job and instance, with a comma after it.
type panel struct {
	title   string
	unit    string // of Grafana: reqps, eps, cps, s, bytes, percentunit, short
	queries []query
}

type query struct{ expr, legend string }

// one is a panel with a single query.
func one(title, unit, expr, legend string) panel {
	return panel{title, unit, []query{{expr, legend}}}
}

// boards are all boards, by file name.
var boards = map[string]board{
	"oncegate-gate": {"Oncegate: gate", "oncegate_gate_waiters", []row{
		{"Requests", []panel{
			one("Requests with a key, by result", "reqps", `sum by (result) (rate(oncegate_gate_requests_total{$S}[$__rate_interval]))`, "{{result}}"),
			one("Answered from a recording", "percentunit", `sum(rate(oncegate_gate_requests_total{$S result=~"hit_.*|waited"}[$__rate_interval])) / sum(rate(oncegate_gate_requests_total{$S}[$__rate_interval]))`, "share"),
			{"Refused or unprotected", "reqps", []query{
				{`sum(rate(oncegate_gate_requests_manager_error_total{$S}[$__rate_interval]))`, "503"},
				{`sum(rate(oncegate_gate_requests_outcome_unknown_total{$S}[$__rate_interval]))`, "409 outcome unknown"},
				{`sum(rate(oncegate_gate_requests_mismatch_total{$S}[$__rate_interval]))`, "422 mismatch"},
				{`sum(rate(oncegate_gate_requests_bypass_total{$S}[$__rate_interval]))`, "unprotected"},
			}},
		}},
		{"Outcomes and calls", []panel{
			one("Outcomes", "reqps", `sum by (outcome) (rate(oncegate_gate_outcomes_total{$S}[$__rate_interval]))`, "{{outcome}}"),
			{"Time of calls to the manager", "s", []query{
				{`histogram_quantile(0.5, sum by (le) (rate(oncegate_gate_call_microseconds_bucket{$S}[$__rate_interval]))) / 1e6`, "median"},
				{`histogram_quantile(0.99, sum by (le) (rate(oncegate_gate_call_microseconds_bucket{$S}[$__rate_interval]))) / 1e6`, "99 %"},
			}},
			{"Calls", "reqps", []query{
				{`sum(rate(oncegate_gate_call_microseconds_count{$S}[$__rate_interval]))`, "calls"},
				{`sum(rate(oncegate_gate_call_retries_total{$S}[$__rate_interval]))`, "retries"},
				{`sum(rate(oncegate_gate_connections_total{$S}[$__rate_interval]))`, "connections opened"},
			}},
		}},
		{"Waiting and the cache", []panel{
			one("Duplicates that wait", "short", `sum by (instance) (oncegate_gate_waiters{$S})`, "{{instance}}"),
			one("Entries in the cache", "short", `sum by (instance) (oncegate_gate_cache_entries{$S})`, "{{instance}}"),
			one("Answers in the cache", "bytes", `sum by (instance) (oncegate_gate_cache_bytes{$S})`, "{{instance}}"),
		}},
		{"What must stay at zero", []panel{
			{"Lost reservations and outcomes", "short", []query{
				{`sum(increase(oncegate_gate_requests_fenced_total{$S}[$__rate_interval]))`, "outcomes fenced"},
				{`sum(increase(oncegate_gate_reservations_lost_total{$S}[$__rate_interval]))`, "reservations lost"},
				{`sum(increase(oncegate_gate_outcomes_abandoned_total{$S}[$__rate_interval]))`, "outcomes abandoned"},
			}},
			one("Wrong shard", "short", `sum(increase(oncegate_gate_call_wrong_shard_total{$S}[$__rate_interval]))`, "calls"),
			one("Other ledgers", "short", `sum(increase(oncegate_gate_ledger_changed_total{$S}[$__rate_interval]))`, "changes"),
			one("Cache full", "short", `sum(increase(oncegate_gate_cache_full_total{$S}[$__rate_interval]))`, "keys refused"),
		}},
	}},
	"oncegate-ledger": {"Oncegate: ledger", "oncegate_ready", []row{
		{"Calls", []panel{
			one("Calls by operation", "reqps", `sum by (op) (rate(oncegate_ledger_calls_total{$S}[$__rate_interval]))`, "{{op}}"),
			one("Reserves by outcome", "reqps", `sum by (outcome) (rate(oncegate_ledger_calls_total{$S op="reserve"}[$__rate_interval]))`, "{{outcome}}"),
			// Routes without calls have no number (NaN), which is not greater than 0, and no entry in the legend.
			one("Time of calls, 99 %, waits included", "s", `histogram_quantile(0.99, sum by (route, le) (rate(oncegate_http_request_duration_seconds_bucket{$S route=~".*(/v1/ledger/|Ledger/Calls).*"}[$__rate_interval]))) > 0`, "{{route}}"),
		}},
		{"Window", []panel{
			one("Fill", "percentunit", `instance:oncegate_ledger_window_fill:ratio{$S}`, "{{instance}}"),
			one("Entries by state", "short", `sum by (state) (oncegate_ledger_entries{$S})`, "{{state}}"),
			one("Removed", "cps", `sum by (reason) (rate(oncegate_ledger_removed_total{$S}[$__rate_interval]))`, "{{reason}}"),
		}},
		{"Log", []panel{
			{"fsync", "s", []query{
				{`histogram_quantile(0.5, sum by (le) (rate(oncegate_wal_fsync_duration_seconds_bucket{$S}[$__rate_interval])))`, "median"},
				{`histogram_quantile(0.99, sum by (le) (rate(oncegate_wal_fsync_duration_seconds_bucket{$S}[$__rate_interval])))`, "99 %"},
			}},
			{"Disk", "bytes", []query{
				{`oncegate_wal_disk_bytes{$S}`, "{{instance}} log"},
				{`oncegate_state_disk_bytes{$S}`, "{{instance}} state"},
			}},
			one("Not shipped for", "s", `max by (instance) (oncegate_ship_lag_seconds{$S})`, "{{instance}}"),
		}},
		{"Other data centres", []panel{
			one("Lag of outcomes of other data centres", "s", `max by (instance, peer) (oncegate_peer_lag_seconds{$S})`, "{{instance}} {{peer}}"),
			one("Outcomes of others", "cps", `sum by (result) (rate(oncegate_feed_imported_total{$S}[$__rate_interval]))`, "{{result}}"),
			one("Failed calls to peers", "reqps", `sum by (instance, peer) (rate(oncegate_peer_failures_total{$S}[$__rate_interval]))`, "{{instance}} {{peer}}"),
		}},
		{"Shared store and shipping", []panel{
			{"Synchronous standbys of Postgres", "short", []query{
				{`min by (instance) (oncegate_store_sync_standbys{$S})`, "{{instance}} connected"},
				{`max by (instance) (oncegate_store_sync_standbys_required{$S})`, "{{instance}} required"},
			}},
			one("Calls that the store failed", "reqps", `sum by (instance) (rate(oncegate_ledger_calls_total{$S outcome="error"}[$__rate_interval]))`, "{{instance}}"),
			one("Shipping errors", "cps", `sum by (instance) (rate(oncegate_ship_errors_total{$S}[$__rate_interval]))`, "{{instance}}"),
		}},
		{"Load", []panel{
			{"Requests", "short", []query{
				{`sum by (instance) (oncegate_http_requests_in_flight{$S})`, "{{instance}} running"},
				{`sum by (instance) (oncegate_http_requests_held{$S})`, "{{instance}} held"},
			}},
			one("Answers by status class", "reqps", `sum by (class) (rate(oncegate_http_requests_total{$S}[$__rate_interval]))`, "{{class}}"),
			one("Memory", "bytes", `process_resident_memory_bytes{$S}`, "{{instance}}"),
		}},
		{"What must stay at zero", []panel{
			one("Fenced outcomes", "short", `sum by (instance, op) (increase(oncegate_ledger_fenced_total{$S op=~"commit|reject|unknown"}[$__rate_interval]))`, "{{instance}} {{op}}"),
			one("Unknown outcomes", "short", `sum by (instance) (oncegate_ledger_entries{$S state="unknown"})`, "{{instance}}"),
			one("Keys that two data centres ran", "short", `sum by (instance) (increase(oncegate_feed_conflicts_total{$S}[$__rate_interval]))`, "{{instance}}"),
			one("Unreadable records", "short", `sum by (instance, collection) (oncegate_unreadable_records{$S})`, "{{instance}} {{collection}}"),
		}},
	}},
	"oncegate-jobs": {"Oncegate: jobs", "oncegate_ready", []row{
		{"Queue", []panel{
			one("Jobs by state", "short", `max by (state) (oncegate_jobs{$S state!="done"})`, "{{state}}"),
			one("Age of the oldest queued job", "s", `max(oncegate_jobs_oldest_queued_age_seconds{$S})`, "age"),
			one("Dead letters", "short", `max(oncegate_jobs{$S state="dead"})`, "dead letters"),
			one("Share of the jobs' bytes in use", "percentunit", `max by (instance) (oncegate_jobs_bytes{$S} / oncegate_jobs_max_bytes{$S})`, "{{instance}}"),
		}},
		{"Functions", []panel{
			one("Queued jobs by function", "short", `topk(10, max by (function) (oncegate_jobs_by_function{$S state="queued"}))`, "{{function}}"),
			one("Age of the oldest queued job by function", "s", `topk(10, max by (function) (oncegate_jobs_by_function_oldest_queued_age_seconds{$S}))`, "{{function}}"),
			one("Completed jobs by function", "eps", `topk(10, sum by (function) (rate(oncegate_jobs_by_function_operations_total{$S outcome="completed"}[$__rate_interval])))`, "{{function}}"),
			one("Failures by function", "eps", `topk(10, sum by (function, outcome) (rate(oncegate_jobs_by_function_operations_total{$S outcome=~"failed|retried"}[$__rate_interval])))`, "{{function}} {{outcome}}"),
		}},
		{"Work", []panel{
			one("Operations", "eps", `sum by (outcome) (rate(oncegate_jobs_operations_total{$S}[$__rate_interval]))`, "{{outcome}}"),
			one("Failures", "eps", `sum by (outcome) (rate(oncegate_jobs_operations_total{$S outcome=~"failed|retried|reclaimed|dead_by_lease|fenced"}[$__rate_interval]))`, "{{outcome}}"),
			one("Instants of schedules", "short", `sum by (outcome) (increase(oncegate_jobs_schedule_instants_total{$S}[$__rate_interval]))`, "{{outcome}}"),
			one("Claims and waits that are held", "short", `sum by (instance) (oncegate_jobs_waiting{$S})`, "{{instance}}"),
		}},
	}},
}

// softMax is, by unit, where an axis ends whose graphs stay below. Grafana's own choice for a graph of zeros is 100.
var softMax = map[string]float64{"short": 1, "reqps": 0.1, "eps": 0.1, "cps": 0.1, "percentunit": 0.1}

// selection is what $S stands for.
const selection = `job=~"$job",instance=~"$instance",`

type object = map[string]any

// json returns the dashboard as Grafana imports it.
func (b board) json() []byte {
	source := object{"type": "prometheus", "uid": "${datasource}"}
	var panels []object
	id, y := 0, 0
	add := func(p object, x, w, h int) {
		id++
		p["id"], p["gridPos"] = id, object{"x": x, "y": y, "w": w, "h": h}
		panels = append(panels, p)
	}
	for _, r := range b.rows {
		add(object{"type": "row", "title": r.title, "collapsed": false, "panels": []object{}}, 0, 24, 1)
		y++
		for i, p := range r.panels {
			if i > 0 && i%3 == 0 {
				y += 8
			}
			var targets []object
			for j, q := range p.queries {
				expr := strings.ReplaceAll(strings.ReplaceAll(q.expr, "$S}", strings.TrimSuffix(selection, ",")+"}"), "$S ", selection)
				targets = append(targets, object{"refId": string(rune('A' + j)), "datasource": source, "expr": expr, "legendFormat": q.legend, "exemplar": strings.Contains(expr, "oncegate_http_request_duration_seconds_bucket")})
			}
			custom := object{"fillOpacity": 10, "showPoints": "never"}
			if most, ok := softMax[p.unit]; ok {
				custom["axisSoftMax"] = most
			}
			add(object{
				"type": "timeseries", "title": p.title, "datasource": source, "targets": targets,
				"fieldConfig": object{"defaults": object{"unit": p.unit, "min": 0, "custom": custom}, "overrides": []object{}},
				"options":     object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi"}},
			}, i%3*8, 8, 8)
		}
		y += 8
	}
	variable := func(name string) object {
		query := "label_values(" + b.metric + ", " + name + ")"
		return object{
			"type": "query", "name": name, "datasource": source, "query": object{"query": query, "refId": name}, "definition": query,
			"includeAll": true, "allValue": ".*", "multi": true, "refresh": 2, "current": object{"text": "All", "value": "$__all"},
		}
	}
	out, err := json.MarshalIndent(object{
		"title": b.title, "uid": strings.ToLower(strings.ReplaceAll(b.title, ": ", "-")), "tags": []string{"oncegate"}, "schemaVersion": 39,
		"editable": true, "refresh": "30s", "time": object{"from": "now-1h", "to": "now"}, "panels": panels,
		"templating": object{"list": []object{{"type": "datasource", "name": "datasource", "query": "prometheus"}, variable("job"), variable("instance")}},
	}, "", "  ")
	if err != nil {
		panic(err) // it has only plain values
	}
	return append(out, '\n')
}
