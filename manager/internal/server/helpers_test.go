package server

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/journal"
	"github.com/oncegate/oncegate/manager/internal/openapi/openapitest"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

const patience = httpdtest.Patience

// site is a server that listens.
type site struct {
	*httpdtest.Site
	t      *testing.T
	server *Server
	ledger *ledger.Ledger
	log    *httpdtest.Log
}

type siteOptions struct {
	server Options
	ledger ledger.Options
	store  store.Store // closed at the end; a volatile one when nil
	routes []httpd.Route
	reach  home.Reach
}

func newSite(t *testing.T, o siteOptions) *site {
	t.Helper()
	s := &site{t: t, log: new(httpdtest.Log)}
	st := o.store
	if st == nil {
		st = mem.New(mem.Options{})
	}
	var err error
	watch := journal.New(journal.DefaultKeys)
	o.ledger.Observer = watch
	if s.ledger, err = ledger.New(st, o.ledger); err != nil {
		t.Fatal(err)
	}
	o.server.Version, o.server.Logger = httpdtest.Version, s.log.Logger()
	if s.server, err = New(o.server, LedgerRoutes(s.ledger, watch, o.server.Ledger, o.reach), o.routes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	s.Site = httpdtest.Start(t, s.server, httpdtest.Options{Drain: s.ledger.Drain, Check: described})
	return s
}

var (
	auditHead  = regexp.MustCompile(`^time=\S+ level=WARN msg=`)
	remotePort = regexp.MustCompile(`remote=127\.0\.0\.1:\d+ `)
)

// wantAudited checks the lines of the audit log, without their beginning and the caller's address.
func (s *site) wantAudited(want ...string) {
	s.t.Helper()
	var got []string
	for line := range strings.Lines(s.log.String()) {
		if remotePort.MatchString(line) && strings.Contains(line, " via=") {
			got = append(got, remotePort.ReplaceAllString(auditHead.ReplaceAllString(strings.TrimSpace(line), ""), ""))
		}
	}
	if !slices.Equal(got, want) {
		s.t.Errorf("the audit log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// described checks an exchange against the description of the API.
func described(r *http.Request, body string, a httpdtest.Answer) error {
	if r.URL.Path == api.PathCalls {
		return nil // manager/api/oncegate.proto describes it
	}
	d, err := openapitest.Load()
	if err != nil {
		return err
	}
	return d.Check(&openapitest.Exchange{
		Method: r.Method, Path: r.URL.RequestURI(), RequestType: r.Header.Get("content-type"), Request: body,
		Status: a.Status, Header: a.Header, Answer: a.Body,
	})
}

// tokens are those of an ordinary caller and of an administrator.
func tokens(t *testing.T, ordinary, admin string) *httpd.Auth {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte(ordinary+"\n"+admin+" admin\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	auth, err := httpd.NewAuth(file, false)
	if err != nil {
		t.Fatal(err)
	}
	return auth
}

// raw sends a body in the raw form and reads the reply.
func (s *site) raw(path string, body []byte) (int, api.ReserveReply) {
	s.t.Helper()
	a := s.Do("POST", path, api.ContentTypeRaw, string(body))
	var reply api.ReserveReply
	if a.Status < 400 {
		if ct := a.Header.Get("content-type"); ct != api.ContentTypeRaw {
			s.t.Errorf("%s: answered with %s", path, ct)
		}
		if err := reply.ParseRaw([]byte(a.Body)); err != nil {
			s.t.Errorf("%s: %v", path, err)
		}
	}
	return a.Status, reply
}

func (s *site) waiters() int {
	st, err := s.ledger.Stats(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	return st.Waiters
}

// load is how many requests are at work and how many are held.
func (s *site) load() (busy, held float64) {
	for _, c := range s.server.Collectors() {
		for name, v := range gather(s.t, c) {
			switch name {
			case "oncegate_http_requests_in_flight":
				busy = v
			case "oncegate_http_requests_held":
				held = v
			}
		}
	}
	return busy, held
}
