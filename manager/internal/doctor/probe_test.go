package doctor

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestProbe: what a gate answers to a request and to its retry decides what the doctor says.
func TestProbe(t *testing.T) {
	type said struct {
		code   int
		status string
	}
	for name, c := range map[string]struct {
		answers   []said
		level     Level
		found, do string
	}{
		"protected":                {[]said{{201, "executed"}, {201, "replayed"}}, OK, "its retry got the recorded answer", ""},
		"not protected":            {[]said{{201, ""}}, Fail, "no gate protected the request (status 201)", "a rule of"},
		"bypassed":                 {[]said{{201, "bypassed"}}, Fail, "passed without protection", "failure_mode"},
		"no inner listener":        {[]said{{503, "not-sent"}}, Fail, "Envoy answered 503 (not-sent)", "inner listener"},
		"no manager":               {[]said{{503, "manager-unavailable"}}, Fail, "the gate answered 503 manager-unavailable: why", "METRICS.md"},
		"no caller":                {[]said{{400, "scope-ambiguous"}}, Warn, "lacks what identifies its caller", "--probe-header"},
		"it runs again":            {[]said{{201, "executed"}, {201, "executed"}}, Fail, "the retry ran again", "scope"},
		"the upstream wants it":    {[]said{{429, "executed"}, {429, "executed"}}, Warn, "asked for a retry (status 429)", "name a URL"},
		"the answer is not stored": {[]said{{201, "executed"}, {410, "answer-not-recorded"}}, Fail, "the retry got 410 answer-not-recorded", "METRICS.md"},
	} {
		t.Run(name, func(t *testing.T) {
			var keys []string
			n := admin(t, file(t, "config_dump.json"), file(t, "clusters.json"), "", "{}")
			n.hosts["shop"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPost || r.URL.Path != "/payments" || r.Header.Get("Authorization") != "Bearer a" {
					t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
				}
				keys = append(keys, r.Header.Get("Idempotency-Key"))
				a := c.answers[len(keys)-1]
				if a.status != "" {
					w.Header().Set("Idempotency-Status", a.status)
				}
				w.WriteHeader(a.code)
				_, _ = w.Write([]byte(`{"detail":"why"}`))
			})
			var r report
			Target{Client: n.Client(), Probe: Probe{URL: "http://shop/payments", Header: http.Header{"Authorization": {"Bearer a"}}}}.probe(t.Context(), &r, nil)
			if len(r.findings) != 1 || r.findings[0].Level != c.level || !strings.Contains(r.findings[0].Found, c.found) || !strings.Contains(r.findings[0].Do, c.do) {
				t.Errorf("%+v", r.findings)
			}
			if keys := slices.Compact(keys); len(keys) != 1 || len(keys[0]) != 36 {
				t.Errorf("keys %q", keys)
			}
		})
	}
}
