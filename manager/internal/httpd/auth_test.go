package httpd

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
)

// certificates for TLS tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

// issue writes a certificate and its key to files.
func (a *authority) issue(t *testing.T, dir, name string, usage x509.ExtKeyUsage) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &k.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	kder, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	writeFile(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	writeFile(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: kder})))
	return cert, key
}

func (a *authority) file(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	writeFile(t, path, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})))
	return path
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTokensAreReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	writeFile(t, file, "# the old one leaves soon\nold-token-of-20-bytes\n\nnew-token-of-20-bytes\n")
	auth, err := NewAuth(file, false)
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, siteOptions{server: Options{Auth: auth}})
	for header, want := range map[string]int{
		"": 401, "Bearer": 401, "Bearer ": 401, "Bearer wrong": 401, "Basic old-token-of-20-bytes": 401, "old-token-of-20-bytes": 401,
		"Bearer old-token-of-20-bytesx": 401, "Bearer # the old one leaves soon": 401,
		"Bearer old-token-of-20-bytes": 201, "bearer new-token-of-20-bytes": 201,
	} {
		a := s.Do("POST", "/new", "", "", "authorization", header)
		if a.Status != want {
			t.Errorf("%q: %d, want %d", header, a.Status, want)
		}
		if want == 401 && a.Header.Get("www-authenticate") != "Bearer" {
			t.Errorf("%q: 401 without www-authenticate", header)
		}
	}
	if a := s.JSON("GET", "/nowhere", ""); a.Status != 401 {
		t.Errorf("a stranger learns which paths there are: %d", a.Status)
	}
	for _, open := range []string{"/healthz", "/readyz"} {
		if a := s.JSON("GET", open, ""); a.Status != 200 {
			t.Errorf("%s: %d", open, a.Status)
		}
	}
	if strings.Contains(s.log.String(), "token-of-20") {
		t.Error("a token was logged")
	}
}

// A gate's token cannot take away the protection of a key,
// an administrator's can, and so can everybody where no token is asked for.
func TestOnlyAdministratorsMayTakeProtectionAway(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "tokens")
	writeFile(t, file, "gates-token-of-20-bytes\nadmins-token-of-20-bytes \tadmin\nother-token-of-20-bytes\n")
	auth, err := NewAuth(file, false)
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, siteOptions{server: Options{Auth: auth}})
	as := func(token, method string) httpdtest.Answer {
		return s.Do(method, "/new", "", "", "authorization", "Bearer "+token)
	}
	const gate, admin = "gates-token-of-20-bytes", "admins-token-of-20-bytes"
	for _, token := range []string{gate, admin} {
		if a := as(token, "POST"); a.Status != 201 {
			t.Fatalf("an ordinary call by %s: %d %s", token, a.Status, a.Body)
		}
	}
	for _, token := range []string{gate, "other-token-of-20-bytes"} {
		if a := as(token, "DELETE"); a.Status != 403 || !strings.Contains(a.Body, `"code":"forbidden"`) {
			t.Errorf("delete by %s: %d %s", token, a.Status, a.Body)
		}
	}
	for _, token := range []string{"", "admin", admin + " admin", gate + " admin", admin + "admin"} {
		if a := as(token, "DELETE"); a.Status != 401 {
			t.Errorf("delete by %q: %d %s", token, a.Status, a.Body)
		}
	}
	if a := as(admin, "DELETE"); a.Status != 201 {
		t.Errorf("delete by the administrator: %d %s", a.Status, a.Body)
	}
	// Rights are taken and given without an interruption.
	lowered := filepath.Join(dir, "lowered")
	writeFile(t, lowered, gate+" admin\n"+admin+"\n")
	if err := auth.Load(lowered); err != nil {
		t.Fatal(err)
	}
	if a := as(admin, "DELETE"); a.Status != 403 {
		t.Errorf("delete by a former administrator: %d %s", a.Status, a.Body)
	}
	if a := as(gate, "DELETE"); a.Status != 201 {
		t.Errorf("delete by a new administrator: %d %s", a.Status, a.Body)
	}
	if strings.Contains(s.log.String(), "token-of-20") {
		t.Error("a token was logged")
	}
	unprotected := newSite(t, siteOptions{})
	if a := unprotected.JSON("DELETE", "/new", ""); a.Status != 201 {
		t.Errorf("delete where no token is asked for: %d %s", a.Status, a.Body)
	}
}

