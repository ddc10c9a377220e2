package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/client"
)

// mustJobs runs a command that succeeds and returns its output.
func mustJobs(t *testing.T, url string, args ...string) string {
	t.Helper()
	code, out, errs := jobsCLI(url, args...)
	if code != 0 || errs != "" {
		t.Fatalf("oncegate jobs %v: exit code %d, %s", args, code, errs)
	}
	return out
}

func TestJobsAreSubmittedFromTheCommandLine(t *testing.T) {
	url := jobsManager(t)
	if got := mustJobs(t, url, "submit", "mail.send", `{"to": "ann"}`, "--id", "a", "--key", "order:1", "--priority", "5", "--max-attempts", "3", "--delay-seconds", "60",
		"--dedup", "until_executed", "--dedup-key", "d", "--dedup-ttl-seconds", "60", "--reschedule-once", "--idempotency-key", "once"); !strings.HasPrefix(got, "id        a\nfunction  mail.send\nstate     scheduled\n") ||
		!strings.Contains(got, "dedup     until_executed reschedule_once\n") || !strings.Contains(got, "priority  5\n") {
		t.Errorf("submit:\n%s", got)
	}
	if got := mustJobs(t, url, "get", "a"); !strings.Contains(got, `payload   {"to":"ann"}`) || !strings.Contains(got, "key       order:1\n") {
		t.Errorf("get:\n%s", got)
	}
	if got := mustJobs(t, url, "submit", "mail.send", "--dedup-key", "d"); !strings.Contains(got, "id        a\n") || !strings.Contains(got, "a duplicate") {
		t.Errorf("a duplicate:\n%s", got)
	}
	if got := mustJobs(t, url, "submit", "mail.send", "--key", "order:1", "--return-existing"); !strings.Contains(got, "id        a\n") || !strings.Contains(got, "held the key already") {
		t.Errorf("an existing one:\n%s", got)
	}
	if code, out, errs := jobsCLI(url, "submit", "mail.send", "--key", "order:1"); code != 1 || out != "" || !strings.Contains(errs, "submit: manager: duplicate-key") {
		t.Errorf("key held: exit code %d, %s%s", code, out, errs)
	}
	// What only the manager can find wrong is wrong usage as well.
	if code, _, errs := jobsCLI(url, "submit", "mail.send", "--reschedule-once"); code != 2 || !strings.Contains(errs, "dedup.if_deduplicated") || strings.Count(errs, "\n") != 1 {
		t.Errorf("exit code %d, %s", code, errs)
	}
	for range 2 {
		var j client.Job
		if err := json.Unmarshal([]byte(mustJobs(t, url, "submit", "--json", "f", "7", "--run-at", "2020-01-02T15:04:05Z", "--idempotency-key", "7")), &j); err != nil || j.Function != "f" || j.State != "queued" {
			t.Errorf("submit --json: %+v, %v", j, err)
		}
	}
	if got := mustJobs(t, url, "list", "--function", "f"); strings.Count(got, "\n") != 2 {
		t.Errorf("after the same submission twice:\n%s", got)
	}

	// From a file, and from standard input.
	file := filepath.Join(t.TempDir(), "payload")
	if err := os.WriteFile(file, []byte("[1,\n2]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	mustJobs(t, url, "submit", "g", "--id", "file", "--payload-file", file)
	if got := mustJobs(t, url, "get", "file", "--json"); !strings.Contains(got, `"payload":[1,2]`) {
		t.Errorf("of a file: %s", got)
	}
	var out, errs bytes.Buffer
	env := Environment{Stdin: strings.NewReader(`"typed"`), Stdout: &out, Stderr: &errs, Getenv: noEnv}
	if code := Run(context.Background(), env, []string{"jobs", "submit", "--manager", url, "g", "--id", "stdin", "--payload-file", "-"}); code != 0 {
		t.Fatalf("exit code %d, %s", code, &errs)
	}
	if got := mustJobs(t, url, "get", "stdin"); !strings.Contains(got, `payload   "typed"`) {
		t.Errorf("of standard input: %s", got)
	}
}

func TestManyJobsAreChangedFromTheCommandLine(t *testing.T) {
	url := jobsManager(t)
	for i := range 3 {
		mustJobs(t, url, "submit", "f", "--id", fmt.Sprint("f", i), "--key", fmt.Sprint("k", i))
	}
	mustJobs(t, url, "submit", "g", "--id", "g")
	for _, c := range []struct {
		args, want string
	}{
		{"cancel --function f --state queued --dry-run", "would cancel: 3\n"},
		{"cancel --function f --state queued --older-than-seconds 3600", "cancelled: 0\n"},
		{"cancel --function f --state queued --newer-than-seconds 3600 --dry-run", "would cancel: 3\n"},
		{"cancel --function f --state queued --concurrency-key acme --dry-run", "would cancel: 0\n"},
		{"cancel --state queued --key k1 --dry-run", "would cancel: 1\n"},
		{"cancel --state queued --error-text paper --dry-run", "would cancel: 0\n"},
		{"cancel --function f --state queued --json", `{"matched":3,"done":3,"refused":[],"cursor":""}` + "\n"},
		{"retry --function f --state cancelled", "retried: 3\n"},
		{"empty f --dry-run", "would delete: 3\n"},
		{"empty f", "deleted: 3\n"},
		{"replay --function f", "replayed: 0\n"},
	} {
		if got := mustJobs(t, url, strings.Fields(c.args)...); got != c.want {
			t.Errorf("%s: %s", c.args, got)
		}
	}
	if got := mustJobs(t, url, "delete", "g"); !strings.Contains(got, "\ng   g         queued") {
		t.Errorf("delete:\n%s", got)
	}
	if got := mustJobs(t, url, "list"); strings.Count(got, "\n") != 1 {
		t.Errorf("left:\n%s", got)
	}

	// A refusal is printed, and does not stop the others.
	for i := range 2 {
		mustJobs(t, url, "submit", "f", "--id", fmt.Sprint("f", i), "--key", fmt.Sprint("k", i))
	}
	mustJobs(t, url, "cancel", "f0", "f1")
	mustJobs(t, url, "submit", "h", "--key", "k0")
	code, out, errs := jobsCLI(url, "retry", "--function", "f", "--state", "cancelled")
	if code != 1 || !strings.HasPrefix(out, "REFUSED  WHY\nf0       manager: duplicate-key: ") || !strings.HasSuffix(out, "\nretried: 1\n") || errs != "oncegate jobs: retry: 1 of 2 jobs were refused\n" {
		t.Errorf("exit code %d, %s%s", code, out, errs)
	}
	// What only the manager can find wrong is wrong usage as well.
	code, _, errs = jobsCLI(url, "cancel", "--state", "complete")
	if code != 2 || !strings.Contains(errs, "state") || !strings.Contains(errs, "scheduled, queued, active for cancel") || strings.Count(errs, "\n") != 1 {
		t.Errorf("exit code %d, %s", code, errs)
	}
	if code, _, errs = jobsCLI(url, "list", "--key", "k "); code != 2 || !strings.Contains(errs, "field key: ") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	if code, _, errs = jobsCLI(url, "cancel", "--function", "f"); code != 2 || !strings.Contains(errs, "field state: is missing") {
		t.Errorf("exit code %d, %s", code, errs)
	}
}
