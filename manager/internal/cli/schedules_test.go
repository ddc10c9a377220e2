package cli

import (
	"context"
	"regexp"
	"strings"
	"testing"
)

func schedulesCLI(url string, args ...string) (code int, out, errs string) {
	env, stdout, stderr := testEnv(nil)
	if url != "" {
		args = append(args, "--manager", url)
	}
	code = Run(context.Background(), env, append([]string{"schedules"}, args...))
	return code, stdout.String(), stderr.String()
}

func TestSchedulesCommands(t *testing.T) {
	url := jobsManager(t)
	put(t, url+"/v1/schedules/nightly", `{"cron":"30 2 * * *","time_zone":"Europe/Vienna","function":"report","payload":{"a":1}}`, 201)
	put(t, url+"/v1/schedules/weekly", `{"cron":"@weekly","function":"report"}`, 201)
	must := func(args ...string) string {
		t.Helper()
		code, out, errs := schedulesCLI(url, args...)
		if code != 0 || errs != "" {
			t.Fatalf("%v: exit code %d: %s%s", args, code, out, errs)
		}
		return regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\S*`).ReplaceAllString(out, "TIME")
	}
	list := must("list")
	if !strings.HasPrefix(list, "NAME ") || !strings.Contains(list, "nightly  30 2 * * *  Europe/Vienna  report    TIME") || strings.Count(list, "\n") != 3 {
		t.Errorf("list: %s", list)
	}
	if got := must("list", "--limit", "1"); !strings.Contains(got, "more: --cursor nightly\n") {
		t.Errorf("a page: %s", got)
	}
	if got := must("list", "--json"); !strings.Contains(got, `"cron":"30 2 * * *"`) {
		t.Errorf("as JSON: %s", got)
	}
	if got := must("get", "nightly"); !strings.Contains(got, `"payload":{"a":1}`) {
		t.Errorf("get: %s", got)
	}
	if got := must("pause", "nightly", "weekly"); got != "nightly: paused\nweekly: paused\n" {
		t.Errorf("pause: %s", got)
	}
	if got := must("list"); strings.Count(got, " paused ") != 2 {
		t.Errorf("list: %s", got)
	}
	if got := must("resume", "nightly"); got != "nightly: resumed, next at TIME\n" {
		t.Errorf("resume: %s", got)
	}
	first, again := must("run", "nightly", "--idempotency-key", "k", "--json"), must("run", "nightly", "--idempotency-key", "k", "--json")
	if first != again || !strings.Contains(first, `"key":"nightly@TIME`) {
		t.Errorf("run: %s, and again %s", first, again)
	}
	if got := must("run", "nightly"); !strings.Contains(got, "function  report\n") {
		t.Errorf("run: %s", got)
	}
	if got := must("delete", "weekly", "--json"); got != `{"done":"deleted","name":"weekly"}`+"\n" {
		t.Errorf("delete: %s", got)
	}
	code, out, errs := schedulesCLI(url, "pause", "weekly", "nightly")
	if code != 1 || out != "nightly: paused\n" || errs != `oncegate schedules: pause: manager: not-found: no schedule "weekly"`+"\n" {
		t.Errorf("a refusal: exit code %d, %q, %q", code, out, errs)
	}
	for _, args := range [][]string{{"pause"}, {"get", "a b"}, {"run", "nightly", "--idempotency-key", "a "}, {"put"}} {
		if code, out, errs := schedulesCLI(url, args...); code != 2 || out != "" || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: exit code %d, %q, %q", args, code, out, errs)
		}
	}
}