// TestStrangersSendNoLargeBodies: who may not call learns so from the head of
// the request, before the server makes room for what it announces.
func TestStrangersSendNoLargeBodies(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	writeFile(t, file, "token-of-20-bytes---\nworkers-token-of-20--- worker\n")
	auth, err := NewAuth(file, false)
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, siteOptions{server: Options{Auth: auth, ReadTimeout: time.Hour}})
	const worker = "authorization: Bearer workers-token-of-20---\r\n"
	for what, c := range map[string]struct {
		framing string
		status  int
	}{
		"no right, announced": {worker + "content-length: 1000000\r\n\r\n", 403},
		"no right, chunked":   {worker + "transfer-encoding: chunked\r\n\r\nf4240\r\n", 403},
		"announced":           {"content-length: 1000000\r\n\r\n", 401},
		"too large":           {"content-length: 100000000\r\n\r\n", 401},
		"chunked":             {"transfer-encoding: chunked\r\n\r\nf4240\r\n", 401},
		"small chunks":        {"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n\r\n", 401},
	} {
		framing, want := c.framing, c.status
		if want == 401 {
			framing = "authorization: Bearer wrong\r\n" + framing
		}
		c := s.Dial()
		s.send(c, "POST /new HTTP/1.1\r\nhost: x\r\n"+framing)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		resp.Body.Close()
		if resp.StatusCode != want || (want == 401) != (resp.Header.Get("www-authenticate") == "Bearer") || resp.Header.Get(api.HeaderManager) != "test-1" {
			t.Errorf("%s: %d %v", what, resp.StatusCode, resp.Header)
		}
	}
	// Callers with a token send what they like, within the limit.
	body := strings.Repeat(" ", 500_000) + `{"key":"k","token":"t"}`
	for _, framing := range []string{
		fmt.Sprintf("content-length: %d\r\n\r\n%s", len(body), body),
		fmt.Sprintf("transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body),
	} {
		c := s.Dial()
		s.send(c, "POST /new HTTP/1.1\r\nhost: x\r\nauthorization: Bearer token-of-20-bytes---\r\n"+framing)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 201 {
			t.Errorf("with the token: %d", resp.StatusCode)
		}
	}
}

func TestTokenFilesAreChecked(t *testing.T) {
	dir := t.TempDir()
	if _, err := NewAuth(filepath.Join(dir, "none"), false); err == nil {
		t.Error("a missing file was accepted")
	}
	file := filepath.Join(dir, "tokens")
	for what, content := range map[string]string{
		"empty": "", "only comments": "# nothing\n", "short": "secret7\n", "spaces": "one two three four five\n",
		"other word": "a-token-of-20-bytes-- reader\n", "two words": "a-token-of-20-bytes-- admin two\n",
		"no function": "a-token-of-20-bytes-two worker:\n", "bad function": "a-token-of-20-bytes-two worker:a/b\n", "comma": "a-token-of-20-bytes-two gate,worker\n",
		"comment": "a-token-of-20-bytes-two gate # gate two\n", "long function": "a-token-of-20-bytes-two worker:" + strings.Repeat("f", 129) + "\n",
		"functions": "a-token-of-20-bytes-two" + manyFunctions(101) + "\n", "two tokens": "a-token-of-20-bytes-two another-token-of-20-two\n",
		"other functions": "a-token-of-20-bytes-two worker:a\na-token-of-20-bytes-two worker:b\n", "function of another role": "a-token-of-20-bytes-two gate:f\n",
		"word first": "admin a-token-of-20-bytes-two\n", "capitals": "a-token-of-20-bytes-two Admin\n", "short admin": "secret7 admin\n",
		"both": "a-token-of-20-bytes-two\na-token-of-20-bytes-two admin\n",
		"many": strings.Repeat("a-token-of-20-bytes-\n", 65),
		"long": strings.Repeat("x", 5000),
	} {
		writeFile(t, file, content)
		_, err := NewAuth(file, false)
		if err == nil {
			t.Errorf("%s: accepted", what)
		} else if strings.Contains(err.Error(), "secret7") || strings.Contains(err.Error(), "two") {
			t.Errorf("%s: the error shows a token: %v", what, err)
		}
	}
	writeFile(t, file, "first-token-of-20-bytes\n")
	a, err := NewAuth(file, false)
	if err != nil {
		t.Fatal(err)
	}
	before := a.tokens.Load()
	writeFile(t, file, "")
	if err := a.Load(file); err == nil || a.tokens.Load() != before {
		t.Errorf("a bad file replaced the tokens: %v", err)
	}
	if a, err := NewAuth("", false); a != nil || err != nil {
		t.Errorf("nothing asked for: %v %v", a, err)
	}
}

