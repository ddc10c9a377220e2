package ui

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/journal"
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

const (
	operatorToken = "operator-token-0123456789"
	adminToken    = "admin-token-0123456789abc"
	gateToken     = "gate-token-0123456789abcd"
	plainToken    = "plain-token-0123456789abc"
)

// site is a manager's pages under test.
type site struct {
	t         *testing.T
	ui        *UI
	url       string // without /ui/
	store     store.Store
	ledger    *ledger.Ledger
	queue     *jobs.Queue
	schedules *schedules.Schedules
	auth      *httpd.Auth
	tokens    string // their file
	client    *http.Client
	audit     *lockedBuffer
	log       *lockedBuffer
	now       *testClock
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// testClock is the real time and what a test adds.
type testClock struct {
	mu sync.Mutex
	d  time.Duration
}

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.d)
}

func (c *testClock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.d += d
}

type siteOptions struct {
	writeTimeout time.Duration // of the server; 0: none
	tokens       bool
	prefix       string // in front of /ui/
	ledger       ledger.Options
	unwatched    bool // the journal sees nothing
	change       func(*Options)
}

func newSite(t *testing.T, o siteOptions) *site {
	t.Helper()
	s := &site{t: t, audit: new(lockedBuffer), log: new(lockedBuffer), now: new(testClock)}
	st := mem.New(mem.Options{Clock: s.now.Now})
	s.store = st
	var err error
	watch := journal.New(journal.DefaultKeys)
	if !o.unwatched {
		o.ledger.Observer = watch
	}
	if s.ledger, err = ledger.New(st, o.ledger); err != nil {
		t.Fatal(err)
	}
	if s.queue, err = jobs.New(st, jobs.Options{}); err != nil {
		t.Fatal(err)
	}
	if s.schedules, err = schedules.New(st, s.queue, schedules.Options{}); err != nil {
		t.Fatal(err)
	}
	if o.tokens {
		s.tokens = filepath.Join(t.TempDir(), "tokens")
		s.writeTokens(operatorToken+" operator", adminToken+" admin", gateToken+" gate", plainToken)
		if s.auth, err = httpd.NewAuth(s.tokens, false); err != nil {
			t.Fatal(err)
		}
	}
	opts := Options{
		Version: "test", Auth: s.auth, Ledger: s.ledger, Journal: watch, Queue: s.queue, Schedules: s.schedules, Clock: s.now.Now,
		Log: slog.New(slog.NewTextHandler(s.log, nil)), Audit: slog.New(slog.NewTextHandler(s.audit, nil)),
	}
	if o.change != nil {
		o.change(&opts)
	}
	if s.ui, err = New(opts); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(o.prefix+"/ui/", http.StripPrefix(o.prefix, s.ui))
	server := httptest.NewUnstartedServer(mux)
	server.Config.WriteTimeout = o.writeTimeout
	server.Start()
	s.url = server.URL + o.prefix
	s.client = s.newClient()
	t.Cleanup(func() {
		server.CloseClientConnections()
		s.ui.Close()
		server.Close()
		s.queue.Close()
		_ = st.Close()
		if strings.Contains(s.log.String(), "a page failed") {
			t.Errorf("log: %s", s.log)
		}
	})
	return s
}

func (s *site) writeTokens(lines ...string) {
	s.t.Helper()
	if err := os.WriteFile(s.tokens, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// newClient has cookies of its own and follows no redirects.
func (s *site) newClient() *http.Client {
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// answer is what a test looks at.
type answer struct {
	status int
	header http.Header
	body   string
}

func (s *site) do(req *http.Request) answer {
	s.t.Helper()
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

// get reads a page. path is relative to the prefix.
func (s *site) get(path string) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), "GET", s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.do(req)
}

// post sends a form as it is.
func (s *site) post(path string, form url.Values) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), "POST", s.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return s.do(req)
}

var csrfField = regexp.MustCompile(`name="csrf" value="([^"]+)"`)

// submit sends a form with the CSRF token of a page.
func (s *site) submit(page, path string, form url.Values) answer {
	s.t.Helper()
	a := s.get(page)
	m := csrfField.FindStringSubmatch(a.body)
	if m == nil {
		s.t.Fatalf("GET %s: status %d, no form: %s", page, a.status, a.body)
	}
	if form == nil {
		form = url.Values{}
	}
	form.Set("csrf", m[1])
	return s.post(path, form)
}

func (s *site) login(token string) {
	s.t.Helper()
	if a := s.post("/ui/login", url.Values{"token": {token}}); a.status != 303 {
		s.t.Fatalf("login: status %d: %s", a.status, a.body)
	}
}

// certificatesOnly asks callers of the API for a certificate and nobody for a token.
func certificatesOnly(t *testing.T) *httpd.Auth {
	t.Helper()
	a, err := httpd.NewAuth("", true)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
