package httpd

import (
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// shortListener fails to accept that many times first.
type shortListener struct {
	net.Listener
	failures atomic.Int64
	tries    chan struct{}
}

func (l *shortListener) Accept() (net.Conn, error) {
	if l.failures.Add(-1) >= 0 {
		select {
		case l.tries <- struct{}{}:
		default:
		}
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

// TestShortageDoesNotEndTheServer: too many open files are a reason to wait, not
// to stop listening.
func TestShortageDoesNotEndTheServer(t *testing.T) {
	s := newSite(t, siteOptions{listen: func(ln net.Listener) net.Listener {
		l := &shortListener{Listener: ln}
		l.failures.Store(3)
		return l
	}})
	if a := s.JSON("GET", "/healthz", ""); a.Status != 200 {
		t.Errorf("%d", a.Status)
	}
	if n := strings.Count(s.log.String(), "no connection can be accepted for now"); n != 1 {
		t.Errorf("logged %d times: %s", n, s.log)
	}
}

// TestShutdownDuringAShortage: the wait for better times ends with the server.
func TestShutdownDuringAShortage(t *testing.T) {
	l := &shortListener{tries: make(chan struct{}, 1)}
	newSite(t, siteOptions{listen: func(ln net.Listener) net.Listener {
		l.Listener = ln
		l.failures.Store(1 << 40)
		return l
	}})
	<-l.tries
	l.failures.Store(0) // the next one is the listener's own, which is closed at the end
}
