package ui

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// oneConn is a listener with one connection, which has no buffer: what is written must be read.
type oneConn struct {
	conns chan net.Conn
	ended chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}
func (l *oneConn) Close() error   { close(l.ended); return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// TestViewersThatDoNotRead: a viewer that takes nothing keeps its connection and its slot for a bounded time, whatever it asked
// for and however the answer ends. The time of this test does not pass.
func TestViewersThatDoNotRead(t *testing.T) {
	for name, c := range map[string]struct {
		path string
		// until is what of the answer the viewer reads, and then is what happens after it.
		until string
		then  func(*UI)
	}{
		"live part":                      {"events/ledger", "", nil},
		"live part, after its beginning": {"events/ledger", "200 OK", nil},
		"live part, after an event":      {"events/ledger", "\n\n\r\n", nil},
		"live part whose manager ends":   {"events/ledger", "\n\n\r\n", (*UI).Close},
		"list of a hundred long entries": {"ledger?list=pending", "", nil},
		"list, after its beginning":      {"ledger?list=pending", "200 OK", nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := mem.New(mem.Options{})
				defer st.Close()
				l, err := ledger.New(st, ledger.Options{})
				if err != nil {
					t.Fatal(err)
				}
				for i := range rowLimit {
					r := api.ReserveRequest{Key: fmt.Sprintf("%0255d", i), Scope: strings.Repeat("s", 255), Token: "t"}
					if _, err := l.Reserve(t.Context(), &r, nil); err != nil {
						t.Fatal(err)
					}
				}
				q, err := jobs.New(st, jobs.Options{})
				if err != nil {
					t.Fatal(err)
				}
				defer q.Close()
				sched, err := schedules.New(st, q, schedules.Options{})
				if err != nil {
					t.Fatal(err)
				}
				u, err := New(Options{Version: "test", Ledger: l, Queue: q, Schedules: sched, Log: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				defer u.Close()
				closed := make(chan struct{})
				// As the manager's listener for operators.
				server := &http.Server{Handler: u, WriteTimeout: 30 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), ConnState: func(_ net.Conn, s http.ConnState) {
					if s == http.StateClosed {
						close(closed)
					}
				}}
				listener := &oneConn{conns: make(chan net.Conn, 1), ended: make(chan struct{})}
				go func() { _ = server.Serve(listener) }()
				defer server.Close()
				viewer, conn := net.Pipe()
				defer viewer.Close()
				listener.conns <- conn
				if _, err := io.WriteString(viewer, "GET /ui/"+c.path+" HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				var read strings.Builder
				for r := make([]byte, 1); !strings.HasSuffix(read.String(), c.until); {
					if _, err := viewer.Read(r); err != nil {
						t.Fatalf("%v after %s", err, &read)
					}
					read.Write(r)
				}
				if c.then != nil {
					c.then(u)
				}
				select {
				case <-closed:
				case <-time.After(time.Hour):
					t.Fatal("the connection stays")
				}
				if took := time.Since(begin); took > 2*viewerPatience {
					t.Errorf("the connection stays for %s", took)
				}
				if n := len(u.feeds.viewers); n > 0 {
					t.Errorf("%d viewers keep their slot", n)
				}
			})
		})
	}
}
