package server

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what must happen; only a failure takes
// that long.
const patience = 30 * time.Second

// site is a server that listens.
type site struct {
	t      *testing.T
	server *Server
	ledger *ledger.Ledger
	addr   string
	base   string
	client *http.Client
	log    *logBuffer
}

// logBuffer keeps what the server logged.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type siteOptions struct {
	server Options
	ledger ledger.Options
	store  store.Store // closed at the end; a volatile one when nil
	routes []httpd.Route
	audit  func(Intervention)
}

func newSite(t *testing.T, o siteOptions) *site {
	t.Helper()
	s := &site{t: t, log: new(logBuffer)}
	st := o.store
	if st == nil {
		st = mem.New(mem.Options{})
	}
	var err error
	if s.ledger, err = ledger.New(st, o.ledger); err != nil {
		t.Fatal(err)
	}
	o.server.Version = "test-1"
	o.server.Logger = slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if s.server, err = New(o.server, LedgerRoutes(s.ledger, o.server.Identity, o.audit), o.routes); err != nil {
		t.Fatal(err)
	}
	s.server.SetReady("")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = ln.Addr().String()
	s.base = "http://" + s.addr
	served := make(chan error, 1)
	go func() { served <- s.server.Serve(ln, nil) }()
	transport := &http.Transport{}
	s.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s.ledger.Drain()
		if err := s.server.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		s.server.Abort()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		_ = st.Close()
	})
	return s
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

// answered is a complete answer.
type answered struct {
	status int
	header http.Header
	body   string
}

// do sends a request and checks what holds for every answer.
func (s *site) do(method, path, contentType, body string, header ...string) answered {
	s.t.Helper()
	a, err := s.try(s.t.Context(), method, path, contentType, body, header...)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

func (s *site) try(ctx context.Context, method, path, contentType, body string, header ...string) (answered, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.base+path, strings.NewReader(body))
	if err != nil {
		return answered{}, err
	}
	if contentType != "" {
		req.Header.Set("content-type", contentType)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return answered{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return answered{}, err
	}
	if got := resp.Header.Get(api.HeaderManager); got != "test-1" {
		s.t.Errorf("%s %s: answered without its version: %q", method, path, got)
	}
	if resp.StatusCode >= 400 && method != "HEAD" {
		var p api.Problem
		if err := p.ParseJSON(b); err != nil || p.Status != resp.StatusCode || p.Code == "" || resp.Header.Get("content-type") != api.ContentTypeProblem {
			s.t.Errorf("%s %s: %d is no problem document: %q", method, path, resp.StatusCode, b)
		}
	}
	return answered{resp.StatusCode, resp.Header, string(b)}, nil
}

// json sends a JSON body.
func (s *site) json(method, path, body string) answered {
	s.t.Helper()
	return s.do(method, path, "application/json", body)
}

// raw sends a body in the raw form and reads the reply.
func (s *site) raw(path string, body []byte) (int, api.ReserveReply) {
	s.t.Helper()
	a := s.do("POST", path, api.ContentTypeRaw, string(body))
	var reply api.ReserveReply
	if a.status < 400 {
		if ct := a.header.Get("content-type"); ct != api.ContentTypeRaw {
			s.t.Errorf("%s: answered with %s", path, ct)
		}
		if err := reply.ParseRaw([]byte(a.body)); err != nil {
			s.t.Errorf("%s: %v", path, err)
		}
	}
	return a.status, reply
}

// eventually waits for a condition that something else brings about.
func (s *site) eventually(what string, cond func() bool) {
	s.t.Helper()
	look, deadline := time.NewTicker(time.Millisecond), time.After(patience)
	defer look.Stop()
	for !cond() {
		select {
		case <-look.C:
		case <-deadline:
			s.t.Fatalf("never: %s", what)
		}
	}
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
		if g, ok := c.(prometheus.GaugeFunc); ok {
			for name, v := range gather(s.t, g) {
				switch name {
				case "oncegate_http_in_flight":
					busy = v
				case "oncegate_http_held":
					held = v
				}
			}
		}
	}
	return busy, held
}

// dial opens a bare connection.
func (s *site) dial() net.Conn {
	s.t.Helper()
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	// A read that must end must end in this time.
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		s.t.Fatal(err)
	}
	return c
}
