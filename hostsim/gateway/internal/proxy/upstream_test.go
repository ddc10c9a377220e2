package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// fakeFeed records what a call tells the stream.
type fakeFeed struct {
	mu       sync.Mutex
	selected string
	headers  hostsim.Headers
	body     strings.Builder
	trailers hostsim.Headers
	ended    bool
	failure  hostsim.UpstreamFailure
	detail   string
}

func (f *fakeFeed) UpstreamSelected(a string) { f.mu.Lock(); f.selected = a; f.mu.Unlock() }
func (f *fakeFeed) ResponseHeaders(h hostsim.Headers, end bool) {
	f.mu.Lock()
	f.headers, f.ended = h, end
	f.mu.Unlock()
}
func (f *fakeFeed) ResponseData(b []byte, end bool) {
	f.mu.Lock()
	f.body.Write(b)
	f.ended = end
	f.mu.Unlock()
}
func (f *fakeFeed) ResponseTrailers(h hostsim.Headers) {
	f.mu.Lock()
	f.trailers, f.ended = h, true
	f.mu.Unlock()
}
func (f *fakeFeed) UpstreamFailed(k hostsim.UpstreamFailure, detail string) {
	f.mu.Lock()
	f.failure, f.detail = k, detail
	f.mu.Unlock()
}
func (f *fakeFeed) AwaitResponse(context.Context) error { return nil }

// message is a request as the filter lets it go.
type message struct {
	name     string
	headers  hostsim.Headers
	body     []string // nil: the headers end the request
	trailers hostsim.Headers
}

func (m message) send(q *queue) {
	for i, b := range m.body {
		q.put(event{kind: eventData, data: []byte(b), end: i == len(m.body)-1 && m.trailers == nil})
	}
	if m.trailers != nil {
		q.put(event{kind: eventTrailers, headers: m.trailers, end: true})
	}
}

func testUpstream(t *testing.T, addr string, timeout time.Duration) *upstream {
	u := newUpstream(addr, 10*time.Second, timeout, 16, 16, 64<<10, func(string) {})
	t.Cleanup(u.close)
	return u
}

// do plays one call to its end.
func do(t *testing.T, u *upstream, m message) *fakeFeed {
	t.Helper()
	f := new(fakeFeed)
	ctx, cancel := context.WithCancelCause(t.Context())
	c := &upstreamCall{u: u, feed: f, q: newQueue(), ctx: ctx, cancel: cancel,
		awaitRoom: func(context.Context) error { return nil }}
	m.send(c.q)
	c.run(m.headers, m.body == nil && m.trailers == nil)
	return f
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

var requests = []message{
	{name: "POST without body", headers: hostsim.H(":method", "POST", ":path", "/p", ":authority", "a", "idempotency-key", "k")},
	{name: "POST length 0", headers: hostsim.H(":method", "POST", ":path", "/p", ":authority", "a", "idempotency-key", "k", "content-length", "0")},
	{name: "POST sized", headers: hostsim.H(":method", "POST", ":path", "/p", ":authority", "a", "idempotency-key", "k", "content-length", "5"), body: []string{"he", "llo"}},
	{name: "POST chunked", headers: hostsim.H(":method", "POST", ":path", "/p", ":authority", "a", "x-idempotency-key", "k"), body: []string{"hello", ""}},
	{name: "GET", headers: hostsim.H(":method", "GET", ":path", "/p", ":authority", "a")},
	{name: "HEAD", headers: hostsim.H(":method", "HEAD", ":path", "/p", ":authority", "a")},
	{name: "OPTIONS", headers: hostsim.H(":method", "OPTIONS", ":path", "*", ":authority", "a")},
	{name: "TRACE", headers: hostsim.H(":method", "TRACE", ":path", "/p", ":authority", "a")},
	{name: "DELETE", headers: hostsim.H(":method", "DELETE", ":path", "/p", ":authority", "a", "idempotency-key", "k")},
}

// A kept connection that upstream closes under a request is where HTTP clients
// like to send again. Here upstream reads the second request of each connection
// and then closes, politely or with a reset, or closes at its first byte.
func TestRequestIsNeverSentTwice(t *testing.T) {
	ends := map[string]func(c net.Conn, br *bufio.Reader) bool{
		"read then close": func(_ net.Conn, br *bufio.Reader) bool { return readWhole(br) },
		"read then reset": func(c net.Conn, br *bufio.Reader) bool {
			ok := readWhole(br)
			_ = c.(*net.TCPConn).SetLinger(0)
			return ok
		},
		"first byte then close": func(_ net.Conn, br *bufio.Reader) bool {
			_, err := br.ReadByte()
			return err == nil
		},
	}
	for end, second := range ends {
		for _, m := range requests {
			t.Run(end+"/"+m.name, func(t *testing.T) {
				l := listen(t)
				var mu sync.Mutex
				seen := 0
				count := func() { mu.Lock(); seen++; mu.Unlock() }
				go func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						go func() {
							defer c.Close()
							br := bufio.NewReader(c)
							if !readWhole(br) {
								return
							}
							count()
							io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
							if second(c, br) {
								count()
							}
						}()
					}
				}()
				u := testUpstream(t, l.Addr().String(), 0)
				if f := do(t, u, m); f.headers.Get(":status") != "200" || !f.ended {
					t.Fatalf("first request: status %q, failure %v %q", f.headers.Get(":status"), f.failure, f.detail)
				}
				f := do(t, u, m)
				if f.failure != hostsim.UpstreamDisconnected || f.headers != nil {
					t.Errorf("second request: failure %v, headers %v; want UpstreamDisconnected", f.failure, f.headers)
				}
				mu.Lock()
				defer mu.Unlock()
				if seen != 2 {
					t.Errorf("upstream saw %d requests, want 2", seen)
				}
			})
		}
	}
}

