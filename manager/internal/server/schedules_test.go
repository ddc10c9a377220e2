package server

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/schedules"
)

// newScheduleSite is a site with the calls of jobs and schedules.
func newScheduleSite(t *testing.T) (*jobSite, *schedules.Schedules) {
	t.Helper()
	j := &jobSite{store: newClockedStore()}
	var err error
	if j.ledger, err = ledger.New(j.store, ledger.Options{}); err != nil {
		t.Fatal(err)
	}
	if j.queue, err = jobs.New(j.store, jobs.Options{}); err != nil {
		t.Fatal(err)
	}
	timed, err := schedules.New(j.store, j.queue, schedules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		j.queue.Close()
		_ = j.store.Close()
	})
	j.site = newSite(t, siteOptions{routes: append(JobRoutes(j.ledger, j.queue), ScheduleRoutes(j.ledger, j.queue, timed)...)})
	return j, timed
}

func TestSchedules(t *testing.T) {
	j, timed := newScheduleSite(t)
	const path = "/v1/schedules/report"
	made := j.call(201, "PUT", path, `{"cron":"0 9 * * 1-5","time_zone":"Europe/Vienna","function":"report","payload":{"to":"ann"},"missed":"all","overlap":"skip","priority":2,"max_attempts":3,"expires_in_ms":60000,"on_expiry":"dead_letter","timeout_ms":90000,"data_centers":"home"}`)
	for name, want := range map[string]any{"name": "report", "cron": "0 9 * * 1-5", "time_zone": "Europe/Vienna", "function": "report", "missed": "all", "overlap": "skip", "data_centers": "home", "home": nil,
		"priority": 2.0, "max_attempts": 3.0, "expires_in_ms": 60000.0, "on_expiry": "dead_letter", "timeout_ms": 90000.0, "paused": false, "missed_instants": 0.0, "overlapped_instants": 0.0} {
		if made[name] != want {
			t.Errorf("%s: %v, want %v", name, made[name], want)
		}
	}
	next, err := time.Parse(time.RFC3339, made["next_at"].(string))
	if err != nil || fmt.Sprint(made["payload"]) != "map[to:ann]" || made["last_at"] != nil || made["last_job"] != nil {
		t.Errorf("made %v, %v", made, err)
	}
	// A change leaves out what is not sent.
	changed := j.call(200, "PUT", path, `{"cron":"0 9 * * 1-5","time_zone":"Europe/Vienna","function":"report"}`)
	if changed["missed"] != "one" || changed["overlap"] != "allow" || changed["data_centers"] != "each" || changed["payload"] != nil || changed["max_attempts"] != nil || changed["on_expiry"] != nil || changed["timeout_ms"] != nil || changed["next_at"] != made["next_at"] {
		t.Errorf("changed %v", changed)
	}
	j.store.offset.Add(int64(time.Until(next) + time.Second))
	if _, err := timed.RunDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	shown := j.call(200, "GET", path, "")
	if shown["last_at"] != made["next_at"] || shown["next_at"] == made["next_at"] {
		t.Errorf("then %v", shown)
	}
	job := j.call(200, "GET", "/v1/jobs/"+shown["last_job"].(string), "")
	if job["key"] != "report@"+made["next_at"].(string) || job["function"] != "report" {
		t.Errorf("job %v", job)
	}
	j.call(201, "PUT", "/v1/schedules/another", `{"cron":"@hourly","function":"f","payload":[1]}`)
	page := j.call(200, "GET", "/v1/schedules?limit=1", "")
	rest := j.call(200, "GET", "/v1/schedules?cursor="+page["cursor"].(string), "")
	if first := page["schedules"].([]any)[0].(map[string]any); first["name"] != "another" || first["payload"] != nil || len(rest["schedules"].([]any)) != 1 || rest["cursor"] != "" {
		t.Errorf("pages %v and %v", page, rest)
	}
	if paused := j.call(200, "POST", path+"/pause", "{}"); paused["paused"] != true || paused["paused_at"] == nil || paused["next_at"] != nil {
		t.Errorf("paused %v", paused)
	}
	if resumed := j.call(200, "POST", path+"/resume", ""); resumed["paused"] != false || resumed["next_at"] != shown["next_at"] {
		t.Errorf("resumed %v", resumed)
	}
	j.call(200, "DELETE", path, "")
	for _, call := range [][2]string{{"GET", path}, {"DELETE", path}, {"POST", path + "/pause"}, {"POST", path + "/resume"}, {"POST", path + "/run"}} {
		if detail := j.wantCode(404, api.CodeNotFound, call[0], call[1], ""); detail != `no schedule "report"` {
			t.Errorf("%v: %s", call, detail)
		}
	}
	j.wantAudited(
		`"schedule put by an operator" via=api token=0 roles=admin schedule=report function=report cron="0 9 * * 1-5" time_zone=Europe/Vienna`,
		`"schedule put by an operator" via=api token=0 roles=admin schedule=report function=report cron="0 9 * * 1-5" time_zone=Europe/Vienna`,
		`"schedule put by an operator" via=api token=0 roles=admin schedule=another function=f cron=@hourly time_zone=UTC`,
		`"schedule paused by an operator" via=api token=0 roles=admin schedule=report function=report cron="0 9 * * 1-5" time_zone=Europe/Vienna`,
		`"schedule resumed by an operator" via=api token=0 roles=admin schedule=report function=report cron="0 9 * * 1-5" time_zone=Europe/Vienna`,
		`"schedule deleted by an operator" via=api token=0 roles=admin schedule=report function=report cron="0 9 * * 1-5" time_zone=Europe/Vienna`,
	)
}

