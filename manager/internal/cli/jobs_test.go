package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// jobsManager runs a manager in this process and returns its URL.
func jobsManager(t *testing.T, args ...string) string {
	t.Helper()
	addrFile := filepath.Join(t.TempDir(), "addr")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int, 1)
	env := Environment{Stdout: io.Discard, Stderr: io.Discard, Getenv: noEnv}
	go func() {
		done <- Run(ctx, env, append([]string{"serve", "--store", "memory", "--listen", "127.0.0.1:0", "--addr-file", addrFile}, args...))
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-done; code != 0 {
			t.Errorf("oncegate serve: exit code %d", code)
		}
	})
	deadline := time.After(time.Minute)
	for {
		if b, err := os.ReadFile(addrFile); err == nil {
			return "http://" + strings.TrimPrefix(strings.TrimSpace(string(b)), "api ")
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			t.Fatal("the manager does not start")
		}
	}
}

// jobsCLI runs a command against a manager.
func jobsCLI(url string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	env := Environment{Stdout: &out, Stderr: &errs, Getenv: func(name string) (string, bool) {
		if name == managerURLEnv {
			return url, true
		}
		return "", false
	}}
	code = Run(context.Background(), env, append([]string{"jobs"}, args...))
	return code, out.String(), errs.String()
}

