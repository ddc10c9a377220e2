package ui

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestWithoutTokensNobodyLogsIn(t *testing.T) {
	s := newSite(t, siteOptions{})
	for _, path := range []string{"/ui/", "/ui/ledger"} {
		if a := s.get(path); a.status != 200 || strings.Contains(a.body, "Log") && strings.Contains(a.body, "token") {
			t.Errorf("%s: status %d: %s", path, a.status, a.body)
		}
	}
	if a := s.get("/ui/login"); a.status != 303 {
		t.Errorf("login: status %d, want a redirect to the overview", a.status)
	}
}

func TestPagesAskForAToken(t *testing.T) {
	s := newSite(t, siteOptions{tokens: true})
	for _, path := range []string{"/ui/", "/ui/ledger", "/ui/nowhere", "/ui/events/overview"} {
		a := s.get(path)
		if a.status != 401 || !strings.Contains(a.body, `name="token"`) {
			t.Errorf("%s: status %d: %s", path, a.status, a.body)
		}
	}
	for token, status := range map[string]int{"": 401, "wrong-token-0123456789": 401, gateToken: 403, plainToken: 403} {
		a := s.post("/ui/login", url.Values{"token": {token}})
		if a.status != status || a.header.Get("Set-Cookie") != "" || token != "" && strings.Contains(a.body, token) {
			t.Errorf("login with %q: status %d, want %d; %v", token, a.status, status, a.header)
		}
	}
	for _, token := range []string{operatorToken, adminToken} {
		s.client = s.newClient()
		a := s.post("/ui/login?next=ledger%3Fkey%3Dk", url.Values{"token": {token}})
		cookie := a.header.Get("Set-Cookie")
		if a.status != 303 || a.header.Get("Location") != "./ledger?key=k" || !strings.Contains(cookie, "HttpOnly") || !strings.Contains(cookie, "SameSite=Lax") || strings.Contains(cookie, token) {
			t.Errorf("login: status %d, %v", a.status, a.header)
		}
		if a := s.get("/ui/ledger"); a.status != 200 {
			t.Errorf("after the login: status %d", a.status)
		}
		if a := s.submit("/ui/", "/ui/logout", nil); a.status != 303 {
			t.Errorf("logout: status %d", a.status)
		}
		if a := s.get("/ui/ledger"); a.status != 401 {
			t.Errorf("after the logout: status %d", a.status)
		}
	}
	if log := s.audit.String(); strings.Contains(log, "token-0123456789") || !strings.Contains(log, "login on the web page") {
		t.Errorf("audit log: %s", log)
	}
}

func TestLoginLeadsNowhereElse(t *testing.T) {
	for next, want := range map[string]string{
		"": "", "jobs": "jobs", "schedules": "schedules", "subscriptions?event=e": "subscriptions?event=e", "jobs/a%2Fb?x=1": "jobs/a%2Fb?x=1", "ledger?key=%3C": "ledger?key=%3C",
		"//example.org/": "", "https://example.org/": "", `\\example.org`: "", "jobs/../../x": "", "/jobs": "", "javascript:alert(1)": "", "logout": "", "%2f%2fexample.org": "",
		"jobs/%2e%2e/%2e%2e/x": "", "//user@example.org/jobs": "", "jobs\r\nx: y": "",
	} {
		if got := safeNext(next); got != want {
			t.Errorf("safeNext(%q) = %q, want %q", next, got, want)
		}
	}
}

