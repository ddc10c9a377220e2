package cli

import (
	"crypto/tls"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The listener for operators has TLS: the session's cookie is for https only, and a new certificate needs no restart.
func TestAdminListenerHasTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key, tokens := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "tokens")
	selfSigned(t, cert, key, 1)
	const token = "operator-token-of-27-bytes."
	if err := os.WriteFile(tokens, []byte(token+" operator\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serveBreakable(t, "--admin", "127.0.0.1:0", "--admin-tls-cert", cert, "--admin-tls-key", key, "--auth-token-file", tokens)
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, path := range []string{"/healthz", "/metrics", "/ui/login"} {
		resp, err := client.Get("https://" + s.admin + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 || resp.ProtoMajor != 2 {
			t.Errorf("%s: %s %s", path, resp.Proto, resp.Status)
		}
	}
	resp, err := client.PostForm("https://"+s.admin+"/ui/login", url.Values{"token": {token}})
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if c := resp.Cookies(); resp.StatusCode != 303 || len(c) != 1 || !c[0].Secure || !c[0].HttpOnly {
		t.Errorf("login: %s, cookies %v", resp.Status, c)
	}
	if resp, err := http.Get("http://" + s.admin + "/ui/login"); err == nil {
		resp.Body.Close()
		if resp.StatusCode != 400 {
			t.Errorf("without TLS: %s", resp.Status)
		}
	}
	selfSigned(t, cert, key, 2)
	waitFor(t, "the new certificate is shown", func() bool {
		s.sendHangup()
		c, err := tls.Dial("tcp", s.admin, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return false
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64() == 2
	})
	s.stop()
	if err := s.ended(t); err != nil {
		t.Error(err)
	}
}

// TestAdminListenerWarns: tokens in clear text, and a page for everyone, are logged at the start.
func TestAdminListenerWarns(t *testing.T) {
	dir := t.TempDir()
	cert, key, tokens := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "tokens")
	selfSigned(t, cert, key, 1)
	if err := os.WriteFile(tokens, []byte("operator-token-of-27-bytes. operator\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const open, clear = "everyone who reaches --admin may do everything", "tokens of operators cross the network in clear text"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--admin", "127.0.0.1:0"}, ""},
		{[]string{"--admin", "127.0.0.1:0", "--auth-token-file", tokens}, ""},
		{[]string{"--admin", "0.0.0.0:0"}, open},
		{[]string{"--admin", "0.0.0.0:0", "--admin-tls-cert", cert, "--admin-tls-key", key}, open},
		{[]string{"--admin", "0.0.0.0:0", "--auth-token-file", tokens}, clear},
		{[]string{"--admin", "0.0.0.0:0", "--auth-token-file", tokens, "--admin-tls-cert", cert, "--admin-tls-key", key}, ""},
		{[]string{"--admin", "0.0.0.0:0", "--tls-cert", cert, "--tls-key", key, "--client-ca", cert}, ""}, // there are no tokens
	} {
		s := serveBreakable(t, c.args...)
		s.stop()
		if err := s.ended(t); err != nil {
			t.Error(err)
		}
		for _, warning := range []string{open, clear} {
			if got := strings.Contains(s.stderr.String(), warning); got != (warning == c.want) {
				t.Errorf("%v: %q: %v", c.args, warning, got)
			}
		}
	}
}
