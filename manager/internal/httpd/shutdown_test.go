package httpd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
)

// TestShutdownDoesNotWaitForSilence: connections on which no request has
// arrived whole do not hold up a shutdown, and are no requests that it cut off.
func TestShutdownDoesNotWaitForSilence(t *testing.T) {
	for what, text := range map[string]string{
		"nothing":   "",
		"head":      "POST /new HTTP/1.1\r\nhost: x\r\n",
		"body":      "POST /new HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{",
		"chunks":    "POST /new HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{",
		"second":    "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nPOST /new HTTP/1.1\r\n",
		"preface":   "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"handshake": "\x16\x03\x01",
	} {
		t.Run(what, func(t *testing.T) {
			s := newSite(t, siteOptions{server: Options{ReadTimeout: time.Hour}})
			c := s.Dial()
			s.send(c, text)
			s.Eventually("the connection is accepted", func() bool { return connections(s) == 1 })
			if what == "second" {
				// The answer to the first request, which is owed, comes at once.
				if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != 200 {
					t.Fatal(resp, err)
				}
			}
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := s.server.Shutdown(ctx); err != nil {
				t.Error(err)
			}
			if n := connections(s); n != 0 {
				t.Errorf("%d connections are open", n)
			}
		})
	}
}

// TestShutdownWithoutTimeCutsNobody: that there was no time for courtesy is no
// failure when nobody was owed an answer.
func TestShutdownWithoutTimeCutsNobody(t *testing.T) {
	s := newSite(t, siteOptions{server: Options{ReadTimeout: time.Hour}})
	c := s.Dial()
	s.send(c, "POST /new HTTP/1.1\r\n")
	s.Eventually("the connection is accepted", func() bool { return connections(s) == 1 })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.server.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if b, err := io.ReadAll(c); err == nil && strings.HasPrefix(string(b), "HTTP/1.1 200") {
		t.Errorf("it got %q", b)
	}
}

// TestShutdownWritesWhatWasProduced: an answer that the client takes slowly is
// written to its end, however much else is closed meanwhile.
func TestShutdownWritesWhatWasProduced(t *testing.T) {
	const size = 32 << 20 // more than all buffers on the way hold
	produced := make(chan struct{})
	s := newSite(t, siteOptions{
		server: Options{ReadTimeout: time.Hour, WriteTimeout: time.Hour},
		routes: []Route{{Method: "GET", Path: "/big", Roles: Plain, Handle: func(_ *Request, w *Response) error {
			w.JSON(200)
			w.Body = append(w.Body, make([]byte, size)...)
			close(produced)
			return nil
		}}},
	})
	silent := s.Dial()
	c := s.Dial()
	s.send(c, "GET /big HTTP/1.1\r\nhost: x\r\n\r\n")
	<-produced
	down := s.shutdown()
	// Once the silent one is closed, everything that may be closed was.
	if b, err := io.ReadAll(silent); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the silent connection is open: %q %v", b, err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil || n != size {
		t.Errorf("%d of %d bytes arrived: %v", n, size, err)
	}
	if err := <-down; err != nil {
		t.Error(err)
	}
}

// TestShutdownOfHTTP2: streams at work are waited for, and a connection without
// one ends soon.
func TestShutdownOfHTTP2(t *testing.T) {
	route, entered, release := blocking()
	s := newSite(t, siteOptions{routes: []Route{route}, server: Options{ReadTimeout: time.Hour}})
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	answer := make(chan error, 1)
	go func() {
		resp, err := (&http.Client{Transport: transport}).Post(s.Base+"/block", "", nil)
		if err == nil {
			var b []byte
			b, err = io.ReadAll(resp.Body)
			resp.Body.Close()
			if err == nil && (resp.StatusCode != 200 || resp.ProtoMajor != 2) {
				err = fmt.Errorf("%s %s %s", resp.Proto, resp.Status, b)
			}
		}
		answer <- err
	}()
	<-entered
	silent := s.Dial()
	s.Eventually("both are accepted", func() bool { return connections(s) == 2 })
	down := s.shutdown()
	if b, err := io.ReadAll(silent); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the silent connection is open: %q %v", b, err)
	}
	close(release)
	if err := <-answer; err != nil {
		t.Error(err)
	}
	if err := <-down; err != nil {
		t.Error(err)
	}
}

// shutdown begins a shutdown and returns where it says how that ended.
func (s *site) shutdown() <-chan error {
	down := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		down <- s.server.Shutdown(ctx)
	}()
	return down
}

func TestServerThatIsNotReadyStillServes(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.server.SetReady("stopping")
	if a := s.JSON("GET", "/readyz", ""); a.Status != 503 || !strings.Contains(a.Body, `"detail":"stopping"`) {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if a := s.JSON("POST", "/new", ""); a.Status != 201 {
		t.Errorf("a request before the shutdown: %d", a.Status)
	}
	s.server.Refuse("the store failed")
	if a := s.JSON("POST", "/new", ""); a.Status != 503 || a.Header.Get("retry-after") == "" {
		t.Errorf("after the store failed: %d %s", a.Status, a.Body)
	}
	if a := s.JSON("GET", "/healthz", ""); a.Status != 200 {
		t.Errorf("health: %d", a.Status)
	}
}

func TestShutdownLetsRequestsFinish(t *testing.T) {
	route, entered, release := blocking()
	s := newSite(t, siteOptions{routes: []Route{route}})
	idle := s.Dial()
	s.send(idle, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
	idleReader := bufio.NewReader(idle)
	if resp, err := http.ReadResponse(idleReader, nil); err != nil {
		t.Fatal(err)
	} else if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	answer := make(chan httpdtest.Answer, 1)
	go func() {
		a, err := s.Try(context.Background(), "POST", "/block", "", "")
		if err != nil {
			t.Error(err)
		}
		answer <- a
	}()
	<-entered
	down := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		down <- s.server.Shutdown(ctx)
	}()
	if _, err := idleReader.ReadByte(); err != io.EOF {
		t.Errorf("the idle connection: %v", err)
	}
	select {
	case err := <-down:
		t.Errorf("shut down with a request at work: %v", err)
	default:
	}
	close(release)
	if a := <-answer; a.Status != 200 {
		t.Errorf("the last request: %d", a.Status)
	}
	if err := <-down; err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", s.Addr); err == nil {
		c.Close()
		t.Error("the listener is still open")
	}
}

func TestShutdownIsBounded(t *testing.T) {
	route, entered, release := blocking()
	s := newSite(t, siteOptions{routes: []Route{route}})
	c := s.Dial()
	s.send(c, "POST /block HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
	<-entered
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := s.server.Shutdown(ctx); err == nil {
		t.Error("shut down in order with a request that does not end")
	}
	if b, err := io.ReadAll(c); err != nil && !strings.Contains(err.Error(), "reset") || len(b) != 0 {
		t.Errorf("the connection was not cut: %q %v", b, err)
	}
	close(release)
}
