package httpd

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/oncegate/oncegate/manager/api"
)

// limiter bounds the connections of a listener. One beyond the limit is closed,
// with a proper answer where that is possible without a handshake.
type limiter struct {
	max     int
	refusal []byte // the whole answer to a connection too many
	refused prometheus.Counter
	log     *slog.Logger
	done    chan struct{} // closed by close
	// A client has idle to begin its first request, and then head to send the head of it. 0: net/http alone counts.
	idle, head time.Duration
	headBytes  int // the longest head of a request

	mu     sync.Mutex
	ln     net.Listener
	plain  bool
	closed bool
	conns  map[*limitConn]struct{}
}

// listen wraps a listener. It fails when the limiter was closed already.
func (l *limiter) listen(ln net.Listener, cfg *tls.Config) (net.Listener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = ln.Close()
		return nil, net.ErrClosed
	}
	l.ln, l.plain, l.conns = ln, cfg == nil, make(map[*limitConn]struct{})
	return &limitListener{Listener: ln, limiter: l, tls: cfg}, nil
}

// close closes the listener and leaves connections open.
func (l *limiter) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		close(l.done)
	}
	l.closed = true
	if l.ln != nil {
		_ = l.ln.Close()
	}
}

// open returns the connections that are open right now.
func (l *limiter) open() []*limitConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.conns))
}

// closeConns closes all connections, also those with requests at work.
func (l *limiter) closeConns() {
	for _, c := range l.open() {
		_ = c.Close()
	}
}

func (l *limiter) admit(c net.Conn) *limitConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.conns) >= l.max {
		return nil
	}
	lc := &limitConn{Conn: c, limiter: l}
	lc.framing.most = l.headBytes
	if l.idle == 0 {
		lc.phase = connUsed
	}
	l.conns[lc] = struct{}{}
	return lc
}

// refuse answers without blocking: a new connection's send buffer is empty, so
// the few bytes fit. The client's request is not read; a client that is still
// sending may see a reset instead of the answer.
func (l *limiter) refuse(c net.Conn) {
	l.refused.Inc()
	if l.plain {
		_, _ = c.Write(l.refusal)
	}
	_ = c.Close()
}

type limitListener struct {
	net.Listener
	limiter *limiter
	tls     *tls.Config // nil without TLS
	logged  time.Time   // when a shortage was logged last; of the goroutine that accepts
}

// The wait after a shortage, which doubles from the first to the last.
const (
	firstShortage = 5 * time.Millisecond
	lastShortage  = time.Second
)

// Accept implements net.Listener. A shortage is waited out here: a crowd of
// connections must not end the server, and must not be logged once for each try.
func (l *limitListener) Accept() (net.Conn, error) {
	wait := time.Duration(0)
	for {
		c, err := l.Listener.Accept()
		if err != nil && passes(err) {
			if time.Since(l.logged) > time.Minute {
				l.logged = time.Now()
				l.limiter.log.Error("no connection can be accepted for now", "error", err.Error())
			}
			wait = min(max(2*wait, firstShortage), lastShortage)
			select {
			case <-time.After(wait):
			case <-l.limiter.done:
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		wait = 0
		boundUnsent(c)
		if lc := l.limiter.admit(c); lc != nil {
			if l.tls == nil {
				return lc, nil
			}
			lc.secure = tls.Server(lc, l.tls)
			return &secureConn{lc.secure, lc}, nil
		}
		l.limiter.refuse(c)
	}
}

// unsentBytes bounds what the kernel keeps of answers and has not sent. By itself it takes megabytes, so a client would seem
// to have taken an answer that it never gets.
const unsentBytes = 128 << 10

// boundUnsent bounds the kernel's part of a TCP connection. It does not bound what is under way.
func boundUnsent(c net.Conn) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentBytes)
		})
	}
}

