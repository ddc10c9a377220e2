package ui

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// TestForeignNamesAreRefused: a site whose name leads to the manager's address is another origin than the manager's own
// names, but one origin with what it reads there. Without tokens nothing else keeps it out.
func TestForeignNamesAreRefused(t *testing.T) {
	s := newSite(t, siteOptions{change: func(o *Options) { o.Hosts = []string{"Ops.example.com", ""} }})
	for host, want := range map[string]int{
		"": 200, "127.0.0.1": 200, "127.0.0.1:8091": 200, "[::1]:8091": 200, "[fe80::1]": 200, "localhost:8091": 200, "LOCALHOST": 200, "oncegate.localhost": 200,
		"oncegate": 200, "oncegate:8091": 200, "ops.example.com:8091": 200, "OPS.example.com.": 200,
		"attacker.example": 421, "attacker.example:8091": 421, "127.0.0.1.attacker.example": 421, "localhost.attacker.example:8091": 421,
		"xops.example.com": 421, "ops.example.com.attacker.example": 421, "attacker.example.": 421,
	} {
		for _, path := range []string{"/ui/", "/ui/ledger?key=k", "/ui/nowhere"} {
			if path != "/ui/" && want == 200 {
				continue
			}
			r := httptest.NewRequest("GET", path, nil)
			r.Host = host
			w := httptest.NewRecorder()
			s.ui.ServeHTTP(w, r)
			if w.Code != want || want == 421 && (strings.Contains(w.Body.String(), `name="csrf"`) || !strings.Contains(w.Body.String(), "--auth-token-file")) {
				t.Errorf("%s %s: status %d, want %d: %s", host, path, w.Code, want, w.Body)
			}
		}
	}
	csrf := csrfField.FindStringSubmatch(s.get("/ui/").body)
	form := url.Values{"function": {"f"}}
	if csrf != nil {
		form.Set("csrf", csrf[1])
	}
	r := httptest.NewRequest("POST", "/ui/jobs/pause", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Host = "attacker.example"
	w := httptest.NewRecorder()
	if s.ui.ServeHTTP(w, r); w.Code != 421 {
		t.Errorf("form: status %d", w.Code)
	}
	// With tokens a foreign name shows a login, and the browser has no session for it.
	s = newSite(t, siteOptions{tokens: true})
	r = httptest.NewRequest("GET", "/ui/", nil)
	r.Host = "ops.example.com"
	w = httptest.NewRecorder()
	if s.ui.ServeHTTP(w, r); w.Code != 401 {
		t.Errorf("with tokens: status %d", w.Code)
	}
}

// TestCookieFitsTheAddress: a browser that speaks TLS keeps the session to TLS, also where a proxy ends it, and pages of
// managers on several ports of one host do not take each other's session.
func TestCookieFitsTheAddress(t *testing.T) {
	s := newSite(t, siteOptions{tokens: true})
	login := func(change func(*http.Request)) *http.Cookie {
		t.Helper()
		r := httptest.NewRequest("POST", "/ui/login", strings.NewReader(url.Values{"token": {operatorToken}}.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		change(r)
		w := httptest.NewRecorder()
		s.ui.ServeHTTP(w, r)
		if all := w.Result().Cookies(); w.Code == 303 && len(all) == 1 {
			return all[0]
		}
		t.Fatalf("status %d, %v", w.Code, w.Header())
		return nil
	}
	for name, c := range map[string]struct {
		change func(*http.Request)
		want   bool
	}{
		"plain": {func(*http.Request) {}, false},
		"TLS":   {func(r *http.Request) { r.TLS = new(tls.ConnectionState) }, true},
		"a proxy ends TLS": {func(r *http.Request) {
			r.Host = "10.0.0.1:8091"
			r.Header.Set("Origin", "https://ops.example.com")
			r.Header.Set("Sec-Fetch-Site", "same-origin")
		}, true},
		"plain with origin": {func(r *http.Request) { r.Host = "127.0.0.1:1"; r.Header.Set("Origin", "http://127.0.0.1:1") }, false},
	} {
		if got := login(c.change); got.Secure != c.want {
			t.Errorf("%s: secure is %v", name, got.Secure)
		}
	}
	one := login(func(r *http.Request) { r.Host = "127.0.0.1:8091" })
	two := login(func(r *http.Request) { r.Host = "127.0.0.1:8092" })
	if one.Name == two.Name {
		t.Errorf("two ports share the cookie %s", one.Name)
	}
}

// TestShownPayloadIsBounded: laid out for reading, a payload of small values that are nested deep has 65 times its size.
func TestShownPayloadIsBounded(t *testing.T) {
	s := newSite(t, siteOptions{})
	deep := strings.Repeat("[", 60) + strings.Repeat("1,", 300_000) + "1" + strings.Repeat("]", 60)
	out, err := s.queue.Enqueue(t.Context(), jobs.Submission{Function: "f", Payload: []byte(deep)})
	if err != nil {
		t.Fatal(err)
	}
	path := "/ui/jobs/" + out.Job.ID
	a := s.submit(path, path+"/reveal", nil)
	if a.status != 200 || !strings.Contains(a.body, "Only the beginning of") {
		t.Errorf("status %d", a.status)
	}
	if len(a.body) > 1<<20 {
		t.Errorf("the page has %d bytes", len(a.body))
	}
}
