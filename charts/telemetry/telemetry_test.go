package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	docs  = "../../docs"
	files = "../oncegate/files"
)

func read(t *testing.T, parts ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

type rules struct {
	Groups []struct {
		Rules []struct {
			Record, Alert, Expr string
			Labels, Annotations map[string]string
		}
	}
}

func rulesOf(t *testing.T, name string) (all rules) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(read(t, files, "prometheus", name)), &all, yaml.DisallowUnknownFields); err != nil && !strings.Contains(err.Error(), "unknown field") {
		t.Fatal(err)
	}
	return all
}

// The boards in the repository are what the generator writes.
func TestBoardsAreUpToDate(t *testing.T) {
	kept, err := filepath.Glob(filepath.Join(files, "grafana", "*.json"))
	if err != nil || len(kept) != len(boards) {
		t.Errorf("%d boards are kept, and there are %d (%v)", len(kept), len(boards), err)
	}
	for name, b := range boards {
		if read(t, files, "grafana", name+".json") != string(b.json()) {
			t.Errorf("%s.json is not what the generator writes: run go run ./charts/telemetry", name)
		}
	}
}

var (
	metric     = regexp.MustCompile(`\b(?:(?:job|instance):)?oncegate_[a-z0-9_]+(?::[a-z0-9_]+)?`)
	headed     = regexp.MustCompile(`(?m)^### (Oncegate\w+)$`)
	histograms = regexp.MustCompile(`_(?:bucket|sum|count)$`)
	patterns   = regexp.MustCompile(`"[^"]*"`)
)

// Each metric of a board, an alert or a recording rule is in a reference, or a recording rule makes it.
func TestMetricsExist(t *testing.T) {
	known := map[string]bool{}
	for _, page := range []string{"reference/METRICS.md", "reference/LEDGER.md", "reference/JOBS.md", "reference/LOGS.md", "backup.md", "datacenters.md"} {
		for line := range strings.Lines(read(t, docs, page)) {
			if cell, _, ok := strings.Cut(strings.TrimPrefix(line, "|"), " |"); ok && strings.HasPrefix(line, "| `") {
				for _, name := range metric.FindAllString(cell, -1) {
					known[name] = true
				}
			}
		}
	}
	recording, alerts := rulesOf(t, "recording.yaml"), rulesOf(t, "alerts.yaml")
	uses := map[string]string{}
	for _, g := range append(recording.Groups, alerts.Groups...) {
		for _, r := range g.Rules {
			uses[r.Record+r.Alert] = r.Expr
			if r.Record != "" {
				known[r.Record] = true
				if !strings.Contains(read(t, docs, "reference", "METRICS.md"), "`"+r.Record+"`") {
					t.Errorf("METRICS.md lacks the recorded metric %s", r.Record)
				}
			}
		}
	}
	for _, b := range boards {
		for _, row := range b.rows {
			for _, p := range row.panels {
				for _, q := range p.queries {
					uses[b.title+": "+p.title] += " " + q.expr
				}
			}
		}
	}
	uses["docs/reference/JOBS.md: ScaledObject"] = scalerOf(t)
	found := 0
	for where, expr := range uses {
		for _, name := range metric.FindAllString(patterns.ReplaceAllString(expr, ""), -1) {
			found++
			if !known[name] && !known[histograms.ReplaceAllString(name, "")] {
				t.Errorf("%s uses %s, which no reference has", where, name)
			}
		}
	}
	if found < 80 {
		t.Errorf("found only %d metrics", found)
	}
}

// scalerOf returns the query of the example of an autoscaler.
func scalerOf(t *testing.T) string {
	t.Helper()
	_, example, _ := strings.Cut(read(t, docs, "reference", "JOBS.md"), "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	var object struct {
		Kind string
		Spec struct {
			Triggers []struct {
				Type     string
				Metadata map[string]string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(example), &object); err != nil || object.Kind != "ScaledObject" || len(object.Spec.Triggers) != 1 || object.Spec.Triggers[0].Type != "prometheus" {
		t.Fatalf("the example of an autoscaler: %v, %+v", err, object)
	}
	query := object.Spec.Triggers[0].Metadata["query"]
	if !strings.Contains(query, `oncegate_jobs_by_function{function="`) {
		t.Errorf("the autoscaler's query %q does not ask for the jobs of a function", query)
	}
	return query
}

// Each alert has a severity, says what it is about, and leads to its section of docs/operating.md; each section has its alert.
func TestAlertsHaveSections(t *testing.T) {
	sections := map[string]bool{}
	for _, m := range headed.FindAllStringSubmatch(read(t, docs, "operating.md"), -1) {
		sections[m[1]] = true
	}
	for _, r := range rulesOf(t, "alerts.yaml").Groups[0].Rules {
		if s := r.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s has the severity %q", r.Alert, s)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s does not say what it is about", r.Alert)
		}
		if want := "https://github.com/oncegate/oncegate/blob/main/docs/operating.md#" + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want || !sections[r.Alert] {
			t.Errorf("%s has the runbook %q, want %q with its own heading: %v", r.Alert, r.Annotations["runbook_url"], want, sections[r.Alert])
		}
		delete(sections, r.Alert)
	}
	if len(sections) > 0 {
		t.Errorf("sections without an alert: %v", sections)
	}
}

