package envoydiff

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// peer is one end of a connection that the test holds. What has arrived is read only
// when the test looks, so that no goroutine lags behind.
type peer struct {
	conn   *net.TCPConn
	raw    []byte
	closed bool // by the other side
	broken bool // with a reset
}

// drain takes in what has arrived.
func (p *peer) drain(tb testing.TB) {
	if p.conn == nil || p.closed {
		return
	}
	rc, err := p.conn.SyscallConn()
	if err != nil {
		tb.Fatal(err)
	}
	buf := make([]byte, 256<<10)
	for !p.closed {
		n, readErr := 0, error(nil)
		err := rc.Read(func(fd uintptr) bool {
			n, readErr = syscall.Read(int(fd), buf)
			return true
		})
		switch {
		case err != nil:
			p.closed = true // closed by the test itself
		case readErr == syscall.EAGAIN || readErr == syscall.EINTR:
			return
		case readErr != nil:
			p.closed, p.broken = true, true
		case n == 0:
			p.closed = true
		default:
			p.raw = append(p.raw, buf[:n]...)
		}
	}
}

// send writes all at once. Bytes that the other side no longer reads are lost, and no error is reported.
func (p *peer) send(format string, args ...any) {
	if p.conn != nil {
		_, _ = fmt.Fprintf(p.conn, format, args...)
	}
}

func (p *peer) close() {
	if p.conn != nil {
		p.conn.Close()
	}
}

// wireMessage is an HTTP/1.1 message as far as it has come.
type wireMessage struct {
	first    string // request or status line
	headers  http.Header
	body     []byte
	trailers []string
	ended    bool
	rest     []byte
}

// parseMessage reads the first message of raw; nil when its headers are not complete.
func parseMessage(tb testing.TB, raw []byte, response bool) *wireMessage {
	head, rest, ok := bytes.Cut(raw, []byte("\r\n\r\n"))
	if !ok {
		return nil
	}
	lines := strings.Split(string(head), "\r\n")
	m := &wireMessage{first: lines[0], headers: http.Header{}, rest: rest}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ":")
		m.headers.Add(name, strings.TrimSpace(value))
	}
	switch {
	case m.headers.Get("transfer-encoding") == "chunked":
		m.chunks(tb)
	case m.headers.Get("content-length") != "":
		n, err := strconv.Atoi(m.headers.Get("content-length"))
		if err != nil {
			tb.Fatalf("content-length is %q", m.headers.Get("content-length"))
		}
		m.body = rest[:min(n, len(rest))]
		m.rest = rest[len(m.body):]
		m.ended = len(m.body) == n
	default:
		m.ended = !response || strings.Contains(m.first, " 204 ") || strings.Contains(m.first, " 304 ")
	}
	return m
}

func (m *wireMessage) chunks(tb testing.TB) {
	for {
		line, rest, ok := bytes.Cut(m.rest, []byte("\r\n"))
		if !ok {
			return
		}
		n, err := strconv.ParseInt(string(line), 16, 64)
		if err != nil {
			tb.Fatalf("chunk size is %q", line)
		}
		if n == 0 {
			text, _, ok := bytes.Cut(m.rest, []byte("\r\n\r\n"))
			if !ok {
				return
			}
			m.ended = true
			m.rest = m.rest[len(text)+4:]
			m.trailers = strings.Split(string(text), "\r\n")[1:]
			return
		}
		have := rest[:min(int(n), len(rest))]
		m.body = append(m.body, have...)
		if len(rest) < int(n)+2 {
			m.rest = nil
			return
		}
		m.rest = rest[n+2:]
	}
}

// acceptor collects the connections that come to a listener.
type acceptor struct {
	*net.TCPListener
	mu    sync.Mutex
	conns []*net.TCPConn
}

func newAcceptor(tb testing.TB) *acceptor {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	a := &acceptor{TCPListener: l.(*net.TCPListener)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := a.AcceptTCP()
			if err != nil {
				return
			}
			a.mu.Lock()
			a.conns = append(a.conns, c)
			a.mu.Unlock()
		}
	}()
	tb.Cleanup(func() { a.Close(); <-done; a.take() })
	return a
}

// take hands over what has come since the last time.
func (a *acceptor) take() []*net.TCPConn {
	a.mu.Lock()
	defer a.mu.Unlock()
	conns := a.conns
	a.conns = nil
	return conns
}

// show writes a body so that it can be compared: a long one by its length.
func show(b []byte) string {
	switch {
	case len(b) > 100:
		return fmt.Sprintf("%d bytes", len(b))
	case len(b) == 0:
		return ""
	}
	return strconv.Quote(string(b))
}

func join(parts ...string) string {
	var kept []string
	for _, p := range parts {
		if p != "" {
			kept = append(kept, p)
		}
	}
	return strings.Join(kept, " ")
}
