package e2e

import (
	"strings"
	"testing"
)

// A reservation whose owner is gone, on a real process that is killed
// again and again. The key does not come free, and what was renewed, said and resolved
// stays so.
func TestVanishedOwnerLeavesAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var p *process
	start := func() {
		p = startManager(t, "--data-dir", dir, "--admin", "127.0.0.1:0", "--pending-ttl-seconds", "2",
			"--committed-ttl-seconds", "3600", "--cleanup-interval-seconds", "0.05")
	}
	want := func(path, body string, status int, text string) {
		t.Helper()
		if got, answer := post(t, p.addr["api"], path, body); got != status || !strings.Contains(answer, text) {
			t.Errorf("%s %s: %d %s, want %d %s", path, body, got, answer, status, text)
		}
	}
	const reserve, renew, unknown, commit = "/v1/ledger/reserve", "/v1/ledger/renew", "/v1/ledger/unknown", "/v1/ledger/commit"
	start()
	for _, key := range []string{"gone", "late", "said", "settled", "works"} {
		want(reserve, `{"key":"`+key+`","token":"t1"}`, 201, "reserved")
	}
	want(renew, `{"key":"works","token":"t1","pending_ttl_ms":3600000}`, 200, `"expires_in_ms":3600000`)
	want(unknown, `{"key":"said","token":"t1"}`, 200, `{"state":"unknown","expires_in_ms":3600000}`)
	// A duplicate that waits is answered as soon as the reservation has run out.
	want(reserve, `{"key":"gone","token":"t2","wait_ms":30000}`, 409, `"code":"outcome-unknown"`)
	stored := func() bool {
		_, stats := get(t, p.addr["api"], "/v1/ledger/stats")
		return strings.Contains(stats, `"unknown":4}`)
	}
	waitFor(t, "the sweeper stores what ran out", stored)
	for round := range 3 {
		p.kill()
		start()
		for _, key := range []string{"gone", "said"} {
			want(reserve, `{"key":"`+key+`","token":"t2"}`, 409, `"code":"outcome-unknown"`)
			want(reserve, `{"key":"`+key+`","token":"t1"}`, 409, `"code":"outcome-unknown"`)
			want(commit, `{"key":"`+key+`","token":"t2","result":{"status":200}}`, 409, `"code":"fenced"`)
		}
		want(reserve, `{"key":"works","token":"t2"}`, 202, "pending")
		want(renew, `{"key":"works","token":"t2"}`, 409, `"code":"fenced"`)
		if round == 0 {
			want(commit, `{"key":"late","token":"t1","result":{"status":201,"body":"aGk="}}`, 200, "committed")
			if code, out := oncegate(t, "ledger", "resolve", "settled", "--as", "committed", "--status", "202", "--manager", "http://"+p.addr["api"]); code != 0 {
				t.Error(out)
			}
			waitFor(t, "the resolution is in the log", func() bool {
				log := p.stderr.String()
				return strings.Contains(log, `"entry resolved as committed by an operator"`) && strings.Contains(log, `"key":"settled"`)
			})
			_, metrics := get(t, p.addr["admin"], "/metrics")
			for _, line := range []string{
				`oncegate_ledger_calls_total{op="resolve",outcome="done"} 1`, `oncegate_ledger_calls_total{op="renew",outcome="fenced"} 1`,
				`oncegate_ledger_entries{state="unknown"} 2`, `oncegate_ledger_lapsed_total 0`,
			} {
				if !strings.Contains(metrics, line+"\n") {
					t.Errorf("metrics lack %s", line)
				}
			}
		}
		want(reserve, `{"key":"late","token":"t2"}`, 200, `"body":"aGk="`)
		want(reserve, `{"key":"settled","token":"t2"}`, 200, `"result":{"status":202,"headers":[],"body":"","body_omitted":true}`)
	}
	if code, out := oncegate(t, "ledger", "list", "--state", "unknown", "--manager", "http://"+p.addr["api"]); code != 0 || strings.Count(out, " unknown ") != 2 {
		t.Error(out)
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr)
	}
}