// promtool runs Prometheus' tool, which `make test-deps` installs.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("promtool", args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", args, err, out)
	}
}

func TestPromtoolAcceptsTheRules(t *testing.T) {
	promtool(t, "check", "rules", filepath.Join(files, "prometheus", "recording.yaml"), filepath.Join(files, "prometheus", "alerts.yaml"))
}

// The series of a healthy deployment, one sample a minute.
var healthy = map[string]string{
	`up{job="oncegate",instance="a"}`:                                                   "1x40",
	`oncegate_build_info{job="oncegate",instance="a"}`:                                  "1x40",
	`oncegate_ready{job="oncegate",instance="a"}`:                                       "1x40",
	`oncegate_ledger_bytes{job="oncegate",instance="a"}`:                                "10x40",
	`oncegate_ledger_max_bytes{job="oncegate",instance="a"}`:                            "100x40",
	`oncegate_ledger_entries{job="oncegate",instance="a",state="committed"}`:            "10x40",
	`oncegate_ledger_max_entries{job="oncegate",instance="a"}`:                          "100x40",
	`oncegate_wal_fsync_duration_seconds_bucket{job="oncegate",instance="a",le="0.05"}`: "0+60x40",
	`oncegate_wal_fsync_duration_seconds_bucket{job="oncegate",instance="a",le="+Inf"}`: "0+60x40",
	`oncegate_tls_certificate_not_after_timestamp_seconds{job="oncegate"}`:              "10000000x40",
	`oncegate_gate_requests_miss_total{job="envoy",instance="e"}`:                       "0+600x40",
	`oncegate_gate_requests_manager_error_total{job="envoy",instance="e"}`:              "0x40",
	`oncegate_jobs{job="oncegate",instance="a",state="dead"}`:                           "0x40",
	`oncegate_jobs_bytes{job="oncegate",instance="a"}`:                                  "10x40",
	`oncegate_jobs_max_bytes{job="oncegate",instance="a"}`:                              "100x40",
	`process_start_time_seconds{job="oncegate",instance="a"}`:                           "0x40",
	`oncegate_downtimes_total{job="oncegate",instance="a"}`:                             "0x40",
	`oncegate_ledger_fenced_total{job="oncegate",instance="a",op="release"}`:            "0+1x40",
	`oncegate_ledger_fenced_total{job="oncegate",instance="a",op="renew"}`:              "0+1x40",
	`oncegate_store_majority{job="oncegate",instance="a"}`:                              "1x40",
	`oncegate_store_full{job="oncegate",instance="a"}`:                                  "0x40",
	`oncegate_store_size_bytes{job="oncegate",instance="a"}`:                            "50x40",
	`oncegate_store_quota_bytes{job="oncegate",instance="a"}`:                           "100x40",
}

