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

	"google.golang.org/grpc/test/bufconn"

	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
)

// inMemory gives a test a connection in memory to a server with the default limits. Both have the clock of a bubble.
func inMemory(t *testing.T, cfg *tls.Config, test func(t *testing.T, c net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		server, err := New(Options{Version: httpdtest.Version, Logger: new(httpdtest.Log).Logger()})
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
				time.Sleep(limits.IdleTimeout - time.Second)
				if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if resp.StatusCode != 200 {
					t.Errorf("status %d", resp.StatusCode)
				}
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
