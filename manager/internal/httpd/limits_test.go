package httpd

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
)

func (s *site) send(c net.Conn, text string) {
	s.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		s.t.Fatal(err)
	}
}

// holdRequest is answered when the test closes letGo.
const holdRequest = "POST /hold HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"

func TestSlowClientsAreCut(t *testing.T) {
	for what, head := range map[string]string{
		"headers": "POST /new HTTP/1.1\r\nhost: x\r\n",
		"body":    "POST /new HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{",
		"chunks":  "POST /new HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{",
		"idle":    "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			// A busy machine must read the head of the request in this time.
			s := newSite(t, siteOptions{server: Options{ReadTimeout: 10 * time.Second, IdleTimeout: 100 * time.Millisecond}})
			c := s.Dial()
			s.send(c, head)
			b, err := io.ReadAll(c)
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				t.Fatalf("the connection was left open; it said %q", b)
			}
			if what == "body" && !strings.HasPrefix(string(b), "HTTP/1.1 408 ") {
				t.Errorf("said %q", b)
			}
		})
	}
}

// TestIdleConnectionsAreCutAfterAHeldCall: a held call has its own use for the
// connection's deadlines.
func TestIdleConnectionsAreCutAfterAHeldCall(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{server: Options{ReadTimeout: 10 * time.Second, IdleTimeout: 100 * time.Millisecond}})
	close(s.letGo)
	c := s.Dial()
	s.send(c, holdRequest)
	b, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200 ") {
		t.Errorf("%v; it said %q", err, b)
	}
}

// TestSlowReadersAreCut: a client that asks and does not take the answer.
func TestSlowReadersAreCut(t *testing.T) {
	const size = 1 << 20
	finished := make(chan struct{})
	s := newSite(t, siteOptions{
		server: Options{WriteTimeout: 100 * time.Millisecond},
		routes: []Route{{Method: "GET", Path: "/big", Roles: Plain, Handle: func(_ *Request, w *Response) error {
			w.JSON(200)
			w.Body = append(w.Body, make([]byte, size)...)
			return nil
		}}},
	})
	c := s.Dial().(*net.TCPConn)
	// Small buffers on this side; the server's fill up behind them.
	if err := c.SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(finished)
		for range 64 { // more than all buffers on the way hold
			if _, err := io.WriteString(c, "GET /big HTTP/1.1\r\nhost: x\r\n\r\n"); err != nil {
				return
			}
		}
	}()
	<-finished
	s.Eventually("the connection is closed", func() bool {
		return connections(s) == 0
	})
}

// connections counts the open ones.
func connections(s *site) int {
	l := &s.server.limit
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

func TestBodyOverTheLimitIsRefused(t *testing.T) {
	s := newSite(t, siteOptions{server: Options{MaxBodyBytes: 1000}})
	if a := s.JSON("POST", "/new", strings.Repeat(" ", 1000)); a.Status != 201 {
		t.Errorf("a body at the limit: %d %s", a.Status, a.Body)
	}
	for what, head := range map[string]string{
		"sized":   "content-length: 1001\r\n\r\n" + strings.Repeat(" ", 1001),
		"chunked": "transfer-encoding: chunked\r\n\r\n3e9\r\n" + strings.Repeat(" ", 1001) + "\r\n0\r\n\r\n",
	} {
		c := s.Dial()
		s.send(c, "POST /new HTTP/1.1\r\nhost: x\r\n"+head)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != 413 || !strings.Contains(string(b), `"code":"too-large"`) || resp.Header.Get(api.HeaderManager) != "test-1" {
			t.Errorf("%s: %d %s", what, resp.StatusCode, b)
		}
	}
	var counted dto.Metric
	if err := s.server.metrics.requests.WithLabelValues("POST /new", "4xx").Write(&counted); err != nil || counted.Counter.GetValue() != 2 {
		t.Errorf("oncegate_http_requests_total counts %v refused requests, want 2 (%v)", counted.Counter.GetValue(), err)
	}
}

func TestHeadersOverTheLimitAreRefused(t *testing.T) {
	s := newSite(t, siteOptions{server: Options{MaxHeaderBytes: 2048}})
	c := s.Dial()
	// More than net/http adds to the limit for itself.
	_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nhost: x\r\nx-big: "+strings.Repeat("x", 20000)+"\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 431 {
		t.Errorf("status %d", resp.StatusCode)
	}
	const head = "GET /healthz HTTP/1.1\r\nhost: x\r\nx-big: \r\n\r\n"
	for size, want := range map[int]string{2048: "HTTP/1.1 200 ", 2049: "HTTP/1.1 431 ", 6000: "HTTP/1.1 431 "} {
		c := s.Dial()
		one := strings.Replace(head, "big: ", "big: "+strings.Repeat("x", size-len(head)), 1)
		s.send(c, one)
		in := bufio.NewReader(c)
		if line, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(line, want) {
			t.Errorf("a head of %d bytes: %q %v, want %q", size, line, err, want)
		}
	}
	c = s.Dial() // each request has the limit for itself
	s.send(c, strings.Repeat(strings.Replace(head, "big: ", "big: "+strings.Repeat("x", 1000), 1), 3))
	in := bufio.NewReader(c)
	for range 3 {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
			t.Errorf("%d %v", resp.StatusCode, err)
		}
	}
}

