package e2e

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Replays have what the route's response settings keep, and the first caller has everything.
func TestReplaysFollowTheResponseSettings(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newSurface(t, target, mode, map[string]any{
			"match": []any{
				map[string]any{"path": "/head", "response": map[string]any{"body": "none"}},
				map[string]any{"path": "/all", "response": map[string]any{"drop_headers": []any{}}, "replay": map[string]any{"header": "X-Replayed"}},
				map[string]any{
					"key":      map[string]any{"required": true},
					"problems": map[string]any{"type_base": "https://docs.test/", "docs_url": "https://docs.test/keys"},
				},
			},
		}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-answer")
			w.Header().Set("Date", "Thu, 01 Jan 1970 00:00:00 GMT")
			w.Header()["Set-Cookie"] = []string{"a=1", "b=2"}
			w.WriteHeader(201)
			_, _ = w.Write([]byte("answer"))
		}, nil)
		p := s.proxies[0]
		for path, want := range map[string]string{
			"/":     "201 answer application/x-answer true  ",
			"/head": "201   true  omitted",
			"/all":  "201 answer application/x-answer  true ",
		} {
			c := pay(newKey())
			c.path = path
			first := wantFirst(t, p, c, 201)
			if got := first.headers.Values("Set-Cookie"); strings.Join(got, " ") != "a=1 b=2" || string(first.body) != "answer" || first.headers.Get("Original-Date") != "" {
				t.Errorf("%s: first %v", path, first)
			}
			a := send(t, p, c)
			h := a.headers
			got := strings.Join([]string{strconv.Itoa(a.status), string(a.body), h.Get("Content-Type"), h.Get("Idempotent-Replayed"), h.Get("X-Replayed"), h.Get("Idempotency-Body")}, " ")
			if got != want || h.Get("Original-Date") != "Thu, 01 Jan 1970 00:00:00 GMT" {
				t.Errorf("%s: got %q of %v, want %q", path, got, a, want)
			}
			if date, err := http.ParseTime(h.Get("Date")); err != nil || date.Before(time.Unix(1e9, 0)) {
				t.Errorf("%s: the replay's own date is %q", path, h.Get("Date"))
			}
			if cookies := strings.Join(h.Values("Set-Cookie"), " "); cookies != map[bool]string{true: "a=1 b=2"}[path == "/all"] {
				t.Errorf("%s: the replay has the cookies %q", path, cookies)
			}
		}
		keyless := pay(newKey())
		keyless.key = nil
		a := send(t, p, keyless)
		if !strings.Contains(string(a.body), `"type":"https://docs.test/key-required"`) || a.headers.Get("Link") != `<https://docs.test/keys>; rel="describedby"; type="text/html"` {
			t.Errorf("problem %v", a)
		}
	})
}