func TestReferenceHasASchedule(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/JOBS.md")
	if err != nil {
		t.Fatal(err)
	}
	j, _ := newScheduleSite(t)
	example := regexp.MustCompile(`(?m)^\{"cron": .*\}$`).Find(text)
	made := j.call(201, "PUT", "/v1/schedules/report", string(example))
	for name, value := range map[string]string{"time_zone": "UTC", "missed": "one", "overlap": "allow"} {
		if !regexp.MustCompile("(?m)^\\| `" + name + "` \\| .* \\| `" + value + "` \\|$").Match(text) {
			t.Errorf("the default of %s is not %s", name, value)
		}
	}
	defaults := j.call(201, "PUT", "/v1/schedules/defaults", `{"cron":"@daily","function":"f"}`)
	if made["overlap"] != "skip" || defaults["time_zone"] != "UTC" || defaults["missed"] != "one" || defaults["overlap"] != "allow" {
		t.Errorf("made %v and %v", made, defaults)
	}
}

func TestRunningAScheduleIsASubmission(t *testing.T) {
	j, _ := newScheduleSite(t)
	for _, name := range []string{"a", "b"} {
		j.call(201, "PUT", "/v1/schedules/"+name, `{"cron":"@yearly","function":"f","payload":[7],"priority":2}`)
	}
	first := j.call(202, "POST", "/v1/schedules/a/run", "", "idempotency-key", "k")
	if key, _ := first["key"].(string); !strings.HasPrefix(key, "a@") || first["priority"] != 2.0 || first["function"] != "f" {
		t.Errorf("%v", first)
	}
	j.call(200, "PUT", "/v1/schedules/a", `{"cron":"@yearly","function":"g"}`)
	again := j.Do("POST", "/v1/schedules/a/run", "application/json", "{}", "idempotency-key", "k")
	if again.Status != 202 || again.Header.Get(api.HeaderReplayed) != "true" || !strings.Contains(again.Body, first["id"].(string)) {
		t.Errorf("again: %d %s", again.Status, again.Body)
	}
	j.wantCode(422, api.CodeFingerprintMismatch, "POST", "/v1/schedules/b/run", "", "idempotency-key", "k")
	for range 2 {
		j.call(202, "POST", "/v1/schedules/b/run", "")
	}
	if d := j.depth(); d.Queued != 3 {
		t.Errorf("%d jobs", d.Queued)
	}
	if s := j.call(200, "GET", "/v1/schedules/a", ""); s["last_job"] != nil {
		t.Errorf("%v", s)
	}
	if n := strings.Count(j.log.String(), "schedule run by an operator"); n != 3 {
		t.Errorf("%d runs are audited: %s", n, j.log)
	}
}