func TestGarbageIsRefused(t *testing.T) {
	s := newSite(t, siteOptions{server: Options{ReadTimeout: 100 * time.Millisecond}})
	for _, text := range []string{"\x16\x03\x01\x00\xa5\x01\x00\x00\r\n\r\n", "hello\r\n\r\n"} {
		c := s.Dial()
		s.send(c, text)
		b, err := io.ReadAll(c)
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			t.Errorf("%q: left open", text)
		}
		if strings.HasPrefix(string(b), "HTTP/1.1 200") {
			t.Errorf("%q: %q", text, b)
		}
	}
}

// A request line that no client of ours would send costs
// its sender an answer, and nobody else anything.
func TestStrangeTargetsGetAnAnswer(t *testing.T) {
	s := newSite(t, siteOptions{})
	for _, line := range []string{
		"GET ?a=b", "GET #a", "GET http://x?a=b", "GET http://x#a", "GET http://x", "GET //", "GET *", "POST *", "GET x/new",
		"CONNECT x:443", "CONNECT /new", "GET /%", "GET /new/%", "GET /new/", "GET ../new",
	} {
		c := s.Dial()
		s.send(c, line+" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		resp.Body.Close()
		if resp.StatusCode < 400 || resp.StatusCode >= 500 {
			t.Errorf("%s: %d", line, resp.StatusCode)
		}
	}
	if a := s.JSON("GET", "/healthz", ""); a.Status != 200 {
		t.Errorf("after all of them: %d", a.Status)
	}
	if strings.Contains(s.log.String(), "panic") {
		t.Errorf("something panicked: %s", s.log)
	}
}

// blocking is a route whose requests are at work until the test lets them go.
func blocking() (Route, chan struct{}, chan struct{}) {
	entered, release := make(chan struct{}, 100), make(chan struct{})
	return Route{Method: "POST", Path: "/block", Roles: Plain, Handle: func(_ *Request, w *Response) error {
		entered <- struct{}{}
		<-release
		w.JSON(200)
		w.Body = append(w.Body, `{}`...)
		return nil
	}}, entered, release
}

func TestLoadIsShed(t *testing.T) {
	route, entered, release := blocking()
	s := newSite(t, siteOptions{server: Options{MaxInFlight: 2}, routes: []Route{route}})
	done := make(chan httpdtest.Answer, 2)
	for range 2 {
		go func() {
			a, err := s.Try(context.Background(), "POST", "/block", "", "")
			if err != nil {
				t.Error(err)
			}
			done <- a
		}()
		<-entered
	}
	a := s.JSON("POST", "/new", "")
	if a.Status != 503 || !strings.Contains(a.Body, `"code":"overloaded"`) || a.Header.Get("retry-after") != "1" {
		t.Errorf("a third request: %d %v %s", a.Status, a.Header, a.Body)
	}
	if a := s.JSON("GET", "/healthz", ""); a.Status != 200 {
		t.Errorf("health under load: %d", a.Status)
	}
	close(release)
	for range 2 {
		if a := <-done; a.Status != 200 {
			t.Errorf("%d", a.Status)
		}
	}
	if a := s.JSON("POST", "/new", ""); a.Status != 201 {
		t.Errorf("after the load: %d", a.Status)
	}
}

// TestLargeBodiesAreLoad: a body that takes much memory counts from its announcement on, and is not
// read where too many requests are at work.
func TestLargeBodiesAreLoad(t *testing.T) {
	s := newSite(t, siteOptions{server: Options{MaxInFlight: 2, ReadTimeout: time.Hour}})
	const large = "POST /new HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
	stalled := []net.Conn{s.Dial(), s.Dial()}
	for _, c := range stalled {
		s.send(c, large)
	}
	s.Eventually("both count", func() bool { return s.server.load.busy.Load() == 2 })
	for what, head := range map[string]string{"announced": large, "chunked": "POST /new HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"} {
		c := s.Dial()
		s.send(c, head)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		resp.Body.Close()
		if resp.StatusCode != 503 || resp.Header.Get("retry-after") != "1" {
			t.Errorf("%s: %d %v", what, resp.StatusCode, resp.Header)
		}
	}
	s.send(stalled[0], strings.Repeat(" ", 1_000_000))
	if resp, err := http.ReadResponse(bufio.NewReader(stalled[0]), nil); err != nil || resp.StatusCode != 201 {
		t.Errorf("one that sends its body: %v, %v", resp, err)
	}
	stalled[1].Close()
	s.Eventually("none counts", func() bool { return s.server.load.busy.Load() == 0 })
}

// TestSmallBodiesTakeMemoryAsTheyArrive: an announcement takes little, what arrives is bounded, and
// slow callers leave room for the small bodies of others.
func TestSmallBodiesTakeMemoryAsTheyArrive(t *testing.T) {
	s := newSite(t, siteOptions{server: Options{MaxBodyBytes: freeBody, MaxBodyMemory: 4 * freeBody, ReadTimeout: time.Hour}})
	const head = "POST /new HTTP/1.1\r\nhost: x\r\ncontent-length: 65536\r\n\r\n"
	arriving := func(want int64) {
		t.Helper()
		s.Eventually("so much memory is taken", func() bool { return int64(s.server.bodies.bytes()) == want })
	}
	conns := []net.Conn{s.Dial(), s.Dial(), s.Dial()}
	for _, c := range conns {
		s.send(c, head)
	}
	arriving(3 * firstPiece)
	for _, c := range conns[:2] {
		s.send(c, strings.Repeat(" ", freeBody-1))
	}
	// The third one's announcement took the room for the last growth of one of them.
	refused := 0
	s.Eventually("one is refused", func() bool {
		for _, c := range conns[:2] {
			if err := c.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				continue
			}
			resp.Body.Close()
			if refused++; resp.StatusCode != 503 || resp.Header.Get("retry-after") != "1" {
				t.Errorf("%d %v", resp.StatusCode, resp.Header)
			}
		}
		return refused == 1
	})
	arriving(freeBody + firstPiece)
	if a := s.JSON("POST", "/new", strings.Repeat(" ", firstPiece)); a.Status != 201 {
		t.Errorf("a small body beside them: %d %s", a.Status, a.Body)
	}
	for _, c := range conns {
		c.Close()
	}
	arriving(0)
	if a := s.JSON("POST", "/new", strings.Repeat(" ", freeBody)); a.Status != 201 {
		t.Errorf("after them: %d %s", a.Status, a.Body)
	}
}

