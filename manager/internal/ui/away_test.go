package ui

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// TestStoreThatIsAwayIsToldInWords: the API's text for a gate is of no use to a person.
func TestStoreThatIsAwayIsToldInWords(t *testing.T) {
	s := newSite(t, siteOptions{change: func(o *Options) {
		o.Problem = func(error) api.Problem {
			return api.Problem{Status: 503, Code: api.CodeUnavailable, Title: "Unavailable", Detail: "repeat the call with the same token", RetryAfterSeconds: 5}
		}
	}})
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/ui/", "/ui/ledger", "/ui/ledger?list=pending", "/ui/ledger?key=k", "/ui/jobs", "/ui/jobs?state=failed", "/ui/jobs/some"} {
		a := s.get(path)
		if a.status != 503 || a.header.Get("Retry-After") != "5" || !strings.Contains(a.body, "The store does not answer") || strings.Contains(a.body, "same token") {
			t.Errorf("%s: status %d: %s", path, a.status, a.body)
		}
	}
	a := s.post("/ui/jobs/pause", url.Values{"function": {"f"}, "csrf": {s.ui.csrf(nil)}})
	if a.status != 503 || !strings.Contains(a.body, "before you repeat it") || strings.Contains(a.body, "same token") {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	if a := s.get("/ui/system"); a.status != 200 {
		t.Errorf("the page that needs no store: status %d", a.status)
	}
}

// TestQuarantineIsShown: a manager that refuses every new key must not look well.
func TestQuarantineIsShown(t *testing.T) {
	now := &Quarantine{Left: 3*time.Hour + time.Minute, Why: []string{"dc2 remembers <more>"}}
	s := newSite(t, siteOptions{change: func(o *Options) { o.Quarantine = func() *Quarantine { return now } }})
	for _, path := range []string{"/ui/", "/ui/ledger"} {
		if a := s.get(path); !strings.Contains(a.body, "in quarantine for another 3 hours") || strings.Contains(a.body, "Nothing needs attention") || !strings.Contains(a.body, "dc2 remembers &lt;more&gt;") {
			t.Errorf("%s: %s", path, a.body)
		}
	}
	now = nil
	for _, path := range []string{"/ui/", "/ui/ledger"} {
		if a := s.get(path); strings.Contains(a.body, "quarantine") {
			t.Errorf("%s, after the quarantine: %s", path, a.body)
		}
	}
}

// TestTextsKeepTheirLayout: tabs and the ends of lines lay a text out, whichever kind they are; other control characters are shown.
func TestTextsKeepTheirLayout(t *testing.T) {
	if got, want := showText("{\r\n\t\"a\":\t1\r\n}\rb\x1b"), "{\n\t\"a\":\t1\n}"+`\rb\x1b`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
