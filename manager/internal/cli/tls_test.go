package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// ownCertificate is a certificate for both ends, signed by itself.
func ownCertificate(t *testing.T) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	kder, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: kder}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// TestJobsCommandsWithCertificates: operators reach a manager that only lets in
// who has a certificate.
func TestJobsCommandsWithCertificates(t *testing.T) {
	cert, key := ownCertificate(t)
	url := strings.Replace(jobsManager(t, "--tls-cert", cert, "--tls-key", key, "--client-ca", cert), "http://", "https://", 1)
	if code, out, errs := jobsCLI(url, "list", "--ca-file", cert, "--cert-file", cert, "--key-file", key); code != 0 || !strings.HasPrefix(out, "ID") {
		t.Errorf("with a certificate: exit code %d, %s", code, errs)
	}
	if code, _, errs := jobsCLI(url, "list", "--ca-file", cert); code != 1 || !strings.Contains(errs, "client certificate") || strings.Count(errs, "\n") != 1 {
		t.Errorf("without one: exit code %d, %s", code, errs)
	}
	if code, _, errs := jobsCLI(url, "list", "--cert-file", cert, "--key-file", key, "--timeout-seconds", "5"); code != 1 || !strings.Contains(errs, "certificate") {
		t.Errorf("a manager of an unknown CA: exit code %d, %s", code, errs)
	}
	for want, args := range map[string][]string{
		"must be given together":    {"--cert-file", cert},
		"--cert-file":               {"--cert-file", key, "--key-file", key},
		"must hold certificates":    {"--ca-file", key},
		"no such file or directory": {"--ca-file", filepath.Join(t.TempDir(), "none")},
	} {
		if code, _, errs := jobsCLI(url, append([]string{"list"}, args...)...); code != 2 || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: exit code %d, %s", args, code, errs)
		}
	}
}
