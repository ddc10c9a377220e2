package httpd

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/test/bufconn"

	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
)

// inMemory gives a test a connection in memory to a server with the default limits. Both have the clock of a bubble.
func inMemory(t *testing.T, cfg *tls.Config, test func(t *testing.T, c net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		server, err := New(Options{Version: httpdtest.Version, Logger: new(httpdtest.Log).Logger()},
			[]Route{{Method: "POST", Path: "/new", Roles: Plain, Handle: answerNew}})
		if err != nil {
			t.Fatal(err)
		}
		ln := bufconn.Listen(64 << 10)
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = server.Serve(ln, cfg) // its listener has an error of its own when it is closed
		}()
		defer func() {
			if err := server.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			<-served
		}()
		c, err := ln.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if cfg != nil {
			secure := tls.Client(c, &tls.Config{InsecureSkipVerify: true}) // the bubble's clock is before the certificate
			if err := secure.HandshakeContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			c = secure
		}
		test(t, c)
	})
}

// A proxy opens connections ahead of its requests. One that is closed just when its first request comes loses that request.
func TestNewConnectionsMayWaitForTheirFirstRequest(t *testing.T) {
	server, _ := tlsFor(t)
	limits := Options{}.WithDefaults()
	for name, cfg := range map[string]*tls.Config{"plain": nil, "TLS": server} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, cfg, func(t *testing.T, c net.Conn) {
				time.Sleep(limits.IdleTimeout - time.Second) // by the bubble's clock
				if _, err := io.WriteString(c, "POST /new HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(limits.ReadTimeout - time.Second) // until the body comes
				if _, err := io.WriteString(c, "{}"); err != nil {
					t.Fatal(err)
				}
				wantStatus(t, c, 201)
			})
		})
		for sent, after := range map[string]time.Duration{"": limits.IdleTimeout, "GET /hea": limits.ReadTimeout} {
			t.Run(name+", sends only "+sent, func(t *testing.T) {
				inMemory(t, cfg, func(t *testing.T, c net.Conn) {
					begun := time.Now()
					if _, err := io.WriteString(c, sent); err != nil {
						t.Fatal(err)
					}
					_, _ = io.ReadAll(c)
					if d := time.Since(begun); d != after {
						t.Errorf("was cut after %v, want %v", d, after)
					}
				})
			})
		}
	}
}

func wantStatus(t *testing.T, c net.Conn, status int) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != status {
		t.Errorf("status %d, want %d", resp.StatusCode, status)
	}
}

// The listener for operators has a server with times of its own.
func TestAdminListenerLeavesTimesToItsServer(t *testing.T) {
	s := newSite(t, siteOptions{})
	synctest.Test(t, func(t *testing.T) {
		ln := bufconn.Listen(64 << 10)
		admin := &http.Server{Handler: s.server.AdminHandler(prometheus.NewRegistry(), nil), ReadHeaderTimeout: 5 * time.Second}
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = admin.Serve(s.server.AdminListener(ln, true)) // as above
		}()
		defer func() {
			_ = admin.Close() // as above
			<-served
		}()
		dial := func() net.Conn {
			c, err := ln.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		c := dial()
		if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, c, 200)
		silent, begun := dial(), time.Now()
		_, _ = io.ReadAll(silent)
		if d := time.Since(begun); d != admin.ReadHeaderTimeout {
			t.Errorf("was cut after %v", d)
		}
	})
}
