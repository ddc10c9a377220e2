package e2e

import (
	"net/http"
	"testing"
)

// Callers that lack what the scope names do not share keys, unless the route says so.
func TestCallersDoNotShareKeysByAccident(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newSurface(t, target, mode, map[string]any{
			"match": []any{
				map[string]any{"path": "/named", "scope": []any{"host", "path", "header:x-api-key"}},
				map[string]any{"path": "/shared", "anonymous": "shared"},
				map[string]any{},
			},
			"anonymous": "refuse",
		}, func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("for " + r.Header.Get("X-Api-Key")))
		}, nil)
		p := s.proxies[0]
		key := newKey()
		of := func(path, caller string) call {
			c := pay(key, "x-api-key", caller)
			c.path = path
			return c
		}
		wantProblem(t, p, of("/", "alice"), 400, "scope-ambiguous")
		wantProblem(t, p, pay(key, "cookie", "a=1"), 400, "scope-ambiguous")
		alice, bob := wantFirst(t, p, of("/named", "alice"), 200), wantFirst(t, p, of("/named", "bob"), 200)
		wantReplay(t, p, of("/named", "alice"), alice)
		wantReplay(t, p, of("/named", "bob"), bob)
		first := wantFirst(t, p, of("/shared", "alice"), 200)
		wantReplay(t, p, of("/shared", "bob"), first)
	})
}
