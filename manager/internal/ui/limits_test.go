package ui

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

const limitsPage = "/ui/jobs?function=f"

func (s *site) wantLimits(want jobs.Limits) {
	s.t.Helper()
	if f, err := s.queue.Function(s.t.Context(), "f"); err != nil || f.Limits != want {
		s.t.Errorf("limits %+v, %v; want %+v", f.Limits, err, want)
	}
}

// A function's page shows its limits, and sets and removes them.
func TestLimitsAreSetAndRemoved(t *testing.T) {
	s := newSite(t, siteOptions{tokens: true})
	s.login(operatorToken)
	if got := text(s.get(limitsPage).body); !strings.Contains(got, "Set limits") || strings.Contains(got, "At most") {
		t.Errorf("without limits: %s", got)
	}
	form := url.Values{"function": {"f"}, "max_running": {"1"}, "max_running_per_key": {"2"}, "rate_count": {"1000"}, "rate_per": {"90"}, "rate_unit": {"seconds"}}
	if a := s.post("/ui/jobs/limits", form); a.status != 403 {
		t.Errorf("without CSRF token: status %d", a.status)
	}
	s.wantLimits(jobs.Limits{})
	if a := s.submit(limitsPage, "/ui/jobs/limits", form); a.status != 303 || a.header.Get("Location") != "./../jobs?done=limited&function=f" {
		t.Fatalf("status %d, %s: %s", a.status, a.header.Get("Location"), text(a.body))
	}
	s.wantLimits(jobs.Limits{MaxRunning: 1, MaxRunningPerKey: 2, Rate: jobs.Rate{Count: 1000, Per: 90 * time.Second}})
	a := s.get(limitsPage + "&done=limited")
	for _, want := range []string{"The limits are set", "At most 1 job runs at the same time.", "At most 2 jobs of one concurrency key", "At most 1 000 starts in 90 seconds."} {
		if !strings.Contains(text(a.body), want) {
			t.Errorf("no %q: %s", want, text(a.body))
		}
	}
	for _, want := range []string{`value="1000"`, `name="rate_per" min="1" max="1000000" value="90"`, `<option selected>seconds`} {
		if !strings.Contains(a.body, want) {
			t.Errorf("the form lacks %s: %s", want, a.body)
		}
	}
	if a := s.get("/ui/jobs"); !strings.Contains(a.body, ">limited<") {
		t.Errorf("the functions: %s", a.body)
	}
	if a := s.submit(limitsPage, "/ui/jobs/limits", url.Values{"function": {"f"}, "rate_per": {"1"}, "rate_unit": {"seconds"}}); a.header.Get("Location") != "./../jobs?done=unlimited&function=f" {
		t.Errorf("status %d, %s", a.status, a.header.Get("Location"))
	}
	s.wantLimits(jobs.Limits{})
	if log := s.audit.String(); strings.Count(log, "limits of a function set by an operator") != 2 || !strings.Contains(log, "rate_per=1m30s") {
		t.Errorf("audit log: %s", log)
	}
}

// The page shows the time of a rate exactly.
func TestTimeOfARateIsExact(t *testing.T) {
	for per, want := range map[time.Duration]string{time.Hour: "1 hour", 90 * time.Minute: "90 minutes", 1500 * time.Millisecond: "1 500 milliseconds", 24 * time.Hour: "24 hours", time.Second: "1 second"} {
		f := functionRow{Function: jobs.Function{Limits: jobs.Limits{Rate: jobs.Rate{Count: 1, Per: per}}}}
		if got := strings.ReplaceAll(f.RatePer().String(), "\u202f", " "); got != want {
			t.Errorf("%v: %q, want %q", per, got, want)
		}
	}
}

// A form with a mistake changes nothing, and says what is allowed.
func TestLimitsOutOfBoundsAreRefused(t *testing.T) {
	s := newSite(t, siteOptions{})
	for want, form := range map[string]url.Values{
		"Field max_running: &#34;0&#34; is not allowed":          {"max_running": {"0"}},
		"Field max_running_per_key: &#34;-1&#34; is not allowed": {"max_running_per_key": {"-1"}},
		"Field rate_count: &#34;many&#34; is not allowed":        {"rate_count": {"many"}, "rate_per": {"1"}, "rate_unit": {"seconds"}},
		"Field rate_unit: &#34;years&#34; is not allowed":        {"rate_count": {"1"}, "rate_per": {"1"}, "rate_unit": {"years"}},
		"Field rate.per_ms: 0 ms is not allowed":                 {"rate_count": {"1"}, "rate_per": {""}, "rate_unit": {"seconds"}},
		"Field rate.per_ms: 3600000000000 ms is not allowed":     {"rate_count": {"1"}, "rate_per": {"1000000"}, "rate_unit": {"hours"}},
		"Field function: &#34;a b&#34; is not allowed":           {"function": {"a b"}, "max_running": {"1"}},
		"Field max_running: &#34;1000001&#34; is not allowed":    {"max_running": {"1000001"}},
	} {
		if !form.Has("function") {
			form.Set("function", "f")
		}
		if a := s.submit(limitsPage, "/ui/jobs/limits", form); a.status != 400 || !strings.Contains(text(a.body), want) {
			t.Errorf("%v: status %d: %s", form, a.status, text(a.body))
		}
	}
	s.wantLimits(jobs.Limits{})
}

func TestReadersSeeLimits(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.ui.opts.Auth = certificatesOnly(t)
	if err := s.queue.SetLimits(t.Context(), "f", jobs.Limits{MaxRunning: 3}); err != nil {
		t.Fatal(err)
	}
	if a := s.get(limitsPage); !strings.Contains(text(a.body), "At most 3 jobs run") || strings.Contains(a.body, "jobs/limits") {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	if a := s.post("/ui/jobs/limits", url.Values{"csrf": {s.ui.csrf(nil)}, "function": {"f"}}); a.status != 403 {
		t.Errorf("status %d", a.status)
	}
	s.wantLimits(jobs.Limits{MaxRunning: 3})
}