func TestMutualTLS(t *testing.T) {
	dir := t.TempDir()
	ca, other := newAuthority(t), newAuthority(t)
	serverCert, serverKey := ca.issue(t, dir, "server", x509.ExtKeyUsageServerAuth)
	goodCert, goodKey := ca.issue(t, dir, "good", x509.ExtKeyUsageClientAuth)
	badCert, badKey := other.issue(t, dir, "bad", x509.ExtKeyUsageClientAuth)
	cert, err := NewCertificate(serverCert, serverKey)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := TLSConfig(cert, ca.file(t, dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	auth, err := NewAuth("", true)
	if err != nil {
		t.Fatal(err)
	}
	client := func(cert, key string) *tls.Config {
		c := &tls.Config{RootCAs: x509.NewCertPool()}
		c.RootCAs.AddCert(ca.cert)
		if cert != "" {
			pair, err := tls.LoadX509KeyPair(cert, key)
			if err != nil {
				t.Fatal(err)
			}
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		return c
	}
	for what, c := range map[string]struct {
		client *tls.Config
		status int // 0: not even a handshake
	}{
		"good":  {client(goodCert, goodKey), 201},
		"none":  {client("", ""), 401},
		"wrong": {client(badCert, badKey), 0},
	} {
		t.Run(what, func(t *testing.T) {
			s := newSite(t, siteOptions{server: Options{Auth: auth}, tls: cfg, client: c.client})
			a, err := s.Try(t.Context(), "POST", "/new", "", "")
			if (err != nil) != (c.status == 0) || a.Status != c.status {
				t.Fatalf("%d %v", a.Status, err)
			}
			if c.status != 201 {
				return
			}
			// A client that leaves a long poll is noticed behind TLS as well.
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				_, _ = s.Try(ctx, "POST", "/hold", "", "")
			}()
			s.Eventually("it waits", func() bool { return s.waiters() == 1 })
			cancel()
			<-gone
			s.Client.CloseIdleConnections()
			s.Eventually("the wait ends", func() bool { return s.waiters() == 0 })
		})
	}
}

// TestClientCAIsReplaced: after Load, clients of the file's present CA are taken, and those of the previous one are not.
func TestClientCAIsReplaced(t *testing.T) {
	dir := t.TempDir()
	first, second := newAuthority(t), newAuthority(t)
	cert, err := NewCertificate(first.issue(t, dir, "server", x509.ExtKeyUsageServerAuth))
	if err != nil {
		t.Fatal(err)
	}
	clients := map[string]*authority{"first": first, "second": second}
	file := first.file(t, dir, "ca.pem")
	cfg, err := TLSConfig(cert, file)
	if err != nil {
		t.Fatal(err)
	}
	auth, err := NewAuth("", true)
	if err != nil {
		t.Fatal(err)
	}
	taken := func(name string) bool {
		pair, err := tls.LoadX509KeyPair(clients[name].issue(t, dir, name, x509.ExtKeyUsageClientAuth))
		if err != nil {
			t.Fatal(err)
		}
		client := &tls.Config{RootCAs: x509.NewCertPool()}
		client.RootCAs.AddCert(first.cert)
		client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		a, err := newSite(t, siteOptions{server: Options{Auth: auth}, tls: cfg, client: client}).Try(t.Context(), "POST", "/new", "", "")
		return err == nil && a.Status == 201
	}
	if !taken("first") || taken("second") {
		t.Error("before the change")
	}
	second.file(t, dir, "ca.pem")
	if err := cert.Load(); err != nil {
		t.Fatal(err)
	}
	if taken("first") || !taken("second") {
		t.Error("after the change")
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cert.Load(); err == nil || !taken("second") {
		t.Errorf("an empty file: %v", err)
	}
}

func TestTLSFilesAreChecked(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t)
	cert, key := ca.issue(t, dir, "server", x509.ExtKeyUsageServerAuth)
	if _, err := NewCertificate(cert, cert); err == nil {
		t.Error("a certificate was accepted as its key")
	}
	c, err := NewCertificate(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TLSConfig(c, filepath.Join(dir, "none")); err == nil {
		t.Error("a missing CA was accepted")
	}
	if _, err := TLSConfig(c, key); err == nil || !strings.Contains(err.Error(), "no certificate") {
		t.Errorf("a key as CA: %v", err)
	}
}

// TestCertificatesAreReloaded: new connections see the new certificate, and the
// old one again when the files make no sense.
func TestCertificatesAreReloaded(t *testing.T) {
	dir := t.TempDir()
	old, renewed := newAuthority(t), newAuthority(t)
	cert, key := old.issue(t, dir, "server", x509.ExtKeyUsageServerAuth)
	c, err := NewCertificate(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := TLSConfig(c, "")
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, siteOptions{tls: cfg})
	seen := func(ca *authority) error {
		pool := x509.NewCertPool()
		pool.AddCert(ca.cert)
		conn, err := tls.Dial("tcp", s.Addr, &tls.Config{RootCAs: pool})
		if err == nil {
			conn.Close()
		}
		return err
	}
	old.issue(t, dir, "server", x509.ExtKeyUsageServerAuth)
	if err := c.Load(); err != nil {
		t.Fatal(err)
	}
	if err := seen(old); err != nil {
		t.Errorf("before: %v", err)
	}
	renewed.issue(t, dir, "server", x509.ExtKeyUsageServerAuth)
	if err := c.Load(); err != nil {
		t.Fatal(err)
	}
	if err := seen(renewed); err != nil {
		t.Errorf("renewed: %v", err)
	}
	writeFile(t, key, "")
	if err := c.Load(); err == nil {
		t.Error("a certificate without a key was taken")
	}
	if err := seen(renewed); err != nil {
		t.Errorf("after files that make no sense: %v", err)
	}
}