func TestOperatorsManageJobs(t *testing.T) {
	url := jobsManager(t)
	c, err := client.New(client.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	submit := func(s client.Submission) {
		t.Helper()
		if s.Function == "" {
			s.Function = "mail.send"
		}
		if _, err := c.SubmitIdempotent(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	// must runs a command that succeeds and returns its output with times blotted out.
	times := regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ`)
	must := func(args ...string) string {
		t.Helper()
		code, out, errs := jobsCLI(url, args...)
		if code != 0 || errs != "" {
			t.Fatalf("oncegate jobs %v: exit code %d, %s", args, code, errs)
		}
		return times.ReplaceAllString(out, "TIME")
	}
	fail := func(id, reason string) {
		t.Helper()
		got, err := c.Claim(ctx, client.ClaimRequest{Worker: "w1", Limit: 1})
		if err != nil || len(got) != 1 || got[0].ID != id {
			t.Fatalf("claimed %+v, %v", got, err)
		}
		if _, err := c.Finish(ctx, client.FinishRequest{ID: id, LeaseToken: got[0].Lease.Token, Status: "failed", Error: reason}); err != nil {
			t.Fatal(err)
		}
	}
	submit(client.Submission{ID: "a", Key: "order:1", Priority: 5, MaxAttempts: 3, Payload: map[string]string{"to": "x"},
		WALLocations: map[string]string{"main": "0/16B3748"}, Dedup: &client.Dedup{Strategy: "until_executed", IfDeduplicated: "reschedule_once"}})
	fail("a", "no such mailbox\nstack\x1b[31m")
	submit(client.Submission{ID: "b", Delay: time.Hour})
	submit(client.Submission{ID: "c", Function: "img.resize"})

	if got, want := must("list"), strings.Join([]string{
		"ID  FUNCTION    STATE      PRIO  ATTEMPT  RUN AT                KEY      ERROR",
		"c   img.resize  queued     0     0/25     TIME",
		"b   mail.send   scheduled  0     0/25     TIME",
		"a   mail.send   failed     5     1/3      TIME  order:1  no such mailbox", "",
	}, "\n"); got != want {
		t.Errorf("list:\n%s\nwant:\n%s", got, want)
	}
	if got := must("list", "--function", "mail.send", "--state=failed", "--limit", "5"); strings.Count(got, "\n") != 2 || !strings.Contains(got, "\na ") {
		t.Errorf("list of failed ones:\n%s", got)
	}
	page := must("list", "--limit", "1")
	cursor := strings.TrimSpace(page[strings.Index(page, "--cursor ")+len("--cursor "):])
	if got := must("list", "--cursor", cursor, "--limit", "1"); !strings.Contains(got, "\nb ") {
		t.Errorf("second page:\n%s", got)
	}
	var listed admin.JobPage
	if err := json.Unmarshal([]byte(must("list", "--json")), &listed); err != nil || len(listed.Jobs) != 3 || listed.Jobs[0].ID != "c" {
		t.Errorf("list --json: %+v, %v", listed, err)
	}
	if got, want := must("get", "a"), strings.Join([]string{
		"id        a", "function  mail.send", "state     failed", "attempt   1 of 3", "priority  5", "key       order:1",
		"dedup     until_executed reschedule_once", "created   TIME", "run at    TIME", "started   TIME", "finished  TIME",
		"wal main  0/16B3748", `error     no such mailbox\nstack\x1b[31m`, `payload   {"to":"x"}`, "",
	}, "\n"); got != want {
		t.Errorf("get:\n%s\nwant:\n%s", got, want)
	}
	var job client.Job
	if err := json.Unmarshal([]byte(must("get", "--json", "a")), &job); err != nil || job.ID != "a" || job.State != "failed" {
		t.Errorf("get --json: %+v, %v", job, err)
	}
	if got := must("get", "a", "--wait-seconds", "60"); !strings.Contains(got, "failed") {
		t.Errorf("get of what is over:\n%s", got)
	}
	if got := must("get", "b", "--wait-seconds", "0.01"); !strings.Contains(got, "scheduled") {
		t.Errorf("get of what is not over:\n%s", got)
	}
	functions := regexp.MustCompile(`^FUNCTION    PAUSED  QUEUED  OLDEST  SCHEDULED  ACTIVE  DEAD  DONE/MIN  FAILED/MIN\nimg.resize          1       \d+\.?\d*m?s +0          0       0     0         0\nmail.send           0               1          0       1     0         1\n$`)
	if got := must("functions"); !functions.MatchString(got) {
		t.Errorf("functions:\n%s", got)
	}
	if got := must("pause", "img.resize", "mail.send"); got != "img.resize: paused\nmail.send: paused\n" {
		t.Errorf("pause: %s", got)
	}
	var examined bytes.Buffer
	if code := Run(ctx, Environment{Stdout: &examined, Stderr: &examined, Getenv: func(string) (string, bool) { return "", false }},
		[]string{"doctor", "--manager", url, "--sample-seconds", "0.1", "--timeout-seconds", "60"}); code > 1 {
		t.Errorf("doctor ends with %d", code)
	}
	for _, want := range []string{
		"ok    jobs: room: 0 % of 512 MiB", "warn  jobs: dead letters: mail.send: 1 job failed for good, the last ", "warn  jobs: paused functions: img.resize: paused for ",
		"ok    jobs: waiting jobs: none",
	} {
		if !strings.Contains(examined.String(), want) {
			t.Errorf("the doctor does not say %q:\n%s", want, examined.String())
		}
	}
	if got := must("functions", "--limit", "1"); !strings.Contains(got, "paused") || !strings.Contains(got, "more: --cursor img.resize") {
		t.Errorf("functions:\n%s", got)
	}
	if got := must("resume", "--json", "img.resize"); got != `{"name":"img.resize","paused":false}`+"\n" {
		t.Errorf("resume: %s", got)
	}
	must("resume", "mail.send")
	if got := must("dead-letters", "mail.send"); !strings.Contains(got, "\na   TIME  1/3      order:1  no such mailbox\n") {
		t.Errorf("dead letters:\n%s", got)
	}
	if got := must("dead-letters", "mail.send", "--json"); !strings.Contains(got, `"reason":"no such mailbox`) {
		t.Errorf("dead letters: %s", got)
	}
	if got := must("replay", "mail.send", "a"); !strings.Contains(got, "queued") {
		t.Errorf("replay:\n%s", got)
	}
	if got := must("cancel", "b", "c"); strings.Count(got, "cancelled") != 2 {
		t.Errorf("cancel:\n%s", got)
	}
	if got := must("retry", "b", "--delay-seconds", "3600"); !strings.Contains(got, "scheduled") {
		t.Errorf("retry with a delay:\n%s", got)
	}
	if got := must("retry", "b"); !strings.Contains(got, "queued") {
		t.Errorf("retry:\n%s", got)
	}
	// What only the manager can find wrong is wrong usage as well.
	if code, _, errs := jobsCLI(url, "list", "--cursor", "!"); code != 2 || !strings.Contains(errs, "cursor") || strings.Count(errs, "\n") != 1 {
		t.Errorf("cursor: exit code %d, %s", code, errs)
	}
	// One refusal does not keep the others from being done, and is printed.
	code, out, errs := jobsCLI(url, "cancel", "nobody", "a", "b")
	if code != 1 || !strings.Contains(out, "\nb ") || errs != `oncegate jobs: cancel: manager: not-found: no job "nobody" (and 1 more of 3 failed)`+"\n" {
		t.Errorf("cancel: exit code %d, %s%s", code, out, errs)
	}
	claimed, err := c.Claim(ctx, client.ClaimRequest{Worker: "w1", Limit: 1})
	if err != nil || len(claimed) != 1 {
		t.Fatal(claimed, err)
	}
	if got := must("get", claimed[0].ID); !strings.Contains(got, "worker    w1, lease for 5") && !strings.Contains(got, "worker    w1, lease for 1m") {
		t.Errorf("get of a running job:\n%s", got)
	}
	if got := must("cancel", claimed[0].ID); !strings.Contains(got, "active, cancel requested") {
		t.Errorf("cancel of a running job:\n%s", got)
	}
}

func TestBadJobsArgumentsAreRefused(t *testing.T) {
	spaced := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(spaced, []byte("secret token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"list", "--token-file", spaced}, "a token must be up to 4096 visible ASCII characters"},
		{nil, "a command is missing"},
		{[]string{"nope"}, `unknown command "nope"`},
		{[]string{"list", "x"}, `list: 1 arguments: must be "list"`},
		{[]string{"get"}, `get: 0 arguments: must be "get ID"`},
		{[]string{"get", "a", "b"}, `must be "get ID"`},
		{[]string{"replay", "f"}, `must be "replay FUNCTION ID...", or a filter`},
		{[]string{"cancel"}, "cancel: no jobs: must be IDs, or a filter such as --function and --state"},
		{[]string{"delete", "--dry-run"}, "delete: no jobs: must be IDs, or a filter"},
		{[]string{"cancel", "a", "--state", "queued"}, "cancel: IDs go with neither a filter nor --dry-run"},
		{[]string{"cancel", "a", "--dry-run"}, "cancel: IDs go with neither a filter nor --dry-run"},
		{[]string{"retry", "--state", "failed", "--delay-seconds", "1"}, "retry: --delay-seconds goes with IDs"},
		{[]string{"cancel", "--function", ""}, `--function "": must not be empty`},
		{[]string{"cancel", "--older-than-seconds", "-1"}, "must be a number of seconds from 0 to 31622400"},
		{[]string{"empty"}, `empty: 0 arguments: must be "empty FUNCTION"`},
		{[]string{"empty", "a b"}, `empty: FUNCTION "a b": must be`},
		{[]string{"submit"}, `must be "submit FUNCTION [PAYLOAD]"`},
		{[]string{"submit", "f", "{"}, "submit: PAYLOAD: must be JSON of at most 1048576 bytes"},
		{[]string{"submit", "f", "1", "--payload-file", "-"}, "submit: PAYLOAD does not go with --payload-file"},
		{[]string{"submit", "f", "--payload-file", "/does/not/exist"}, "submit: --payload-file: open /does/not/exist"},
		{[]string{"submit", "f", "--payload-file", os.DevNull}, "must be JSON"},
		{[]string{"submit", "f", "--run-at", "tomorrow"}, "must be a time such as 2026-01-02T15:04:05Z"},
		{[]string{"submit", "f", "--dedup", "x"}, "must be one of until_executing, until_executed"},
		{[]string{"submit", "f", "--idempotency-key", "a "}, "submit: --idempotency-key: "},
		{[]string{"list", "--limit", "0"}, `--limit "0": must be a whole number from 1 to 1000`},
		{[]string{"list", "--state", "dead"}, "must be one of scheduled, queued"},
		{[]string{"list", "--nope"}, "flag provided but not defined: -nope"},
		{[]string{"get", "a", "--wait-seconds", "x"}, "must be a number of seconds from 0 to 86400"},
		{[]string{"list", "--manager", "localhost"}, `--manager "localhost": must be http://`},
		{[]string{"list", "--token-file", "/does/not/exist"}, "--token-file"},
		{[]string{"list", "--token-file", os.DevNull}, "must hold a token"},
		{[]string{"get", ""}, `get: ID "": must be 1 to 160 letters`},
		{[]string{"cancel", "a", "b c", "d/e"}, `cancel: ID "b c": must be`},
		{[]string{"retry", ".."}, `retry: ID "..": must be`},
		{[]string{"pause", "f", "g/h"}, `pause: FUNCTION "g/h": must be 1 to 128 letters`},
		{[]string{"dead-letters", ""}, `dead-letters: FUNCTION "": must be`},
		{[]string{"replay", "a b", "c d"}, `replay: FUNCTION "a b": must be`},
		{[]string{"replay", "f", "a", "b\nc"}, `replay: ID "b\nc": must be`},
		{[]string{"list", "--function", "a b"}, `list: --function "a b": must be`},
		{[]string{"list", "--timeout-seconds", "0"}, "must be a number of seconds from 0.1 to 600"},
	} {
		code, out, errs := jobsCLI("", c.args...)
		if code != 2 || out != "" || !strings.Contains(errs, c.want) || strings.Count(errs, "\n") != 1 || strings.Contains(errs, "secret") {
			t.Errorf("oncegate jobs %v: exit code %d, %q, want %q", c.args, code, errs, c.want)
		}
	}
	for _, args := range [][]string{{"--help"}, {"list", "--help"}, {"replay", "-h"}} {
		if code, out, errs := jobsCLI("", args...); code != 0 || errs != "" || !strings.HasPrefix(out, "usage: oncegate jobs") {
			t.Errorf("oncegate jobs %v: exit code %d, %q %q", args, code, out, errs)
		}
	}
}

func TestJobsCommandsSayWhatIsWrong(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("# of the tests\n\n0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	url := jobsManager(t, "--auth-token-file", token)
	if code, _, errs := jobsCLI(url, "list"); code != 1 || !strings.Contains(errs, "unauthorized") {
		t.Errorf("without a token: exit code %d, %s", code, errs)
	}
	admin := filepath.Join(t.TempDir(), "admin")
	if err := os.WriteFile(admin, []byte("0123456789abcdef0123456789abcdef operator worker:f\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{token, admin} {
		if code, out, errs := jobsCLI(url, "list", "--token-file", file); code != 0 || !strings.HasPrefix(out, "ID") {
			t.Errorf("with the token: exit code %d, %s", code, errs)
		}
	}
	if code, _, errs := jobsCLI(url, "get", "nobody", "--token-file", token); code != 1 || errs != `oncegate jobs: get: manager: not-found: no job "nobody"`+"\n" {
		t.Errorf("unknown job: exit code %d, %s", code, errs)
	}
	if code, _, errs := jobsCLI("http://127.0.0.1:1", "list"); code != 1 || !strings.Contains(errs, "connection refused") {
		t.Errorf("nobody there: exit code %d, %s", code, errs)
	}
}

// A function that cannot be paused does not keep the others from it.
func TestPauseGoesOnAfterARefusal(t *testing.T) {
	deep.Sequential(t)
	url := jobsManager(t)
	functions := make([]string, jobs.MaxSettings-1)
	for i := range functions {
		functions[i] = fmt.Sprint("f", i)
	}
	if code, _, errs := jobsCLI(url, append([]string{"pause"}, functions...)...); code != 0 {
		t.Fatalf("exit code %d, %s", code, errs)
	}
	code, out, errs := jobsCLI(url, "pause", "last", "too-many", "f0", "more")
	if code != 2 || out != "last: paused\nf0: paused\n" || !strings.Contains(errs, fmt.Sprintf("at most %d functions that are paused", jobs.MaxSettings)) || !strings.Contains(errs, "(and 1 more of 4 failed)") {
		t.Errorf("exit code %d, %s%s", code, out, errs)
	}
}

func TestServeRunsTheJobQueue(t *testing.T) {
	url := jobsManager(t, "--job-lease-seconds", "0.1", "--job-max-attempts", "2", "--job-max-waiters", "1")
	c, err := client.New(client.Options{URL: url, MaxAttempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	j, err := c.SubmitIdempotent(t.Context(), client.Submission{Function: "f"})
	if err != nil || j.MaxAttempts != 2 {
		t.Fatalf("%+v, %v", j, err)
	}
	for attempt := 1; attempt <= 2; attempt++ {
		got, err := c.Claim(t.Context(), client.ClaimRequest{Worker: "crashes", Wait: time.Minute})
		if err != nil || len(got) != 1 || got[0].Attempt != attempt || got[0].Lease.ExpiresIn != 100*time.Millisecond {
			t.Fatalf("attempt %d: %+v, %v", attempt, got, err)
		}
	}
	// The lease of the last attempt runs out without anybody asking.
	dead, err := c.Wait(t.Context(), j.ID)
	if err != nil || dead.State != "failed" {
		t.Fatalf("%+v, %v", dead, err)
	}
	resp, err := http.Get(url + "/v1/jobs/stats")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(b), `"dead":1`) || !strings.Contains(string(b), `"claimed":2`) {
		t.Errorf("stats %s, %v", b, err)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestControlCharactersAreEscaped(t *testing.T) {
	for in, want := range map[string]string{"plain ü": "plain ü", "a\nb": `a\nb`, "\x1b[2J": `\x1b[2J`, "\xff": `\xff`, "\u202e": `\u202e`} {
		if got := printable(in); got != want {
			t.Errorf("printable(%q) = %q, want %q", in, got, want)
		}
	}
	if got := firstLine(strings.Repeat("x", 100)); len(got) != 60 || !strings.HasSuffix(got, "...") {
		t.Errorf("long line: %q", got)
	}
	if got := count(99901, false) + " " + count(200000, true) + " " + count(0, true); got != "99901 200000+ 0" {
		t.Errorf("counts %s", got)
	}
}
