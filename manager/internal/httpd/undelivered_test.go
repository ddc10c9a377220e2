package httpd

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// mutedListener has connections that take no answer while muted.
type mutedListener struct {
	net.Listener
	muted *atomic.Bool
}

type mutedConn struct {
	net.Conn
	muted *atomic.Bool
}

func (l *mutedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &mutedConn{c, l.muted}, err
}

func (c *mutedConn) Write(b []byte) (int, error) {
	if c.muted.Load() {
		return 0, io.ErrClosedPipe
	}
	return c.Conn.Write(b)
}

func TestHandlersLearnThatAnAnswerWasNotDelivered(t *testing.T) {
	var muted atomic.Bool
	undelivered := make(chan bool, 1)
	give := Route{Method: "POST", Path: "/give", Roles: Plain, Handle: func(_ *Request, w *Response) error {
		w.JSON(200)
		w.Body = append(w.Body, `{"given":true}`...)
		w.Undelivered = func() error { undelivered <- true; return io.ErrNoProgress }
		return nil
	}}
	s := newSite(t, siteOptions{routes: []Route{give}, listen: func(ln net.Listener) net.Listener { return &mutedListener{ln, &muted} }})
	for range 2 {
		if a := s.JSON("POST", "/give", `{}`); a.Status != 200 || a.Body != `{"given":true}` || a.Header.Get("Content-Length") == "" {
			t.Errorf("answered %d %v %s", a.Status, a.Header, a.Body)
		}
	}
	if len(undelivered) > 0 {
		t.Fatal("an answer that arrived counts as undelivered")
	}
	muted.Store(true)
	resp, err := http.Post(s.Base+"/give", "application/json", strings.NewReader(`{}`))
	if err == nil {
		_ = resp.Body.Close()
		t.Errorf("answered %d", resp.StatusCode)
	}
	<-undelivered
	s.Eventually("it is logged", func() bool { return strings.Contains(s.log.String(), "could not be taken back") })
}
