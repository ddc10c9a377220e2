package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestJobsBatches(t *testing.T) {
	url := jobsManager(t)
	status, body := post(t, strings.TrimPrefix(url, "http://"), "/v1/batches", `{"jobs":[{"function":"f"},{"function":"f"}],"callback":{"function":"end","id":"last"}}`)
	if status != 202 {
		t.Fatal(status, body)
	}
	if code, out, errs := jobsCLI(url, "batches"); code != 0 || !strings.HasPrefix(out, "BATCH") || !strings.Contains(out, " 2 ") || !strings.Contains(out, "last") {
		t.Errorf("%d %q %s", code, out, errs)
	}
	if code, out, errs := jobsCLI(url, "batches", "--json"); code != 0 || !strings.Contains(out, `"pending"`) {
		t.Errorf("%d %q %s", code, out, errs)
	}
}

func TestJobsEvents(t *testing.T) {
	url := jobsManager(t)
	run := func(args ...string) string {
		t.Helper()
		code, out, errs := jobsCLI(url, args...)
		if code != 0 {
			t.Fatalf("%q: %d %s", args, code, errs)
		}
		return out
	}
	if out := run("send", "paid", "1"); out != "no function subscribes to paid\n" {
		t.Errorf("send: %q", out)
	}
	if out := run("subscribe", "paid", "receipt"); out != "receipt subscribes to paid\n" {
		t.Errorf("subscribe: %q", out)
	}
	if out := run("events"); !strings.HasPrefix(out, "EVENT  FUNCTION") || !strings.Contains(out, "\npaid   receipt") {
		t.Errorf("events: %q", out)
	}
	file := filepath.Join(t.TempDir(), "payload")
	if err := os.WriteFile(file, []byte(`{"order":17}`), 0o600); err != nil {
		t.Fatal(err)
	}
	first := run("send", "paid", "--payload-file", file, "--idempotency-key", "k")
	if again := run("send", "paid", `{"order": 17}`, "--idempotency-key", "k"); again != first || !strings.Contains(first, "receipt") {
		t.Errorf("sent twice: %q, %q", first, again)
	}
	if out := run("list", "--function", "receipt"); strings.Count(out, "\n") != 2 {
		t.Errorf("jobs: %q", out)
	}
	if out := run("unsubscribe", "paid", "receipt"); out != "receipt does not subscribe to paid\n" {
		t.Errorf("unsubscribe: %q", out)
	}
	for _, bad := range [][]string{{"send", "paid", "{"}, {"send", "paid", "1", "--idempotency-key", " k"}, {"send"}, {"subscribe", "paid"}, {"subscribe", "a b", "f"}} {
		if code, _, errs := jobsCLI(url, bad...); code != 2 || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: %d %q", bad, code, errs)
		}
	}
}
