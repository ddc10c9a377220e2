package httpd

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// connDeadline is the deadline of one direction of a connection. Engines move
// deadlines several times per request, nearly always further away, and each
// move costs a change of a timer of the runtime. So the timer is left alone
// when a new deadline is later than the one that it is set for: a call that it then
// wakes too early finds out here, sets it anew and goes on. What the engine
// sees is the same.
type connDeadline struct {
	mu     sync.Mutex
	wanted time.Time // zero: none
	armed  time.Time // what the connection has; zero: none, or unknown
}

// set takes a new deadline over; arm is the connection's own method.
func (d *connDeadline) set(t time.Time, arm func(time.Time) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wanted = t
	if !d.armed.IsZero() && (t.IsZero() || !t.Before(d.armed)) {
		return nil
	}
	return d.arm(arm)
}

func (d *connDeadline) arm(arm func(time.Time) error) error {
	d.armed = d.wanted
	err := arm(d.wanted)
	if err != nil {
		d.armed = time.Time{}
	}
	return err
}

// early reports whether err only says that the timer fired too early, and sets
// it anew.
func (d *connDeadline) early(err error, arm func(time.Time) error) bool {
	if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.wanted.IsZero() && !time.Now().Before(d.wanted) {
		return false
	}
	return d.arm(arm) == nil
}

// forget says that the connection's deadline was changed behind our back.
func (d *connDeadline) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed = time.Time{}
}

// SetDeadline implements net.Conn.
func (c *limitConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *limitConn) SetReadDeadline(t time.Time) error {
	return c.read.set(t, c.Conn.SetReadDeadline)
}

// SetWriteDeadline implements net.Conn.
func (c *limitConn) SetWriteDeadline(t time.Time) error {
	return c.write.set(t, c.Conn.SetWriteDeadline)
}

// Read implements net.Conn.
func (c *limitConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if n > 0 || !c.read.early(err, c.Conn.SetReadDeadline) {
			return n, err
		}
	}
}

// Write implements net.Conn.
func (c *limitConn) Write(b []byte) (int, error) {
	written := 0
	for {
		n, err := c.Conn.Write(b[written:])
		written += n
		if err == nil {
			c.work.wrote()
		}
		if !c.write.early(err, c.Conn.SetWriteDeadline) {
			return written, err
		}
	}
}

var _ net.Conn = (*limitConn)(nil)
