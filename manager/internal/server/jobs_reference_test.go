package server

import (
	"context"
	"fmt"
	"os"
	"regexp"
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
	routes := JobRoutes(nil, nil, q)
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

func TestReferenceHasEveryJobMetric(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	j.call(202, "POST", "/v1/jobs", `{"function":"f"}`)
	j.claimOne()
	j.call(202, "POST", "/v1/jobs", `{"function":"f"}`)
	c := NewJobsCollector(j.queue, func() (JobsDepth, error) {
		depth, err := j.queue.Depth(context.Background())
		return JobsDepth{Depth: depth, Usage: jobs.Usage{Total: 7, Retained: 3, MaxTotal: 9}, Functions: []jobs.Series{
			{Function: jobs.Function{Name: "f", Queued: 1, Oldest: 90 * time.Second}, Rates: jobs.Rates{Failed: 3}}, {Function: jobs.Function{Name: jobs.OtherFunctions, Oldest: time.Second}}}}, err
	})
	got := gather(t, c)
	for series, want := range map[string]float64{
		`oncegate_jobs_events_total{event="enqueued"}`: 2, `oncegate_jobs_events_total{event="claimed"}`: 1,
		`oncegate_jobs{state="queued"}`: 1, `oncegate_jobs{state="active"}`: 1, `oncegate_jobs_waiting`: 0,
		`oncegate_jobs_oldest_queued_age_seconds`: 90, `oncegate_jobs_by_function{function="f"}{state="queued"}`: 1, `oncegate_jobs_by_function{function="(other)"}{state="dead"}`: 0,
		`oncegate_jobs_by_function_oldest_queued_age_seconds{function="(other)"}`: 1, `oncegate_jobs_by_function_events_total{event="failed"}{function="f"}`: 3, `oncegate_jobs_bytes`: 7, `oncegate_jobs_retained_bytes`: 3, `oncegate_jobs_max_bytes`: 9,
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
