package httpd

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncegate/oncegate/manager/api"
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
	letGo  chan struct{} // closed: POST /hold is answered
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
	listen func(net.Listener) net.Listener
	routes []Route
	tls    *tls.Config
	client *tls.Config
}

// newSite starts a server. POST /new is answered 201, POST /hold when the test closes
// letGo; DELETE /new is for administrators.
func newSite(t *testing.T, o siteOptions) *site {
	t.Helper()
	s := &site{t: t, log: new(logBuffer), letGo: make(chan struct{})}
	var err error
	o.server.Version = "test-1"
	o.server.Logger = slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if s.server, err = New(o.server, append(o.routes, Route{Method: "POST", Path: "/hold", Handle: s.hold},
		Route{Method: "POST", Path: "/new", Handle: answerNew}, Route{Method: "DELETE", Path: "/new", Handle: answerNew, Admin: true})); err != nil {
		t.Fatal(err)
	}
	s.server.SetReady("")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = ln.Addr().String()
	if o.listen != nil {
		ln = o.listen(ln)
	}
	s.base = "http://" + s.addr
	if o.tls != nil {
		s.base = "https://" + s.addr
	}
	served := make(chan error, 1)
	go func() { served <- s.server.Serve(ln, o.tls) }()
	transport := &http.Transport{TLSClientConfig: o.client}
	s.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.server.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		s.server.Abort()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return s
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

// waiters is how many requests are held.
func (s *site) waiters() int { return int(s.server.load.held.Load()) }

func (s *site) hold(r *Request, w *Response) {
	ctx, stop := r.Hold()
	defer stop()
	select {
	case <-s.letGo:
		w.JSON(200)
		w.Body = append(w.Body, `{"held":true}`...)
	case <-ctx.Done():
		r.Error(w, ctx.Err())
	}
}

func answerNew(_ *Request, w *Response) {
	w.JSON(201)
	w.Body = append(w.Body, `{}`...)
}