// passes reports whether a failed accept may succeed later: resources were short, or the
// client had left.
func passes(err error) bool {
	return slices.ContainsFunc([]syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED},
		func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// limitConn frees its slot when it is closed.
type limitConn struct {
	net.Conn
	limiter *limiter
	work    connWork
	secure  *tls.Conn // nil without TLS
	phase   connPhase // of the goroutine that reads
	framing framing
	room    []byte // of readAheadBytes, for HTTP/2 without TLS
	ahead   []byte // the part of room that was not returned yet
}

// readAheadBytes is what one read of an HTTP/2 connection takes. net/http reads the head of each frame, and then the frame, with
// a system call each, and a gate's calls are small frames. TLS connections read ahead by themselves.
const readAheadBytes = 16 << 10

// Read implements net.Conn.
func (c *limitConn) Read(b []byte) (int, error) {
	if c.secure != nil {
		return c.Conn.Read(b)
	}
	return c.read(c.Conn, b)
}

// read reads from inner, which is this connection or the TLS connection on it, and follows the requests in it.
func (c *limitConn) read(inner net.Conn, b []byte) (n int, err error) {
	switch {
	case c.phase != connUsed:
		n, err = c.readFirst(inner, b)
	case c.secure == nil && c.framing.multiplexed() && (len(b) < readAheadBytes || len(c.ahead) > 0):
		return c.readAhead(inner, b)
	default:
		n, err = inner.Read(b)
	}
	c.framing.see(b[:n])
	return n, err
}

func (c *limitConn) readAhead(inner net.Conn, b []byte) (n int, err error) {
	if len(c.ahead) == 0 {
		if c.room == nil {
			c.room = make([]byte, readAheadBytes)
		}
		if n, err = inner.Read(c.room); n == 0 {
			return 0, err
		}
		c.ahead = c.room[:n]
	}
	n = copy(b, c.ahead)
	c.ahead = c.ahead[n:]
	return n, nil
}

// connPhase is how far a connection is on its way to its first request.
type connPhase uint8

const (
	connNew     connPhase = iota // no request was waited for
	connWaiting                  // for its first bytes
	connUsed
)

// readFirst reads the first bytes. For these a client has as long as between two requests, and never less than for a head:
// a proxy opens connections ahead of its requests, and would lose one that it sends just when its connection is closed.
// net/http would count the time for a head from the beginning of the connection. It counts the time for a whole request
// from where it has looked for the preface of HTTP/2, so after these bytes.
func (c *limitConn) readFirst(inner net.Conn, b []byte) (int, error) {
	if c.phase == connNew { // net/http tries again after a failure
		c.phase = connWaiting
		if err := inner.SetReadDeadline(time.Now().Add(max(c.limiter.idle, c.limiter.head))); err != nil {
			return 0, err
		}
	}
	n, err := inner.Read(b)
	if n > 0 {
		c.phase = connUsed
		if e := inner.SetReadDeadline(time.Now().Add(c.limiter.head)); err == nil {
			err = e
		}
	}
	return n, err
}

// Close implements net.Conn.
func (c *limitConn) Close() error {
	err := c.Conn.Close()
	c.limiter.mu.Lock()
	delete(c.limiter.conns, c)
	c.limiter.mu.Unlock()
	return err
}

// limited unwraps a connection down to the limitConn, nil if there is none.
func limited(c net.Conn) *limitConn {
	for {
		switch outer := c.(type) {
		case *limitConn:
			return outer
		case interface{ NetConn() net.Conn }: // *tls.Conn is one
			c = outer.NetConn()
		default:
			return nil
		}
	}
}

// refusal is the whole answer to a connection too many.
func refusal(version string) []byte {
	p := api.Problem{
		Status: 503, Code: api.CodeOverloaded, Title: "Overloaded", Detail: "too many connections are open",
	}
	body := p.AppendJSON(nil)
	head := "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: " + strconv.Itoa(RetrySoon) +
		"\r\n" + api.HeaderManager + ": " + version + "\r\ncontent-type: " + api.ContentTypeProblem +
		"\r\ncontent-length: " + strconv.Itoa(len(body)) + "\r\n\r\n"
	return append([]byte(head), body...)
}
