package httpd

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// A page of another site makes a browser send a request without asking first: a POST whose body has no type. The manager
// takes such a body for JSON.
func TestPagesOfOtherSitesAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("0123456789abcdef admin\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	auth, err := NewAuth(file, false)
	if err != nil {
		t.Fatal(err)
	}
	open, closed := newSite(t, siteOptions{}), newSite(t, siteOptions{server: Options{Auth: auth}})
	own := open.Base
	large := strings.Repeat("x", 2*firstPiece)
	for name, c := range map[string]struct {
		site    *site
		path    string
		body    string
		headers []string
		want    int
	}{
		"no browser":                     {open, "/new", "", nil, 201},
		"own page":                       {open, "/new", "", []string{"Sec-Fetch-Site", "same-origin", "Origin", own}, 201},
		"typed by a person":              {open, "/new", "", []string{"Sec-Fetch-Site", "none"}, 201},
		"own page, older browser":        {open, "/new", "", []string{"Origin", own}, 201},
		"another site":                   {open, "/new", "", []string{"Sec-Fetch-Site", "cross-site", "Origin", "https://attacker.example"}, 403},
		"another site, large":            {open, "/new", large, []string{"Sec-Fetch-Site", "cross-site", "Origin", "https://attacker.example"}, 403},
		"another site, no path":          {open, "/nowhere", "", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		"another port":                   {open, "/new", "", []string{"Sec-Fetch-Site", "same-site", "Origin", "http://127.0.0.1:1"}, 403},
		"another site, older browser":    {open, "/new", "", []string{"Origin", "https://attacker.example"}, 403},
		"a file":                         {open, "/new", "", []string{"Origin", "null"}, 403},
		"through a proxy":                {open, "/new", "", []string{"Sec-Fetch-Site", "cross-site", "X-Forwarded-Proto", "https"}, 201},
		"with a token":                   {closed, "/new", "", []string{"Sec-Fetch-Site", "cross-site", "Authorization", "Bearer 0123456789abcdef"}, 201},
		"with a wrong token":             {closed, "/new", "", []string{"Sec-Fetch-Site", "cross-site", "Authorization", "Bearer f123456789abcdef"}, 401},
		"another site, tokens are asked": {closed, "/new", "", []string{"Sec-Fetch-Site", "cross-site"}, 403},
	} {
		if a := c.site.Do("POST", c.path, "", c.body, c.headers...); a.Status != c.want {
			t.Errorf("%s: %d, want %d: %s", name, a.Status, c.want, a.Body)
		}
	}
	// What changes nothing may come from anywhere: the browser keeps the answer from the page.
	if a := open.Do("GET", "/healthz", "", "", "Sec-Fetch-Site", "cross-site"); a.Status != 200 {
		t.Errorf("health: %d", a.Status)
	}
}

// A site whose name leads to the manager's address reads neither metrics nor profiles through a person's browser.
func TestForeignPagesReadNoMetrics(t *testing.T) {
	s := newSite(t, siteOptions{})
	h := s.server.AdminHandler(prometheus.NewRegistry(), nil, "ops.example.com")
	for name, c := range map[string]struct {
		host    string
		headers []string
		want    int
	}{
		"scraper by any name":  {"manager.monitoring.svc:8091", nil, 200},
		"browser, own name":    {"ops.example.com", []string{"Accept-Language", "en"}, 200},
		"browser, address":     {"127.0.0.1:8091", []string{"Accept-Language", "en", "Sec-Fetch-Site", "none"}, 200},
		"browser, other name":  {"attacker.example:8091", []string{"Accept-Language", "en"}, 421},
		"browser, no language": {"attacker.example:8091", []string{"Accept-Language", ""}, 421},
		"browser, other site":  {"127.0.0.1:8091", []string{"Sec-Fetch-Site", "cross-site"}, 403},
	} {
		for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/pprof/symbol"} {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.Host = c.host
			for i := 0; i < len(c.headers); i += 2 {
				r.Header.Set(c.headers[i], c.headers[i+1])
			}
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != c.want {
				t.Errorf("%s %s: %d, want %d", name, path, w.Code, c.want)
			}
		}
	}
}
