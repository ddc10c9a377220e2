package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPeersWithCertificates: a data centre that only lets in those with a certificate and a token gives its outcomes to
// a peer that has both, and SIGHUP is enough for a new token.
func TestPeersWithCertificates(t *testing.T) {
	t.Parallel()
	cert, key := ownCertificate(t)
	dir := t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	const gate, peer, old = "gate-token-0123456789", "peer-token-0123456789", "old-token-0123456789"
	serve := func(args ...string) *served {
		s := serveBreakable(t, args...)
		t.Cleanup(func() {
			s.stop()
			if err := s.ended(t); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	b := serve("--origin", "dc2", "--tls-cert", cert, "--tls-key", key, "--client-ca", cert, "--auth-token-file", file("tokens", gate+" gate\n"+peer+" peer\n"))
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	secure := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}
	defer secure.CloseIdleConnections()
	plain := &http.Transport{}
	defer plain.CloseIdleConnections()
	call := func(by *http.Transport, method, url, token, body string) int {
		req, err := http.NewRequest(method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := by.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if s := call(secure, "POST", "https://"+b.addr+"/v1/ledger/commit", gate, `{"key":"k","token":"t","result":{"status":200}}`); s != 200 {
		t.Fatalf("commit: %d", s)
	}
	status := func(s *served) string {
		var out bytes.Buffer
		Run(context.Background(), Environment{Stdout: &out, Stderr: &out, Getenv: noEnv}, []string{"peers", "status", "--manager", "http://" + s.addr})
		return out.String()
	}
	start := func(args ...string) *served {
		return serve(append(args, "--origin", "dc1", "--peer", "dc2=https://"+b.addr)...)
	}
	token := file("peer-token", old)
	stranger := start("--peer-ca", cert, "--peer-token-file", token)
	waitFor(t, "a peer without a certificate is refused", func() bool { return strings.Contains(status(stranger), "certificate") })
	credulous := start("--peer-cert", cert, "--peer-key", key, "--peer-token-file", token)
	waitFor(t, "a peer of an unknown CA is not called", func() bool { return strings.Contains(status(credulous), "certificate") })
	a := start("--peer-ca", cert, "--peer-cert", cert, "--peer-key", key, "--peer-token-file", token)
	waitFor(t, "the old token is refused", func() bool { return strings.Contains(status(a), "401") })
	file("peer-token", peer)
	waitFor(t, "the new token brings the outcome", func() bool {
		a.sendHangup()
		return call(plain, "GET", "http://"+a.addr+"/v1/ledger/entries/k", "", "") == 200
	})
	file("peer-token", "a b c")
	waitFor(t, "a mistake is logged", func() bool {
		a.sendHangup()
		return strings.Contains(a.stderr.String(), "tokens for the peers not reloaded")
	})
	if strings.Contains(a.stderr.String(), peer) {
		t.Error("the log has the token")
	}
}