// What makes each alert fire: series that are added to the healthy ones, or replace them. "-" removes one.
var troubles = map[string]map[string]string{
	"OncegateManagerDown":          {`up{job="oncegate",instance="a"}`: "1x20 0x20"},
	"OncegateManagersMissing":      {`oncegate_build_info{job="oncegate",instance="a"}`: "-"},
	"OncegateManagerNotReady":      {`oncegate_ready{job="oncegate",instance="a"}`: "0x40"},
	"OncegateWindowNearlyFull":     {`oncegate_ledger_bytes{job="oncegate",instance="a"}`: "85x40"},
	"OncegateWindowRefuses":        {`oncegate_ledger_calls_total{job="oncegate",instance="a",op="reserve",outcome="full"}`: "0+1x40"},
	"OncegateUnknownOutcomes":      {`oncegate_ledger_entries{job="oncegate",instance="a",state="unknown"}`: "1x40"},
	"OncegateFenced":               {`oncegate_gate_reservations_lost_total{job="envoy",instance="e"}`: "0x35 1x5"},
	"OncegateStoreErrors":          {`oncegate_ledger_calls_total{job="oncegate",instance="a",op="reserve",outcome="error"}`: "0+1x40"},
	"OncegateStoreMajorityLost":    {`oncegate_store_majority{job="oncegate",instance="a"}`: "0x40"},
	"OncegateStoreFull":            {`oncegate_store_full{job="oncegate",instance="a"}`: "1x40", `oncegate_store_size_bytes{job="oncegate",instance="a"}`: "100x40"},
	"OncegateStoreNearlyFull":      {`oncegate_store_size_bytes{job="oncegate",instance="a"}`: "85x40"},
	"OncegateDiskFull":             {`oncegate_wal_no_space{job="oncegate",instance="a"}`: "1x40"},
	"OncegateFsyncSlow":            {`oncegate_wal_fsync_duration_seconds_bucket{job="oncegate",instance="a",le="0.05"}`: "0x40", `oncegate_wal_fsync_duration_seconds_bucket{job="oncegate",instance="a",le="0.5"}`: "0+60x40"},
	"OncegateStateWritesFail":      {`oncegate_state_write_errors_total{job="oncegate",instance="a"}`: "0+1x40"},
	"OncegateShippingLate":         {`oncegate_ship_failing_seconds{job="oncegate",instance="a"}`: "0+60x40"},
	"OncegateShippingGap":          {`oncegate_ship_gaps_total{job="oncegate",instance="a"}`: "0x30 1x10"},
	"OncegateCertificateEnds":      {`oncegate_tls_certificate_not_after_timestamp_seconds{job="oncegate"}`: "100000x40"},
	"OncegateGateUnprotected":      {`oncegate_gate_requests_bypass_total{job="envoy",instance="e"}`: "0+1x40"},
	"OncegateGateRefuses":          {`oncegate_gate_requests_manager_error_total{job="envoy",instance="e"}`: "0+20x40"},
	"OncegateOutcomesLost":         {`oncegate_gate_outcomes_abandoned_total{job="envoy",instance="e"}`: "0+1x40"},
	"OncegateGateSetupWrong":       {`oncegate_gate_requests_body_unavailable_total{job="envoy",instance="e"}`: "0+1x40"},
	"OncegateWrongShard":           {`oncegate_gate_call_wrong_shard_total{job="envoy",instance="e"}`: "0+1x40"},
	"OncegateLedgerChanged":        {`oncegate_gate_ledger_changed_total{job="envoy",instance="e"}`: "0x35 1x5"},
	"OncegateUnreadableRecords":    {`oncegate_unreadable_records{job="oncegate",instance="a",collection="ledger"}`: "2x40"},
	"OncegateDecryptionFails":      {`oncegate_encryption_failures_total{job="oncegate",instance="a"}`: "0+1x40"},
	"OncegateLogFailed":            {`oncegate_logs_failed{job="oncegate",instance="a",log="l"}`: "1x40"},
	"OncegateDataCentersConflict":  {`oncegate_feed_conflicts_total{job="oncegate",instance="a"}`: "0x35 1x5"},
	"OncegateConflictsNotListed":   {`oncegate_feed_conflicts_unkept_total{job="oncegate",instance="a"}`: "0x35 1x5"},
	"OncegateDataCentersDisagree":  {`oncegate_home_refuses{job="oncegate",instance="a"}`: "1x40"},
	"OncegatePeerBehind":           {`oncegate_peer_lag_seconds{job="oncegate",instance="a",peer="b"}`: "0+60x40"},
	"OncegatePeerUnreachable":      {`oncegate_peer_failures_total{job="oncegate",instance="a",peer="b"}`: "0+6x40"},
	"OncegatePeerOutcomesRefused":  {`oncegate_peer_refused_total{job="oncegate",instance="a",peer="b"}`: "0x35 1x5"},
	"OncegatePeerOutcomesDropped":  {`oncegate_feed_imported_total{job="oncegate",instance="a",result="dropped"}`: "0x35 1x5"},
	"OncegateStandbysMissing":      {`oncegate_store_sync_standbys{job="oncegate",instance="a"}`: "0x40", `oncegate_store_sync_standbys_required{job="oncegate",instance="a"}`: "1x40"},
	"OncegateShippingWithoutLease": {`oncegate_ship_lease_term{job="oncegate",instance="a"}`: "0x40"},
	"OncegateDeadLetters":          {`oncegate_jobs{job="oncegate",instance="a",state="dead"}`: "3x40"},
	"OncegateJobsWait":             {`oncegate_jobs_by_function_oldest_queued_age_seconds{job="oncegate",instance="a",function="f"}`: "0+60x40"},
	"OncegateJobsNearlyFull":       {`oncegate_jobs_bytes{job="oncegate",instance="a"}`: "85x40"},
	"OncegateJobsRefused":          {`oncegate_jobs_operations_total{job="oncegate",instance="a",outcome="full"}`: "0+1x40"},
	"OncegateScheduleMissed":       {`oncegate_jobs_schedule_late_seconds{job="oncegate",instance="a"}`: "90x40"},
	"OncegateManagerStandsStill":   {`oncegate_downtimes_total{job="oncegate",instance="a"}`: "0+1x40"},
}

