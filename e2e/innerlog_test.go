package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// The access log shows the details, flags and host of an upstream call that the gate made itself.
func TestAccessLogShowsTheGatesOwnCall(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		target.alone = true // the log is written when the Envoy ends
		s := newSurface(t, target, "body", nil, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/drop" {
				panic(http.ErrAbortHandler)
			}
		}, nil)
		p := s.proxies[0]
		for _, path := range []string{"/drop", "/ok"} {
			c := pay(newKey())
			c.path = path
			send(t, p, c)
		}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
		got := map[string]string{}
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, line := range p.lines {
			var l struct{ Path, Upstream string }
			if json.Unmarshal([]byte(line), &l) == nil && l.Upstream != "" {
				got[l.Path] = l.Upstream
			}
		}
		if want := "via_upstream - 1 " + s.paymentsAddr; got["/ok"] != want {
			t.Errorf("/ok: %q, want %q", got["/ok"], want)
		}
		if !strings.HasPrefix(got["/drop"], "upstream_reset_before_response_started{connection_termination") || !strings.Contains(got["/drop"], " UC 1 ") {
			t.Errorf("/drop: %q", got["/drop"])
		}
	})
}
