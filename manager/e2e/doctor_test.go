package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/doctor"
)

// examine runs the command with --json.
func examine(t *testing.T, args ...string) (code int, findings []doctor.Finding, stderr string) {
	t.Helper()
	cmd := environ(nil).command(t, append([]string{"doctor", "--json", "--sample-seconds", "0.1", "--timeout-seconds", "60"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		var f doctor.Finding
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		findings = append(findings, f)
	}
	return cmd.ProcessState.ExitCode(), findings, errs.String()
}

func has(findings []doctor.Finding, level doctor.Level, check, found string) bool {
	for _, f := range findings {
		if f.Level == level && f.Check == check && strings.Contains(f.Found, found) {
			return true
		}
	}
	return false
}

// TestDoctorLooksAtAManager: a real manager, in good order and not.
func TestDoctorLooksAtAManager(t *testing.T) {
	t.Parallel()
	tokens := filepath.Join(t.TempDir(), "tokens")
	const operator, gate = "operator-token-0123456789", "gate-token-0123456789"
	if err := os.WriteFile(tokens, fmt.Appendf(nil, "%s operator\n%s gate\n", operator, gate), 0o600); err != nil {
		t.Fatal(err)
	}
	m := startManager(t, "--store", "memory", "--admin", "127.0.0.1:0", "--auth-token-file", tokens, "--shard", "m0", "--max-entries", "10")
	url, metrics := "http://"+m.addr["api"], "http://"+m.addr["admin"]
	tokenFile := func(token string) string {
		name := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(name, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	as := tokenFile(operator)

	code, found, errs := examine(t, "--manager", url, "--metrics", metrics, "--token-file", as)
	if code != 0 || errs != "" {
		t.Errorf("a good manager: exit code %d, %s: %+v", code, errs, found)
	}
	if !has(found, doctor.OK, "manager: answers", "version") && !has(found, doctor.Warn, "manager: answers", "ms") { // a busy machine is slow
		t.Errorf("no word on answers: %+v", found)
	}
	for _, check := range []string{"ready", "clock", "role", "window", "quarantine", "unknown outcomes", "fenced outcomes", "shard", "alarms"} {
		if !has(found, doctor.OK, "manager: "+check, "") {
			t.Errorf("no word on %s: %+v", check, found)
		}
	}
	code, found, _ = examine(t, "--manager", url)
	if code != 1 || !has(found, doctor.Fail, "manager: role", "asks for a credential") {
		t.Errorf("without a token: exit code %d: %+v", code, found)
	}
	code, found, _ = examine(t, "--manager", url, "--token-file", tokenFile(gate))
	if code != 0 || !has(found, doctor.Warn, "manager: role", "may not read") {
		t.Errorf("with a gate's token: exit code %d: %+v", code, found)
	}

	// Nine of ten entries, and one of them with an unknown outcome.
	for i := range 9 {
		req := api.ReserveRequest{Key: fmt.Sprint("k", i), Scope: "s", Token: "t", Fingerprint: "f"}
		paths := []string{api.PathReserve}
		if i == 0 {
			paths = append(paths, api.PathUnknown)
		}
		for _, path := range paths {
			r, err := http.NewRequest(http.MethodPost, url+path, bytes.NewReader(schema.Append(nil, &req)))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", api.ContentTypeJSON)
			r.Header.Set("Authorization", "Bearer "+gate)
			r.Header.Set(api.HeaderShard, "m0")
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
	}
	code, found, _ = examine(t, "--manager", url, "--token-file", as)
	if code != 0 || !has(found, doctor.Warn, "manager: window", "% full") || !has(found, doctor.Warn, "manager: unknown outcomes", "1 key has") {
		t.Errorf("a nearly full window with an unknown outcome: exit code %d: %+v", code, found)
	}
	m.stop(t)
	code, found, errs = examine(t, "--manager", url, "--token-file", as)
	if code != 1 || !has(found, doctor.Fail, "manager: answers", "refused") || !strings.Contains(errs, "1 of 1 checks failed") {
		t.Errorf("no manager: exit code %d, %s: %+v", code, errs, found)
	}
}