// Each alert fires for its own trouble and for no other, and none where all is well.
func TestAlertsFire(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"recording.yaml", "alerts.yaml"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(read(t, files, "prometheus", name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	b.WriteString("rule_files: [recording.yaml, alerts.yaml]\nevaluation_interval: 1m\ntests:\n")
	write := func(name string, trouble map[string]string, expected string) {
		series := map[string]string{}
		for _, from := range []map[string]string{healthy, trouble} {
			for s, values := range from {
				series[s] = values
			}
		}
		fmt.Fprintf(&b, "- name: %s\n  interval: 1m\n  input_series:\n", name)
		for s, values := range series {
			if values != "-" {
				fmt.Fprintf(&b, "  - {series: %q, values: %q}\n", s, values)
			}
		}
		b.WriteString("  promql_expr_test:\n  - expr: count by (alertname) (ALERTS{alertstate=\"firing\"})\n    eval_time: 39m\n    exp_samples: [" + expected + "]\n")
	}
	write("all is well", nil, "")
	for _, r := range rulesOf(t, "alerts.yaml").Groups[0].Rules {
		if troubles[r.Alert] == nil {
			t.Errorf("no trouble makes %s fire", r.Alert)
			continue
		}
		write(r.Alert, troubles[r.Alert], fmt.Sprintf("{labels: '{alertname=%q}', value: 1}", r.Alert))
	}
	write("a window full of entries", map[string]string{`oncegate_ledger_entries{job="oncegate",instance="a",state="committed"}`: "85x40"}, `{labels: '{alertname="OncegateWindowNearlyFull"}', value: 1}`)
	// Each outcome that was refused fires the alert, which names it.
	for _, op := range []string{"commit", "reject", "unknown"} {
		fmt.Fprintf(&b, `- name: fenced %[1]s
  interval: 1m
  input_series:
  - {series: 'oncegate_ledger_fenced_total{job="oncegate",instance="a",op="%[1]s"}', values: 0x35 1x5}
  - {series: 'oncegate_ledger_fenced_total{job="oncegate",instance="a",op="release"}', values: 0+1x40}
  promql_expr_test:
  - {expr: 'count by (op) (ALERTS{alertname="OncegateFenced",alertstate="firing"})', eval_time: 39m, exp_samples: [{labels: '{op="%[1]s"}', value: 1}]}
`, op)
	}
	b.WriteString(`- name: instants that no manager came to in time
  interval: 1m
  input_series:
  - {series: 'oncegate_jobs_schedule_late_seconds{job="oncegate",instance="a"}', values: 0x40}
  - {series: 'oncegate_jobs_schedule_instants_total{job="oncegate",instance="a",outcome="enqueued"}', values: 0+1x40}
  - {series: 'oncegate_jobs_schedule_instants_total{job="oncegate",instance="a",outcome="missed"}', values: 0x20 3x20}
  promql_expr_test:
  - {expr: 'count by (alertname) (ALERTS{alertname="OncegateScheduleMissed",alertstate="firing"})', eval_time: 25m, exp_samples: [{labels: '{alertname="OncegateScheduleMissed"}', value: 1}]}
  - {expr: 'count by (alertname) (ALERTS{alertname="OncegateScheduleMissed",alertstate="firing"})', eval_time: 19m, exp_samples: []}
`)
	b.WriteString(`- name: gate
  interval: 1m
  input_series:
  - {series: 'oncegate_gate_requests_hit_committed_total{job="envoy"}', values: 0+1x10}
  - {series: 'oncegate_gate_requests_fenced_total{job="envoy"}', values: 0+1x10}
  - {series: 'oncegate_gate_outcomes_committed_total{job="envoy"}', values: 0+2x10}
  - {series: 'oncegate_gate_call_microseconds_sum{job="envoy"}', values: 0+1000000x10}
  promql_expr_test:
  - {expr: oncegate_gate_requests_total, eval_time: 5m, exp_samples: [{labels: 'oncegate_gate_requests_total{job="envoy",result="hit_committed"}', value: 5}]}
  - {expr: oncegate_gate_outcomes_total, eval_time: 5m, exp_samples: [{labels: 'oncegate_gate_outcomes_total{job="envoy",outcome="committed"}', value: 10}]}
  - {expr: oncegate_gate_call_duration_seconds_sum, eval_time: 5m, exp_samples: [{labels: 'oncegate_gate_call_duration_seconds_sum{job="envoy"}', value: 5}]}
`)
	if err := os.WriteFile(filepath.Join(dir, "test.yaml"), b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "test", "rules", filepath.Join(dir, "test.yaml"))
}
