package httpd

import (
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
)

// FuzzWire: whatever a stranger writes to a connection ends in an answer or in the end of that connection, and never in a panic, which
// would be the end of the process.
func FuzzWire(f *testing.F) {
	for _, request := range []string{
		"POST /new HTTP/1.1\r\nhost: x\r\ncontent-length: 23\r\n\r\n{\"key\":\"k\",\"token\":\"t\"}",
		"POST /new HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"GET ?a=b HTTP/1.1\r\nhost: x\r\n\r\nGET /ne%77 HTTP/1.0\r\n\r\n",
		"CONNECT x:1 HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n",
	} {
		f.Add([]byte(request))
	}
	log := new(httpdtest.Log)
	s, err := New(Options{Version: "v", Logger: slog.New(slog.NewTextHandler(log, nil))}, []Route{{Method: "POST", Path: "/new", Roles: Plain, Handle: answerNew}})
	if err != nil {
		f.Fatal(err)
	}
	conns := make(pipes)
	served := make(chan error, 1)
	go func() { served <- s.Serve(conns, nil) }()
	f.Cleanup(func() {
		close(conns)
		<-served
	})
	f.Fuzz(func(t *testing.T, request []byte) {
		ours, theirs := net.Pipe()
		c := &pipe{Conn: theirs, closed: make(chan struct{})}
		conns <- c
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = io.Copy(io.Discard, ours)
		}()
		_, _ = ours.Write(request) // fails when the server has had enough
		ours.Close()
		<-c.closed
		<-read
		if log.String() != "" {
			t.Fatalf("%q: %s", request, log)
		}
	})
}

// pipes is a listener whose connections come from a test.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

// pipe reports when the server is done with it.
type pipe struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.Conn.Close()
}
