package etcd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// authority makes certificates.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = a.issue(t, name, nil)
	return a
}

// issue writes NAME.pem and NAME.key. The first certificate is the authority's own.
func (a *authority) issue(t *testing.T, name string, ip net.IP) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = c, key
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	}
	if ip != nil {
		c.IPAddresses = []net.IP{ip}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	pk, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{".pem": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: pk}} {
		if err := os.WriteFile(a.file(name+file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c, key
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// TestTLS: the store works with certificates, and with a user besides them, as etcd asks for it. Whatever else a DSN
// says is refused, and no password is sent.
func TestTLS(t *testing.T) {
	t.Parallel()
	ca, stranger := newAuthority(t, "ca"), newAuthority(t, "ca")
	for _, a := range []*authority{ca, stranger} {
		a.issue(t, "me", nil)
		a.issue(t, "nobody", nil)
	}
	srv := servers.EtcdTLS(t, func(ip string) []string {
		ca.issue(t, "member", net.ParseIP(ip))
		return []string{"--trusted-ca-file", ca.file("ca.pem"), "--client-cert-auth", "--cert-file", ca.file("member.pem"), "--key-file", ca.file("member.key")}
	})
	dsn := func(user, trust string, own *authority, name string) string {
		return strings.Replace(srv.URL, "://", "://"+user, 1) + "?ca=" + trust + "&cert=" + own.file(name+".pem") + "&key=" + own.file(name+".key")
	}
	good := dsn("", ca.file("ca.pem"), ca, "nobody")
	if err := storetest.Put(t.Context(), open(t, Options{DSN: good}), "a", "1"); err != nil {
		t.Fatal(err)
	}

	var asking sync.WaitGroup
	refused := func(what, dsn, want string) {
		asking.Go(func() {
			s, err := Open(t.Context(), Options{DSN: dsn})
			if err == nil {
				_ = s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "wrong") {
				t.Errorf("%s: %v, want %q", what, err, want)
			}
		})
	}
	garbage := ca.file("garbage.pem")
	if err := os.WriteFile(garbage, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	const unreachable = "store: engine unavailable"
	refused("no TLS", strings.Replace(srv.URL, "https", "http", 1), unreachable)
	refused("no certificate", srv.URL+"?ca="+ca.file("ca.pem"), "remote error: tls: ")
	refused("a certificate of another authority", dsn("", ca.file("ca.pem"), stranger, "me"), "remote error: tls: ")
	refused("another authority for the member", dsn("", stranger.file("ca.pem"), ca, "me"), "certificate signed by unknown authority")
	refused("no such file", srv.URL+"?ca=/none.pem", `parameter ca: open /none.pem`)
	refused("not PEM", srv.URL+"?ca="+garbage, `garbage.pem": has no certificate in PEM form`)
	refused("no such certificate", srv.URL+"?cert=/none.pem&key=/none.key", "parameters cert and key: open /none.pem")
	refused("the key of another certificate", srv.URL+"?cert="+ca.file("me.pem")+"&key="+ca.file("nobody.key"), "parameters cert and key: tls: private key does not match")
	asking.Wait()

	pair, err := tls.LoadX509KeyPair(ca.file("nobody.pem"), ca.file("nobody.key"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.URL}, DialTimeout: testPatience, TLS: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	enableUsers(t, admin)
	refused("a certificate that names no user", good, "permission denied")
	refused("a wrong password", dsn("me:wrong@", ca.file("ca.pem"), ca, "nobody"), "authentication failed")
	asking.Wait()
	stores := map[string]*Store{
		"user and password":       open(t, Options{DSN: dsn("me:secret@", ca.file("ca.pem"), ca, "nobody")}),
		"certificate of the user": open(t, Options{DSN: dsn("", ca.file("ca.pem"), ca, "me")}),
	}
	for restarted := range 2 {
		if restarted > 0 { // which ends the tokens that etcd gave for the password
			srv.Kill()
			if err := srv.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for name, s := range stores {
			w := s.Watch("topic")
			eventually(t, name, func() bool {
				err := s.Update(t.Context(), func(tx store.Tx) error {
					tx.Notify("topic")
					return tx.Put("things", "b", []byte(name))
				})
				if err != nil && !errors.Is(err, store.ErrUnavailable) {
					t.Fatal(err)
				}
				return err == nil
			})
			select {
			case <-w.C():
			case <-time.After(testPatience):
				t.Fatalf("%s: no wake-up, restarted %d times", name, restarted)
			}
			w.Stop()
		}
	}
}
