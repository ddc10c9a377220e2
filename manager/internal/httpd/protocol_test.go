package httpd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
)

// tlsFor is the configuration of a listener and of clients that trust it.
func tlsFor(t *testing.T) (listener, client *tls.Config) {
	t.Helper()
	ca := newAuthority(t)
	cert, err := NewCertificate(ca.issue(t, t.TempDir(), "server", x509.ExtKeyUsageServerAuth))
	if err != nil {
		t.Fatal(err)
	}
	if listener, err = TLSConfig(cert, ""); err != nil {
		t.Fatal(err)
	}
	client = &tls.Config{RootCAs: x509.NewCertPool()}
	client.RootCAs.AddCert(ca.cert)
	return listener, client
}

// TestSlowHandshakesAreCut: a client that connects to a TLS listener and says nothing,
// or stops in the middle, does not keep its slot.
func TestSlowHandshakesAreCut(t *testing.T) {
	listener, _ := tlsFor(t)
	for what, hello := range map[string]string{"nothing": "", "half a hello": "\x16\x03\x01\x00\xa5\x01\x00"} {
		t.Run(what, func(t *testing.T) {
			s := newSite(t, siteOptions{server: Options{ReadTimeout: 100 * time.Millisecond}, tls: listener})
			c := s.Dial()
			s.send(c, hello)
			b, err := io.ReadAll(c)
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				t.Fatalf("the connection was left open; it said %q", b)
			}
			s.Eventually("its slot is free", func() bool { return connections(s) == 0 })
		})
	}
}

// TestHTTP2: net/http speaks HTTP/2, with TLS and by prior knowledge; a long
// poll is held there as well, and beside it other calls on the connection.
func TestHTTP2(t *testing.T) {
	listener, client := tlsFor(t)
	for what, o := range map[string]siteOptions{"tls": {tls: listener, client: client}, "prior knowledge": {}} {
		t.Run(what, func(t *testing.T) {
			s := newSite(t, o)
			protocols := new(http.Protocols)
			protocols.SetHTTP2(true)
			protocols.SetUnencryptedHTTP2(true)
			transport := &http.Transport{TLSClientConfig: o.client, Protocols: protocols}
			t.Cleanup(transport.CloseIdleConnections)
			s.Client = &http.Client{Transport: transport}

			resp, err := s.Client.Get(s.Base + "/healthz")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.ProtoMajor != 2 {
				t.Fatalf("spoke %s", resp.Proto)
			}
			done := make(chan httpdtest.Answer, 1)
			go func() {
				a, err := s.Try(t.Context(), "POST", "/hold", "", "")
				if err != nil {
					t.Error(err)
				}
				done <- a
			}()
			s.Eventually("it waits", func() bool { return s.waiters() == 1 })
			if a := s.JSON("POST", "/new", ""); a.Status != 201 {
				t.Errorf("beside it: %d %s", a.Status, a.Body)
			}
			close(s.letGo)
			if a := <-done; a.Status != 200 || !strings.Contains(a.Body, `"held"`) {
				t.Errorf("%d %s", a.Status, a.Body)
			}
			if n := connections(s); n != 1 {
				t.Errorf("%d connections", n)
			}
			// The connection that is idle now does not hold up a shutdown.
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := s.server.Shutdown(ctx); err != nil {
				t.Errorf("shutdown: %v", err)
			}
		})
	}
}

// TestHTTP2NeedsGoodCiphers: HTTP/2 over TLS 1.2 is refused with the ciphers that RFC 9113 prohibits, as net/http does by
// itself; HTTP/1 takes them.
func TestHTTP2NeedsGoodCiphers(t *testing.T) {
	listener, client := tlsFor(t)
	for what, c := range map[string]struct {
		suite uint16
		max   uint16
		good  bool
	}{
		"TLS 1.3":       {max: tls.VersionTLS13, good: true},
		"TLS 1.2":       {max: tls.VersionTLS12, good: true},
		"ChaCha":        {max: tls.VersionTLS12, suite: tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, good: true},
		"CBC":           {max: tls.VersionTLS12, suite: tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA},
		"CBC, 256 bits": {max: tls.VersionTLS12, suite: tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA},
	} {
		t.Run(what, func(t *testing.T) {
			s := newSite(t, siteOptions{tls: listener, client: client})
			for _, two := range []bool{true, false} {
				cfg := client.Clone()
				cfg.MaxVersion = c.max
				if c.suite != 0 {
					cfg.CipherSuites = []uint16{c.suite}
				}
				protocols := new(http.Protocols)
				protocols.SetHTTP2(two)
				protocols.SetHTTP1(!two)
				transport := &http.Transport{TLSClientConfig: cfg, Protocols: protocols}
				t.Cleanup(transport.CloseIdleConnections)
				resp, err := (&http.Client{Transport: transport, Timeout: patience}).Get(s.Base + "/healthz")
				if err == nil {
					resp.Body.Close()
				}
				if good := c.good || !two; (err == nil) != good {
					t.Errorf("HTTP/2 %v: %v", two, err) // what the client says of a refusal depends on when it hears of it
				}
			}
			s.Eventually("their slots are free", func() bool { return c.good || connections(s) <= 1 })
		})
	}
}
