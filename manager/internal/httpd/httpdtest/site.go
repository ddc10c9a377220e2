// Package httpdtest is the client's side of tests of a server: a listening server, requests to it, and what every
// answer must have.
package httpdtest

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Patience is how long a test waits for what must happen. Only a failure takes that long.
const Patience = 3 * time.Minute

// Version is the version that a server under test must be made with.
const Version = "test-1"

// Log keeps what a server logged.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Logger writes lines of all levels to l.
func (l *Log) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Server is the part of httpd.Server that a Site uses. This package does not import httpd, whose own tests use it.
type Server interface {
	SetReady(reason string)
	Serve(ln net.Listener, cfg *tls.Config) error
	Shutdown(ctx context.Context) error
	Abort()
}

// Options are optional.
type Options struct {
	Listen func(net.Listener) net.Listener // wraps the server's listener
	TLS    *tls.Config                     // the server's
	Client *tls.Config
	Drain  func() // runs before the server is shut down
	// Check sees every request and its answer.
	Check func(r *http.Request, body string, a Answer) error
}

// Site is a server that listens on a port of the loopback interface until the test ends.
type Site struct {
	Addr   string
	Base   string // the URL without a path
	Client *http.Client

	t      testing.TB
	server Server
	check  func(*http.Request, string, Answer) error
}

// Start serves. It reports a server that does not shut down within Patience.
func Start(t testing.TB, server Server, o Options) *Site {
	t.Helper()
	server.SetReady("")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Site{t: t, server: server, check: o.Check, Addr: ln.Addr().String()}
	if o.Listen != nil {
		ln = o.Listen(ln)
	}
	s.Base = "http://" + s.Addr
	if o.TLS != nil {
		s.Base = "https://" + s.Addr
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln, o.TLS) }()
	transport := &http.Transport{TLSClientConfig: o.Client}
	s.Client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if o.Drain != nil {
			o.Drain()
		}
		if err := server.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		server.Abort()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return s
}

// Answer is a complete answer.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// Do sends a request and checks what holds for every answer. header has names and values by turns.
func (s *Site) Do(method, path, contentType, body string, header ...string) Answer {
	s.t.Helper()
	a, err := s.Try(s.t.Context(), method, path, contentType, body, header...)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

// Try is Do for requests that may fail.
func (s *Site) Try(ctx context.Context, method, path, contentType, body string, header ...string) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.Base+path, strings.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	if contentType != "" {
		req.Header.Set("content-type", contentType)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.Client.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return Answer{}, err
	}
	if got := resp.Header.Get(api.HeaderManager); got != Version {
		s.t.Errorf("%s %s: answered without its version: %q", method, path, got)
	}
	if resp.StatusCode >= 400 && method != "HEAD" {
		var p api.Problem
		if err := json.Unmarshal(b, &p); err != nil || p.Status != resp.StatusCode || p.Code == "" || resp.Header.Get("content-type") != api.ContentTypeProblem {
			s.t.Errorf("%s %s: %d is no problem document: %q", method, path, resp.StatusCode, b)
		}
	}
	a := Answer{resp.StatusCode, resp.Header, string(b)}
	if s.check != nil {
		if err := s.check(req, body, a); err != nil {
			s.t.Error(err)
		}
	}
	return a, nil
}

// JSON sends a JSON body.
func (s *Site) JSON(method, path, body string) Answer {
	s.t.Helper()
	return s.Do(method, path, "application/json", body)
}

// Dial opens a bare connection. Reads from it fail after Patience.
func (s *Site) Dial() net.Conn {
	s.t.Helper()
	c, err := net.Dial("tcp", s.Addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	if err := c.SetReadDeadline(time.Now().Add(Patience)); err != nil {
		s.t.Fatal(err)
	}
	return c
}

// Eventually waits for a condition that something else brings about.
func (s *Site) Eventually(what string, condition func() bool) {
	s.t.Helper()
	look, deadline := time.NewTicker(time.Millisecond), time.After(Patience)
	defer look.Stop()
	for !condition() {
		select {
		case <-look.C:
		case <-deadline:
			s.t.Fatalf("never: %s", what)
		}
	}
}
