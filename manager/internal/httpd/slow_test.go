package httpd

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
)

// TestAnswersGoOnWhileTheyAreTaken: a client may be as slow as one piece of an answer within WriteTimeout, unless the
// answer itself has to be there earlier.
func TestAnswersGoOnWhileTheyAreTaken(t *testing.T) {
	const size, limit = 16 * pieceBytes, 10 * time.Second
	for name, c := range map[string]struct {
		read   int // bytes in each second
		within time.Duration
		whole  bool
	}{
		"slow":                      {read: pieceBytes / 8, whole: true},
		"too slow":                  {read: pieceBytes / 16},
		"slow, and soon worthless":  {read: pieceBytes / 8, within: time.Minute},
		"quick, and soon worthless": {read: pieceBytes, within: time.Minute, whole: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, undelivered := new(httpdtest.Log), 0
				s, err := New(Options{Version: "1", Logger: log.Logger(), WriteTimeout: limit}, []Route{{Method: "GET", Path: "/big", Roles: Plain, Handle: func(_ *Request, w *Response) error {
					w.JSON(200)
					w.Body = append(w.Body, make([]byte, size)...)
					w.Within = c.within
					w.Undelivered = func() error { undelivered++; return nil }
					return nil
				}}})
				if err != nil {
					t.Fatal(err)
				}
				s.SetReady("")
				ln := bufconn.Listen(1 << 10)
				served := make(chan struct{})
				go func() {
					defer close(served)
					_ = s.Serve(ln, nil) // its listener has an error of its own when it is closed
				}()
				client, err := ln.DialContext(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.WriteString(client, "GET /big HTTP/1.1\r\nhost: x\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				in := bufio.NewReaderSize(client, 16)
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				got := int64(0)
				for err == nil && got < size {
					var n int64
					n, err = io.CopyN(io.Discard, resp.Body, min(int64(c.read), size-got))
					got += n
					time.Sleep(time.Second)
				}
				if whole := got == size; whole != c.whole {
					t.Errorf("it got %d of %d bytes, %v", got, size, err)
				}
				_ = client.Close()
				synctest.Wait()
				if (undelivered == 0) != c.whole {
					t.Errorf("undelivered %d times", undelivered)
				}
				if want := "took only a part of an answer"; strings.Contains(log.String(), want) == c.whole {
					t.Errorf("logged %q", log)
				}
				if err := s.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
				<-served
			})
		})
	}
}

// TestAnswersDoNotWaitInTheKernel: what a connection took is on its way, up to a small part. So a client that leaves in
// the middle of an answer is noticed.
func TestAnswersDoNotWaitInTheKernel(t *testing.T) {
	const size = 2 << 20 // the kernel would take more
	undelivered := make(chan bool, 1)
	s := newSite(t, siteOptions{routes: []Route{{Method: "GET", Path: "/big", Roles: Plain, Handle: func(_ *Request, w *Response) error {
		w.JSON(200)
		w.Body = append(w.Body, make([]byte, size)...)
		w.Undelivered = func() error { undelivered <- true; return nil }
		return nil
	}}}})
	c := s.Dial().(*net.TCPConn)
	if err := c.SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	s.send(c, "GET /big HTTP/1.1\r\nhost: x\r\n\r\n")
	if _, err := io.ReadFull(c, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	select {
	case <-undelivered:
	case <-time.After(httpdtest.Patience):
		t.Fatal("an answer of which the client took a part counts as delivered")
	}
	s.Eventually("it is logged", func() bool { return strings.Contains(s.log.String(), "took only a part of an answer") })
}