func TestSchedulesThatAreRefused(t *testing.T) {
	j, _ := newScheduleSite(t)
	for body, want := range map[string]string{
		`{"function":"f"}`:                  "field cron: is missing; allowed: five fields, as in 0 9 * * 1-5",
		`{"cron":"* * * *","function":"f"}`: `field cron: "* * * *" is not allowed; allowed: minute, hour, `,
		`{"cron":"* * * * *"}`:              "field function: ",
		`{"cron":"* * * * *","function":"f","time_zone":"Europe/Wien"}`: `field time_zone: "Europe/Wien" is not allowed; allowed: a name of the time zone database, `,
		`{"cron":"* * * * *","function":"f","time_zone":""}`:            `field time_zone: "" is not allowed`,
		`{"cron":"0 0 30 2 *","function":"f"}`:                          `field cron: "0 0 30 2 *" is not allowed; allowed: an expression with an instant within 10 years`,
		`{"cron":"* * * * *","function":"f","missed":"two"}`:            "missed: ",
		`{"cron":"* * * * *","function":"f","overlap":"two"}`:           "overlap: ",
		`{"cron":"* * * * *","function":"f","data_centers":"two"}`:      "data_centers: ",
		`{"cron":"* * * * *","function":"f","max_attempts":0}`:          "max_attempts: ",
		`{"cron":"* * * * *","function":"f","priority":40000}`:          "field priority: 40000 is not allowed; allowed: -32768 to 32767",
		`{"cron":"* * * * *","function":"f","on_expiry":"dead_letter"}`: "field on_expiry: ",
		`{"cron":"* * * * *","function":"f","timeout_ms":99}`:           "field timeout_ms: ",
		`{"cron":"* * * * *","function":"f","run_at":"now"}`:            "run_at: ",
		`{"cron":5,"function":"f"}`:                                     "cron: ",
	} {
		if detail := j.wantCode(400, api.CodeInvalidRequest, "PUT", "/v1/schedules/s", body); !strings.HasPrefix(detail, want) {
			t.Errorf("%s: %s", body, detail)
		}
	}
	j.wantCode(400, api.CodeInvalidRequest, "PUT", "/v1/schedules/"+strings.Repeat("n", 129), `{"cron":"* * * * *","function":"f"}`)
	j.wantCode(400, api.CodeInvalidRequest, "GET", "/v1/schedules?cursor=a%20b", "")
	j.wantCode(400, api.CodeInvalidRequest, "GET", "/v1/schedules?limit=1001", "")
	j.wantCode(400, api.CodeInvalidRequest, "POST", "/v1/schedules/s/pause", `{"for":1}`)
}

func TestScheduleMetrics(t *testing.T) {
	j, timed := newScheduleSite(t)
	j.call(201, "PUT", "/v1/schedules/a", `{"cron":"* * * * *","function":"f"}`)
	j.call(201, "PUT", "/v1/schedules/b", `{"cron":"* * * * *","function":"f"}`)
	j.call(200, "POST", "/v1/schedules/b/pause", "")
	c := NewSchedulesCollector(timed)
	j.store.offset.Add(int64(time.Hour))
	if late := gather(t, c)["oncegate_jobs_schedule_late_seconds"]; late < 3500 || late > 3660 {
		t.Errorf("late by %v", late)
	}
	if _, err := timed.RunDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := gather(t, c)
	for series, want := range map[string]float64{
		`oncegate_jobs_schedules{state="active"}`: 1, `oncegate_jobs_schedules{state="paused"}`: 1, `oncegate_jobs_schedule_late_seconds`: 0,
		`oncegate_jobs_schedule_instants_total{outcome="enqueued"}`:   1,
		`oncegate_jobs_schedule_instants_total{outcome="overlapped"}`: 0,
	} {
		if v, ok := got[series]; !ok || v != want {
			t.Errorf("%s: %v (there: %v), want %v", series, v, ok, want)
		}
	}
	if n := got[`oncegate_jobs_schedule_instants_total{outcome="missed"}`]; n < 59 || n > 61 { // minutes that begin meanwhile
		t.Errorf("%v missed", n)
	}
}