func TestFormsNeedTheirToken(t *testing.T) {
	for name, tokens := range map[string]bool{"with tokens": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, siteOptions{tokens: tokens})
			if tokens {
				s.login(operatorToken)
			}
			for _, form := range []url.Values{{}, {"csrf": {""}}, {"csrf": {"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}}} {
				if a := s.post("/ui/logout", form); a.status != 403 {
					t.Errorf("%v: status %d, want 403", form, a.status)
				}
			}
			if a := s.get("/ui/"); a.status != 200 {
				t.Errorf("a form without token ended the session: status %d", a.status)
			}
		})
	}
	t.Run("of another session", func(t *testing.T) {
		s := newSite(t, siteOptions{tokens: true})
		s.login(operatorToken)
		theirs := csrfField.FindStringSubmatch(s.get("/ui/").body)[1]
		s.client = s.newClient()
		s.login(operatorToken)
		if a := s.post("/ui/logout", url.Values{"csrf": {theirs}}); a.status != 403 {
			t.Errorf("status %d, want 403", a.status)
		}
	})
	t.Run("of another site", func(t *testing.T) {
		s := newSite(t, siteOptions{})
		for header, value := range map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://example.org"} {
			req, err := http.NewRequestWithContext(t.Context(), "POST", s.url+"/ui/login", strings.NewReader("token=x"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			req.Header.Set(header, value)
			if a := s.do(req); a.status != 403 {
				t.Errorf("%s: %s: status %d, want 403", header, value, a.status)
			}
		}
	})
	t.Run("too large", func(t *testing.T) {
		s := newSite(t, siteOptions{})
		if a := s.post("/ui/login", url.Values{"token": {strings.Repeat("x", maxFormBytes)}}); a.status != 413 {
			t.Errorf("status %d, want 413", a.status)
		}
	})
}

func TestSessionsEnd(t *testing.T) {
	s := newSite(t, siteOptions{tokens: true})
	s.login(operatorToken)
	s.now.Add(sessionIdle - time.Minute)
	if a := s.get("/ui/"); a.status != 200 {
		t.Errorf("before the time is over: status %d", a.status)
	}
	s.now.Add(sessionIdle + time.Second)
	if a := s.get("/ui/"); a.status != 401 {
		t.Errorf("after it was not used for long: status %d", a.status)
	}
	s.login(operatorToken)
	for range sessionLength / sessionIdle {
		s.now.Add(sessionIdle)
		s.get("/ui/")
	}
	s.now.Add(time.Second)
	if a := s.get("/ui/"); a.status != 401 {
		t.Errorf("after its whole length: status %d", a.status)
	}

	s.login(operatorToken)
	s.writeTokens(adminToken + " admin")
	if err := s.auth.Load(s.tokens); err != nil {
		t.Fatal(err)
	}
	if a := s.get("/ui/"); a.status != 401 {
		t.Errorf("after its token was removed: status %d", a.status)
	}

	s.login(adminToken)
	first := s.client
	for range maxSessions {
		s.now.Add(time.Millisecond)
		s.ui.sessions.open([32]byte{1})
	}
	if n := len(s.ui.sessions.all); n != maxSessions {
		t.Errorf("%d sessions, want %d", n, maxSessions)
	}
	s.client = first
	if a := s.get("/ui/"); a.status != 401 {
		t.Errorf("the session that was used least recently stays: status %d", a.status)
	}
}

func TestAnswersCarryTheirProtection(t *testing.T) {
	s := newSite(t, siteOptions{prefix: "/ops/oncegate"})
	for path, status := range map[string]int{"/ui/": 200, "/ui/ledger": 200, "/ui/static/style.css": 200, "/ui/static/page.js": 200, "/ui/static/": 404, "/ui/x/y": 404} {
		a := s.get(path)
		if a.status != status || !strings.HasPrefix(a.header.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'; style-src 'self'") || a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: status %d, %v", path, a.status, a.header)
		}
		for _, inline := range []string{" style=", "<style", "onclick=", "javascript:"} {
			if strings.Contains(a.body, inline) && strings.Contains(a.header.Get("Content-Type"), "html") {
				t.Errorf("%s has %q inline", path, inline)
			}
		}
		if strings.Contains(a.body, `"/ui`) {
			t.Errorf("%s has a link that leaves the prefix", path)
		}
	}
}
