package server

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// Every call is in the reference, and the reference names no other.
func TestReferenceHasEveryJobCall(t *testing.T) {
	b, err := os.ReadFile("../../../docs/reference/JOBS.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^(GET|POST|PUT|DELETE) +(/v1/[^ ?\n]+)`).FindAllStringSubmatch(string(b), -1) {
		documented[m[1]+" "+m[2]] = true
	}
	q, err := jobs.New(mem.New(mem.Options{}), jobs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	routes := append(JobRoutes(nil, q), ScheduleRoutes(nil, q, nil)...)
	for _, r := range routes {
		if !documented[r.Method+" "+r.Path] {
			t.Errorf("%s %s is not documented", r.Method, r.Path)
		}
	}
	if len(documented) != len(routes) {
		t.Errorf("%d calls are documented, there are %d", len(documented), len(routes))
	}
	// The example of a submission is one.
	example := regexp.MustCompile("(?s)```json\n(.*?)```").FindStringSubmatch(string(b))[1]
	s, err := parseSubmission([]byte(example))
	if err == nil {
		_, err = q.Prepare(s)
	}
	if err != nil {
		t.Errorf("the example: %v", err)
	}
}

// tableOf returns the rows of the table of the reference whose first column has this head, by their first cells.
func tableOf(t *testing.T, head string) (columns []string, rows map[string][]string) {
	t.Helper()
	b, err := os.ReadFile("../../../docs/reference/JOBS.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(b), "\n| "+head+" |")
	if !found {
		t.Fatalf("no table of %q", head)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	rows = make(map[string][]string)
	for i, line := range strings.Split(table, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		switch {
		case i == 0:
			columns = cells
		case i > 1:
			rows[cells[0]] = cells[1:]
		}
	}
	return columns, rows
}

// stateMakers bring a job, as it was submitted, into the states of the tables. Each state can come about in several ways.
var stateMakers = map[string][]func(j *jobSite, submission string) (id string){
	"scheduled": {(*jobSite).scheduled, func(j *jobSite, s string) string {
		id := j.scheduled(s)
		j.store.offset.Add(int64(2 * time.Hour)) // it is due, and nothing has looked
		return id
	}},
	"queued":  {(*jobSite).queued, func(j *jobSite, s string) string { return j.handedBack(s, `"uncounted":true,"delay_ms":0`) }},
	"running": {(*jobSite).running},
	"cancel requested": {func(j *jobSite, s string) string {
		id := j.running(s)
		j.call(200, "POST", "/v1/jobs/"+id+"/cancel", "{}")
		return id
	}},
	"scheduled again": {func(j *jobSite, s string) string { return j.handedBack(s, `"delay_ms":60000`) }},
	"queued again": {func(j *jobSite, s string) string { return j.handedBack(s, `"delay_ms":0`) }, func(j *jobSite, s string) string {
		id := j.running(s)
		j.store.offset.Add(int64(2 * time.Hour)) // the lease is lost
		if _, err := j.queue.RunDuties(j.t.Context()); err != nil {
			j.t.Fatal(err)
		}
		return id
	}},
	"complete": {func(j *jobSite, s string) string { return j.ended(s, "complete") }},
	"failed":   {func(j *jobSite, s string) string { return j.ended(s, "failed") }},
	"cancelled": {func(j *jobSite, s string) string { return j.ended(s, "cancelled") }, func(j *jobSite, s string) string {
		id := j.queued(s)
		j.call(200, "POST", "/v1/jobs/"+id+"/cancel", "{}")
		return id
	}},
	"expired": {func(j *jobSite, s string) string {
		id := j.queued(s + `,"expires_in_ms":3600000`)
		j.store.offset.Add(int64(time.Hour))
		if _, err := j.queue.RunDuties(j.t.Context()); err != nil {
			j.t.Fatal(err)
		}
		return id
	}, func(j *jobSite, s string) string {
		id := j.handedBack(s+`,"expires_in_ms":3600000`, `"delay_ms":7200000`)
		j.store.offset.Add(int64(time.Hour))
		if _, err := j.queue.RunDuties(j.t.Context()); err != nil {
			j.t.Fatal(err)
		}
		return id
	}},
	"retried": {func(j *jobSite, s string) string {
		id := j.ended(s, "failed")
		j.call(200, "POST", "/v1/jobs/"+id+"/retry", "{}")
		return id
	}},
	"replayed": {func(j *jobSite, s string) string {
		id := j.ended(s, "failed")
		j.call(202, "POST", "/v1/functions/f/dead-letters/"+id+"/replay", "{}")
		return id
	}},
	"deleted": {func(j *jobSite, s string) string {
		id := j.queued(s)
		j.call(200, "DELETE", "/v1/jobs/"+id, "")
		return id
	}},
	"over time": {func(j *jobSite, s string) string {
		id := j.queued(s)
		j.store.offset.Add(int64(7 * time.Hour)) // the lock's time is six hours
		return id
	}},
}

// A submission is the members of one.
func (j *jobSite) queued(submission string) string {
	return j.call(202, "POST", "/v1/jobs", "{"+submission+"}")["id"].(string)
}

func (j *jobSite) scheduled(submission string) string {
	return j.queued(submission + `,"delay_ms":3600000`)
}

func (j *jobSite) running(submission string) string {
	id := j.queued(submission)
	j.claimOne()
	return id
}

func (j *jobSite) handedBack(submission, how string) string {
	id := j.queued(submission)
	_, token, _ := j.claimOne()
	j.call(200, "POST", "/v1/jobs/"+id+"/retry", `{"lease_token":"`+token+`",`+how+`}`)
	return id
}

func (j *jobSite) ended(submission, status string) string {
	id := j.queued(submission)
	_, token, _ := j.claimOne()
	j.call(200, "POST", "/v1/jobs/"+id+"/finish", `{"lease_token":"`+token+`","status":"`+status+`"}`)
	return id
}

// The table of what happens to a second submission is true, cell by cell.
func TestTableOfSecondSubmissionsIsTrue(t *testing.T) {
	columns, rows := tableOf(t, "A is")
	submissions := map[string]string{
		"`key`": `"function":"f","key":"k"`, "`until_executing`": `"function":"f","dedup":{"strategy":"until_executing"}`, "`until_executed`": `"function":"f","dedup":{"strategy":"until_executed"}`,
	}
	for row, states := range map[string][]string{
		"scheduled, or due and not yet queued": {"scheduled"}, "queued": {"queued"}, "running": {"running"}, "running, and cancelled meanwhile": {"cancel requested"},
		"waiting for its next attempt after a retry or a lost lease": {"scheduled again", "queued again"}, "complete, failed, cancelled or expired": {"complete", "failed", "cancelled", "expired"},
		"retried by an operator": {"retried"}, "replayed": {"replayed"}, "deleted": {"deleted"}, "in any of these states, and `ttl_ms` is over": {"over time"},
	} {
		cells := rows[row]
		delete(rows, row)
		if len(cells) != len(columns) {
			t.Errorf("%q has %d cells", row, len(cells))
			continue
		}
		for i, column := range columns {
			want := cells[i]
			for _, state := range states {
				for way, bring := range stateMakers[state] {
					j := newJobSite(t, ledger.Options{})
					bring(j, submissions[column])
					a := j.Do("POST", "/v1/jobs", "application/json", "{"+submissions[column]+"}")
					got := "new job"
					switch {
					case a.Status == 409 && strings.Contains(a.Body, "duplicate-key"):
						got = "409"
					case a.Status == 200 && strings.Contains(a.Body, `"deduplicated":true`):
						got = "dropped"
					case a.Status != 202:
						got = a.Body
					}
					like := want
					if want == "as the copy" || want == "as without it" {
						like = tableQueued(column)
					}
					if got != like {
						t.Errorf("%s, %s (%s, %d): the table says %s, and it is %s", row, column, state, way, want, got)
					}
				}
			}
		}
	}
	for row := range rows {
		t.Errorf("the table has %q, which nothing checks", row)
	}
}

// tableQueued is what happens to a submission if the first one is queued.
func tableQueued(column string) string {
	if column == "`key`" {
		return "409"
	}
	return "dropped"
}

// The table of operators' calls is true, cell by cell.
func TestTableOfOperatorsCallsIsTrue(t *testing.T) {
	columns, rows := tableOf(t, "the job is")
	for row, states := range map[string][]string{
		"scheduled, or due and not yet queued, also for its next attempt": {"scheduled", "scheduled again"}, "queued, also for its next attempt": {"queued", "queued again", "retried"},
		"running": {"running"}, "running, and cancelled meanwhile": {"cancel requested"}, "complete": {"complete"}, "failed": {"failed"}, "cancelled": {"cancelled"}, "expired": {"expired"}, "replayed": {"replayed"},
	} {
		cells := rows[row]
		delete(rows, row)
		if len(cells) != len(columns) {
			t.Errorf("%q has %d cells", row, len(cells))
			continue
		}
		for i, column := range columns {
			for _, state := range states {
				for way, bring := range stateMakers[state] {
					j := newJobSite(t, ledger.Options{})
					id := bring(j, `"function":"f"`)
					if got := j.operate(column, id); got != cells[i] {
						t.Errorf("%s, %s (%s, %d): the table says %s, and it is %s", row, column, state, way, cells[i], got)
					}
				}
			}
		}
	}
	for row := range rows {
		t.Errorf("the table has %q, which nothing checks", row)
	}
}

// operate makes an operator's call, and returns the outcome in the words of the table.
func (j *jobSite) operate(call, id string) string {
	j.t.Helper()
	method, path, body := "POST", "/v1/jobs/"+id+"/"+strings.Trim(call, "`"), "{}"
	switch call {
	case "`replay`":
		path = "/v1/functions/f/dead-letters/" + id + "/replay"
	case "`DELETE`":
		method, path, body = "DELETE", "/v1/jobs/"+id, ""
	}
	a := j.Do(method, path, "application/json", body)
	now := j.Do("GET", "/v1/jobs/"+id, "", "")
	has := func(state string) bool { return strings.Contains(now.Body, `"state":"`+state+`"`) }
	switch {
	case a.Status == 404 && strings.Contains(a.Body, "not-found"), a.Status == 409 && strings.Contains(a.Body, `"conflict"`):
		return strconv.Itoa(a.Status)
	case a.Status == 202 && has("replayed") && strings.Contains(a.Body, `"state":"queued"`):
		return "a copy is queued"
	case a.Status == 200 && now.Status == 404:
		return "gone"
	case a.Status == 200 && has("active") && strings.Contains(a.Body, `"cancel_requested":true`):
		return "requested"
	case a.Status == 200 && has("queued"):
		return "queued"
	case a.Status == 200 && has("cancelled"):
		return "cancelled"
	}
	return a.Body
}

func TestReferenceHasEveryJobMetric(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	j.call(202, "POST", "/v1/jobs", `{"function":"f"}`)
	j.claimOne()
	j.call(202, "POST", "/v1/jobs", `{"function":"f"}`)
	c := NewJobsCollector(j.queue, func(context.Context) (JobsDepth, error) {
		depth, err := j.queue.Depth(context.Background())
		return JobsDepth{Depth: depth, Usage: jobs.Usage{Total: 7, Retained: 3, MaxTotal: 9}, Functions: []jobs.Series{
			{Function: jobs.Function{Name: "f", Queued: 1, Oldest: 90 * time.Second}, Rates: jobs.Rates{Failed: 3}}, {Function: jobs.Function{Name: jobs.OtherFunctions, Oldest: time.Second}}}}, err
	})
	got := gather(t, c)
	for series, want := range map[string]float64{
		`oncegate_jobs_operations_total{outcome="enqueued"}`: 2, `oncegate_jobs_operations_total{outcome="claimed"}`: 1,
		`oncegate_jobs{state="queued"}`: 1, `oncegate_jobs{state="active"}`: 1, `oncegate_jobs_waiting`: 0,
		`oncegate_jobs_oldest_queued_age_seconds`: 90, `oncegate_jobs_by_function{function="f"}{state="queued"}`: 1, `oncegate_jobs_by_function{function="(other)"}{state="dead"}`: 0,
		`oncegate_jobs_by_function_oldest_queued_age_seconds{function="(other)"}`: 1, `oncegate_jobs_by_function_operations_total{function="f"}{outcome="failed"}`: 3, `oncegate_jobs_bytes`: 7, `oncegate_jobs_retained_bytes`: 3, `oncegate_jobs_max_bytes`: 9,
	} {
		if v, ok := got[series]; !ok || v != want {
			t.Errorf("%s: %v (there: %v), want %v", series, v, ok, want)
		}
	}
}

// gather collects the values of a collector by series.
func gather(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += fmt.Sprintf("{%s=%q}", l.GetName(), l.GetValue())
			}
			values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return values
}
