package proxy

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// lingerTime and lingerBytes bound how long the proxy reads from a connection that it closes while the client is
	// still sending. Without that the client may see a reset instead of the answer. The time is Envoy's
	// delayed_close_timeout.
	lingerTime  = time.Second
	lingerBytes = 1 << 20
)

// Listener bounds the number of client connections. It gives each one a number, a worker, a bound on every write, and a
// close that does not cut off the answer.
type Listener struct {
	net.Listener
	slots        chan struct{}
	done         chan struct{}
	closeOnce    sync.Once
	writeTimeout time.Duration
	workers      uint64
	next         atomic.Uint64
	hurry        atomic.Bool
}

// NewListener wraps l. At most maxConns connections are open at a time; more wait in the kernel's backlog. A write
// without progress for writeTimeout fails. Connections are assigned to the workers in turn and stay with them, as in
// Envoy.
func NewListener(l net.Listener, maxConns, workers int, writeTimeout time.Duration) *Listener {
	return &Listener{
		Listener:     l,
		slots:        make(chan struct{}, maxConns),
		done:         make(chan struct{}),
		writeTimeout: writeTimeout,
		workers:      uint64(workers),
	}
}

// Accept waits for a free slot and then for a connection.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	n := l.next.Add(1)
	return &conn{Conn: c, l: l, id: n, worker: int((n - 1) % l.workers)}, nil
}

// Close stops accepting; open connections stay.
func (l *Listener) Close() error {
	l.closeOnce.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// Hurry makes later closes of connections immediate, for a shutdown whose time is over.
func (l *Listener) Hurry() { l.hurry.Store(true) }

// conn is a client's connection.
type conn struct {
	net.Conn
	l      *Listener
	id     uint64
	worker int
	linger atomic.Bool
	closed sync.Once
}

// Write bounds each write, because a client that stopped reading would block it forever.
func (c *conn) Write(b []byte) (int, error) {
	if err := c.Conn.SetWriteDeadline(time.Now().Add(c.l.writeTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// CloseWrite lets net/http announce the end before it closes.
func (c *conn) CloseWrite() error {
	if t, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return t.CloseWrite()
	}
	return nil
}

// Close closes the connection. If the client may still be sending (linger), it first closes the sending side and
// discards what arrives for a moment. Closing a socket with unread data makes the kernel send a reset, which can
// overtake the answer.
func (c *conn) Close() error {
	var err error
	c.closed.Do(func() {
		if c.linger.Load() && !c.l.hurry.Load() && c.CloseWrite() == nil {
			if c.Conn.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
				// The outcome does not matter: end, error and deadline all mean "close now".
				_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
			}
		}
		err = c.Conn.Close()
		<-c.l.slots
	})
	return err
}

type connKey struct{}

// ConnContext is the http.Server hook that lets ServeHTTP find its connection.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if pc, ok := c.(*conn); ok {
		return context.WithValue(ctx, connKey{}, pc)
	}
	return ctx
}

func connOf(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey{}).(*conn)
	return c
}
