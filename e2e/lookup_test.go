package e2e

import (
	"net/http"
	"testing"
)

// A client that lost an answer looks it up, at the proxy that has it and at another one.
func TestClientsLookUpLostAnswers(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		began, goOn := make(chan struct{}, 1), make(chan struct{})
		s := newSurface(t, target, mode, map[string]any{"lookup": map[string]any{"path": "/lost"}}, func(w http.ResponseWriter, r *http.Request) {
			if r.Method != "POST" {
				t.Errorf("upstream got %s %s", r.Method, r.URL)
			}
			began <- struct{}{}
			<-goOn
			w.Header().Set("X-Answer", "a")
			w.WriteHeader(201)
			_, _ = w.Write([]byte("answer"))
		}, nil)
		here, there := s.proxies[0], s.startProxy(t)
		key := newKey()
		c := pay(key, "authorization", "Bearer alice")
		look := pay(key, "authorization", "Bearer alice")
		look.method, look.path = "GET", "/lost?path=%2Fpayments"
		wantProblem(t, here, look, 404, "not-found")
		answers := make(chan answer, 1)
		go func() {
			a, _ := do(t.Context(), here, c)
			answers <- a
		}()
		<-began
		for _, p := range []*proxy{here, there} {
			if a := send(t, p, look); a.status != 202 || string(a.body) != `{"state":"pending"}` {
				t.Errorf("running: %v", a)
			}
		}
		wrong := look
		wrong.path += "&wait_ms=30001"
		wantProblem(t, here, wrong, 400, "invalid-request")
		wait := look
		wait.path += "&wait_ms=300"
		if a := send(t, there, wait); a.status != 202 || string(a.body) != `{"state":"pending"}` {
			t.Errorf("after a wait: %v", a)
		}
		wait.path = look.path + "&wait_ms=30000"
		waited := make(chan answer, 2)
		for _, p := range []*proxy{here, there} {
			go func() {
				a, err := do(t.Context(), p, wait)
				if err != nil {
					t.Errorf("a look-up that waits: %v", err)
				}
				waited <- a
			}()
		}
		here.awaitMetric(t, "oncegate_gate_waiters", 1)
		there.awaitMetric(t, "oncegate_gate_waiters", 1)
		close(goOn)
		first := <-answers
		if first.status != 201 {
			t.Fatalf("first: %v", first)
		}
		for _, a := range []answer{send(t, here, look), send(t, there, look), <-waited, <-waited} {
			if got := a.headers.Values("Cache-Control"); len(got) != 1 || got[0] != "no-store" {
				t.Errorf("a look-up may be cached: %q", got)
			}
			a.headers.Del("Cache-Control")
			if err := a.sameAs(first); err != nil || !a.replayed() {
				t.Errorf("look-up: %v, replayed %v: %v", err, a.replayed(), a)
			}
		}
		head := look
		head.method = "HEAD"
		if a := send(t, here, head); a.status != 201 || !a.replayed() || a.headers.Get("X-Answer") != "a" || len(a.body) > 0 {
			t.Errorf("by HEAD: %v", a)
		}
		stranger := look
		stranger.headers = map[string]string{"authorization": "Bearer bob"}
		wantProblem(t, here, stranger, 404, "not-found")
		wantProblem(t, there, stranger, 404, "not-found")
	})
}
