package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// selfSigned writes a certificate with that serial number and its key.
func selfSigned(t *testing.T, certFile, keyFile string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "EC PRIVATE KEY", Bytes: der},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCertificateIsReloaded: SIGHUP is enough for a new certificate; connections
// that are open, and the process, stay.
func TestCertificateIsReloaded(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	selfSigned(t, cert, key, 1)
	s := serveBreakable(t, "--tls-cert", cert, "--tls-key", key)
	dial := func() *tls.Conn {
		// What is shown is looked at below.
		c, err := tls.Dial("tcp", s.addr, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	serial := func() int64 {
		c := dial()
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if got := serial(); got != 1 {
		t.Fatalf("certificate %d", got)
	}
	open := dial()
	defer open.Close()
	selfSigned(t, cert, key, 2)
	waitFor(t, "the new certificate is shown", func() bool {
		s.sendHangup()
		return serial() == 2
	})
	if _, err := open.Write([]byte("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 12)
	if _, err := open.Read(b); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200") {
		t.Errorf("a connection that was open: %q %v", b, err)
	}
	if err := os.WriteFile(key, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the mistake is logged", func() bool {
		s.sendHangup()
		return strings.Contains(s.stderr.String(), "certificate not reloaded; the previous one stays in use")
	})
	if got := serial(); got != 2 {
		t.Errorf("certificate %d after a mistake", got)
	}
	s.stop()
	if err := s.ended(t); err != nil {
		t.Error(err)
	}
}