// readWhole reads one request with its body.
func readWhole(br *bufio.Reader) bool {
	req, err := http.ReadRequest(br)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

// What goes over the wire is what the filter let go: names in lower case, the
// length that was given, the path untouched.
func TestRequestOnTheWire(t *testing.T) {
	for _, tc := range []struct {
		m    message
		want string
	}{
		{requests[0], "POST /p HTTP/1.1\r\nHost: a\r\nidempotency-key: k\r\n\r\n"},
		{requests[1], "POST /p HTTP/1.1\r\nHost: a\r\ncontent-length: 0\r\nidempotency-key: k\r\n\r\n"},
		{requests[2], "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nidempotency-key: k\r\n\r\nhello"},
		{requests[3], "POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nx-idempotency-key: k\r\n\r\n5\r\nhello\r\n0\r\n\r\n"},
		{requests[4], "GET /p HTTP/1.1\r\nHost: a\r\n\r\n"},
		{requests[6], "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"},
		{message{
			name: "odd paths stay",
			headers: hostsim.H(":method", "GET", ":path", `/a//b/../c%2f%zz?x=%&y="`, ":authority", "h:1",
				"user-agent", "me", "x", "1", "x", "2", "connection", "keep-alive", "transfer-encoding", "chunked"),
		}, "GET /a//b/../c%2f%zz?x=%&y=\" HTTP/1.1\r\nHost: h:1\r\nUser-Agent: me\r\nx: 1\r\nx: 2\r\n\r\n"},
		{message{
			name:    "path with two slashes",
			headers: hostsim.H(":method", "GET", ":path", "//b/%2F?q", ":authority", "a"),
		}, "GET //b/%2F?q HTTP/1.1\r\nHost: a\r\n\r\n"},
		{message{
			name:    "length 0 that ends later",
			headers: hostsim.H(":method", "PUT", ":path", "/", ":authority", "a", "content-length", "0"),
			body:    []string{""},
		}, "PUT / HTTP/1.1\r\nHost: a\r\ncontent-length: 0\r\n\r\n"},
		{message{
			name:     "trailers",
			headers:  hostsim.H(":method", "POST", ":path", "/", ":authority", "a", "te", "trailers", "trailer", "x-sum"),
			body:     []string{"ab"},
			trailers: hostsim.H("x-sum", "7"),
		}, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nte: trailers\r\n\r\n2\r\nab\r\n0\r\nX-Sum: 7\r\n\r\n"},
		{message{
			name:    "GET with a body",
			headers: hostsim.H(":method", "GET", ":path", "/", ":authority", "a"),
			body:    []string{"q", ""},
		}, "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nq\r\n0\r\n\r\n"},
	} {
		t.Run(tc.m.name, func(t *testing.T) {
			l := listen(t)
			got := make(chan string, 1)
			go func() {
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				var raw strings.Builder
				br := bufio.NewReader(io.TeeReader(c, &raw))
				readWhole(br)
				io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
				got <- raw.String()
			}()
			f := do(t, testUpstream(t, l.Addr().String(), 0), tc.m)
			if f.headers.Get(":status") != "204" || !f.ended || f.selected != l.Addr().String() {
				t.Fatalf("failure %v %q, headers %v, upstream %q", f.failure, f.detail, f.headers, f.selected)
			}
			if raw := <-got; raw != tc.want {
				t.Errorf("on the wire:\n%q\nwant:\n%q", raw, tc.want)
			}
		})
	}
}

// answering serves every request on every connection with one raw answer, then
// closes the connection when hangUp.
func answering(t *testing.T, raw string, hangUp bool) string {
	l := listen(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				br := bufio.NewReader(c)
				for readWhole(br) {
					if _, err := io.WriteString(c, raw); err != nil || hangUp {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

func TestAnswersAreReadAsSent(t *testing.T) {
	for _, tc := range []struct {
		name, raw string
		hangUp    bool
		headers   hostsim.Headers
		body      string
		trailers  hostsim.Headers
		failure   hostsim.UpstreamFailure
	}{
		{
			name:    "sized",
			raw:     "HTTP/1.1 201 Created\r\nB: 2\r\nA: 1\r\nA: x\r\nContent-Length: 2\r\n\r\nhi",
			headers: hostsim.H(":status", "201", "a", "1", "a", "x", "b", "2", "content-length", "2"),
			body:    "hi",
		},
		{
			name:     "chunked with trailers",
			raw:      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 9\r\n\r\n",
			headers:  hostsim.H(":status", "200", "transfer-encoding", "chunked", "trailer", "x-sum"),
			body:     "hi",
			trailers: hostsim.H("x-sum", "9"),
		},
		{
			name:    "until close",
			raw:     "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it",
			hangUp:  true,
			headers: hostsim.H(":status", "200"),
			body:    "all of it",
		},
		{
			name:    "informational answers are dropped",
			raw:     "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
			headers: hostsim.H(":status", "200", "content-length", "0"),
		},
		{name: "nothing", hangUp: true, failure: hostsim.UpstreamDisconnected},
		{name: "garbage", raw: "SSH-2.0-x\r\n\r\n", hangUp: true, failure: hostsim.UpstreamDisconnected},
		{name: "unasked upgrade", raw: "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", failure: hostsim.UpstreamDisconnected},
		{name: "huge headers", raw: "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 128<<10) + "\r\n\r\n", hangUp: true, failure: hostsim.UpstreamDisconnected},
		{
			name:    "cut body",
			raw:     "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
			hangUp:  true,
			headers: hostsim.H(":status", "200", "content-length", "9"),
			body:    "half",
			failure: hostsim.UpstreamDisconnected,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := do(t, testUpstream(t, answering(t, tc.raw, tc.hangUp), 0), requests[0])
			if f.failure != tc.failure {
				t.Errorf("failure %v (%q), want %v", f.failure, f.detail, tc.failure)
			}
			f.headers.Del("x-envoy-upstream-service-time")
			if !equalHeaders(f.headers, tc.headers) {
				t.Errorf("headers %v, want %v", f.headers, tc.headers)
			}
			if f.body.String() != tc.body || !equalHeaders(f.trailers, tc.trailers) {
				t.Errorf("body %q trailers %v, want %q %v", f.body.String(), f.trailers, tc.body, tc.trailers)
			}
			if f.ended != (tc.failure == 0) {
				t.Errorf("ended: %v", f.ended)
			}
		})
	}
}

func equalHeaders(a, b hostsim.Headers) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestConnectFailuresAreTold(t *testing.T) {
	if f := do(t, testUpstream(t, hostsimtest.RefusingAddress(t), 0), requests[0]); f.failure != hostsim.UpstreamConnectFailed || f.detail != "connection refused" {
		t.Errorf("refused: failure %v %q", f.failure, f.detail)
	}
	if f := do(t, testUpstream(t, "no..such.host:80", 0), requests[0]); f.failure != hostsim.UpstreamNoHealthy {
		t.Errorf("unknown name: failure %v %q", f.failure, f.detail)
	}
}

// The route timeout starts with the end of the request and covers the whole answer.
func TestRouteTimeoutStartsAtTheEndOfTheRequest(t *testing.T) {
	l := listen(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close() // says nothing until the test ends
		}
	}()
	u := testUpstream(t, l.Addr().String(), 20*time.Millisecond)
	for _, m := range []message{requests[0], requests[2]} {
		if f := do(t, u, m); f.failure != hostsim.UpstreamTimedOut {
			t.Errorf("%s: failure %v %q, want a timeout", m.name, f.failure, f.detail)
		}
	}
	half := answering(t, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", false)
	for d := 20 * time.Millisecond; ; d *= 2 {
		f := do(t, testUpstream(t, half, d), requests[0])
		if f.failure == hostsim.UpstreamTimedOut && f.body.Len() == 0 && d < time.Minute {
			continue // the machine was busy: the answer had not begun
		}
		if f.failure != hostsim.UpstreamTimedOut || f.body.String() != "half" {
			t.Errorf("mid-answer: failure %v %q after %q, want a timeout", f.failure, f.detail, f.body.String())
		}
		break
	}
}

// A call that nobody waits for any more says nothing to the stream.
func TestCancelledCallIsSilent(t *testing.T) {
	l := listen(t)
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
	}()
	f := new(fakeFeed)
	ctx, cancel := context.WithCancelCause(t.Context())
	c := &upstreamCall{u: testUpstream(t, l.Addr().String(), 0), feed: f, q: newQueue(), ctx: ctx, cancel: cancel,
		awaitRoom: func(context.Context) error { return nil }}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.run(requests[2].headers, false)
	}()
	conn := <-accepted
	defer conn.Close()
	br := bufio.NewReader(conn)
	if _, err := http.ReadRequest(br); err != nil { // the headers are there, the body is not
		t.Fatal(err)
	}
	cancel(errUnwanted)
	<-done
	if f.failure != 0 || f.headers != nil {
		t.Errorf("the stream was told of failure %v, headers %v", f.failure, f.headers)
	}
	// Upstream notices: its connection ends.
	if _, err := io.Copy(io.Discard, br); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}

func TestBreakerLimitsRequests(t *testing.T) {
	l := listen(t)
	u := newUpstream(l.Addr().String(), 10*time.Second, 0, 1, 1, 64<<10, func(string) {})
	t.Cleanup(u.close)
	first, firstDone := new(fakeFeed), make(chan struct{})
	start := func(ctx context.Context, f *fakeFeed, done chan struct{}) {
		ctx, cancel := context.WithCancelCause(ctx)
		c := &upstreamCall{u: u, feed: f, q: newQueue(), ctx: ctx, cancel: cancel,
			awaitRoom: func(context.Context) error { return nil }}
		go func() {
			defer close(done)
			c.run(requests[0].headers, true)
		}()
	}
	start(t.Context(), first, firstDone)
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	l.Close() // there is no second connection
	br := bufio.NewReader(conn)
	answerNext := func() {
		if _, err := http.ReadRequest(br); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	cancelled, cancelledDone := new(fakeFeed), make(chan struct{})
	start(ctx, cancelled, cancelledDone)
	for len(u.slots) != 2 { // until the second one waits
		runtime.Gosched()
	}
	if f := do(t, u, requests[0]); f.failure != hostsim.UpstreamOverflow {
		t.Errorf("third call: failure %v, want an overflow", f.failure)
	}
	cancel(errUnwanted)
	<-cancelledDone
	if cancelled.failure != 0 || cancelled.headers != nil {
		t.Errorf("the cancelled call was told of failure %v, headers %v", cancelled.failure, cancelled.headers)
	}

	next, nextDone := new(fakeFeed), make(chan struct{})
	start(t.Context(), next, nextDone)
	answerNext()
	<-firstDone
	answerNext()
	<-nextDone
	for _, f := range []*fakeFeed{first, next} {
		if f.headers.Get(":status") != "200" {
			t.Errorf("a call within the limits got failure %v, headers %v", f.failure, f.headers)
		}
	}
	if n := len(u.slots); n != 0 {
		t.Errorf("%d slots are taken at the end", n)
	}
}
