package httpd

import (
	"context"
	"net"
	"syscall"
	"time"
)

// watchConn returns a context that ends with parent or when the other side of
// the connection closes it. The connection is only looked at, never read from:
// a pipelined request stays where it is. Stop must be called before anybody
// reads from the connection again.
func watchConn(parent context.Context, c net.Conn) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	limited, c := rawConn(c)
	sys, ok := c.(syscall.Conn)
	if !ok {
		return ctx, cancel
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return ctx, cancel
	}
	// A read deadline of the engine's may still stand.
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		cancel()
		return ctx, cancel
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The poller wakes the function for whatever arrives, and so for the
		// other side's end as well; a false return waits for the next time.
		left := false
		err := raw.Read(func(fd uintptr) bool {
			left = hungUp(fd)
			return left
		})
		if left || err != nil && !isTimeout(err) {
			cancel()
		}
	}()
	return ctx, func() {
		// A deadline in the past ends the goroutine's wait. The engine sets a
		// new one before it reads.
		_ = c.SetReadDeadline(time.Unix(1, 0))
		<-done
		_ = c.SetReadDeadline(time.Time{})
		if limited != nil {
			limited.read.forget()
		}
		cancel()
	}
}

// connLeft reports whether the other side has closed the connection.
func connLeft(c net.Conn) bool {
	_, c = rawConn(c)
	sys, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return true // closed
	}
	left := false
	err = raw.Control(func(fd uintptr) { left = hungUp(fd) })
	return left || err != nil
}

func isTimeout(err error) bool {
	t, ok := err.(interface{ Timeout() bool })
	return ok && t.Timeout()
}