// TestHeldRequestsAreNotLoad: as many waits as there may be requests at work do
// not keep others out.
func TestHeldRequestsAreNotLoad(t *testing.T) {
	s := newSite(t, siteOptions{server: Options{MaxInFlight: 2}})
	done := make(chan httpdtest.Answer)
	for i := range 5 {
		go func() {
			a, err := s.Try(context.Background(), "POST", "/hold", "", "")
			if err != nil {
				t.Error(err)
			}
			done <- a
		}()
		s.Eventually("it waits", func() bool { return s.waiters() == i+1 })
	}
	if a := s.JSON("POST", "/new", ""); a.Status != 201 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	close(s.letGo)
	for range 5 {
		if a := <-done; a.Status != 200 {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
}

func TestConnectionsOverTheLimitAreRefused(t *testing.T) {
	s := newSite(t, siteOptions{server: Options{MaxConnections: 2}})
	open := []net.Conn{s.Dial(), s.Dial()}
	for _, c := range open {
		s.send(c, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
		if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
	}
	resp, err := http.ReadResponse(bufio.NewReader(s.Dial()), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != 503 || resp.Header.Get("retry-after") != "1" || !strings.Contains(string(b), `"code":"overloaded"`) ||
		resp.Header.Get(api.HeaderManager) != "test-1" {
		t.Errorf("a third connection: %d %v %s", resp.StatusCode, resp.Header, b)
	}
	open[0].Close()
	s.Eventually("the slot is free again", func() bool {
		c := s.Dial()
		defer c.Close()
		s.send(c, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		return err == nil && resp.StatusCode == 200
	})
}

func TestPanicsAreAnswered(t *testing.T) {
	s := newSite(t, siteOptions{routes: []Route{{Method: "GET", Path: "/panic", Roles: Plain, Handle: func(_ *Request, w *Response) error {
		w.Body = append(w.Body, "half an answer"...)
		panic("oops")
	}}}})
	if a := s.JSON("GET", "/panic", ""); a.Status != 500 || strings.Contains(a.Body, "oops") || strings.Contains(a.Body, "half") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if !strings.Contains(s.log.String(), "oops") {
		t.Error("the panic was not logged")
	}
	if a := s.JSON("GET", "/healthz", ""); a.Status != 200 {
		t.Errorf("%d", a.Status)
	}
	if n := s.server.load.busy.Load(); n != 0 {
		t.Errorf("%d requests still count as at work", n)
	}
}

func TestHeadHasNoBody(t *testing.T) {
	s := newSite(t, siteOptions{})
	a := s.Do("HEAD", "/healthz", "", "")
	if a.Status != 200 || a.Body != "" || a.Header.Get("content-length") != "15" {
		t.Errorf("%d %q %v", a.Status, a.Body, a.Header)
	}
}

// TestPipelinedBehindALongPoll: the watch for the client's end neither takes
// nor breaks the next request on the same connection.
func TestPipelinedBehindALongPoll(t *testing.T) {
	s := newSite(t, siteOptions{})
	c := s.Dial()
	s.send(c, holdRequest)
	s.Eventually("it waits", func() bool { return s.waiters() == 1 })
	s.send(c, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
	close(s.letGo)
	br := bufio.NewReader(c)
	for i, want := range []string{`"held"`, `"ok"`} {
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != 200 || !strings.Contains(string(b), want) {
			t.Errorf("answer %d: %d %s", i, resp.StatusCode, b)
		}
	}
}

// TestHalfClosedBehindALongPoll: a client that closes one direction while it waits is
// taken for gone, and gets an answer that says so if it still listens.
func TestHalfClosedBehindALongPoll(t *testing.T) {
	s := newSite(t, siteOptions{})
	c := s.Dial()
	s.send(c, holdRequest)
	s.Eventually("it waits", func() bool { return s.waiters() == 1 })
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if errors.Is(err, os.ErrDeadlineExceeded) || strings.Contains(string(b), "the store") {
		t.Errorf("it got %q, %v", b, err)
	}
	if len(b) > 0 && (!strings.HasPrefix(string(b), "HTTP/1.1 503 ") || !strings.Contains(string(b), "the client closed its side")) {
		t.Errorf("it got %q", b)
	}
}
