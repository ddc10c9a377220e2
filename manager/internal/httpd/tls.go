package httpd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Certificate is what a TLS listener shows, and the CA of the client certificates that it takes. Both can change while the
// listener is in use.
type Certificate struct {
	certFile, keyFile string
	clientCA          string // empty: the listener asks for no client certificate
	current           atomic.Pointer[tls.Certificate]
	clients           atomic.Pointer[x509.CertPool] // nil without clientCA
}

// NewCertificate reads a certificate and its key, both PEM.
func NewCertificate(certFile, keyFile string) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile}
	if err := c.Load(); err != nil {
		return nil, err
	}
	return c, nil
}

// Files are those that Load reads.
func (c *Certificate) Files() []string {
	if c.clientCA == "" {
		return []string{c.certFile, c.keyFile}
	}
	return []string{c.certFile, c.keyFile, c.clientCA}
}

// Load reads the files again. New connections see what the files hold. On an error nothing changes.
func (c *Certificate) Load() error {
	cert, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("TLS certificate: %w", err)
	}
	if c.clientCA != "" {
		pem, err := os.ReadFile(c.clientCA)
		if err != nil {
			return fmt.Errorf("client CA: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return errors.New("client CA " + c.clientCA + ": holds no certificate in PEM form")
		}
		c.clients.Store(pool)
	}
	c.current.Store(&cert)
	return nil
}

// Collector reports when the certificate of a listener expires.
func (c *Certificate) Collector(listener string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "oncegate_tls_certificate_not_after_timestamp_seconds", Help: "When the certificate of the listener ends, in Unix time.",
		ConstLabels: prometheus.Labels{"listener": listener},
	}, func() float64 { return float64(c.current.Load().Leaf.NotAfter.Unix()) })
}

// TLSConfig returns the configuration of a TLS listener. With a clientCA, a
// client that shows a certificate must show one that this CA has signed; one
// that shows none gets as far as Auth.
func TLSConfig(cert *Certificate, clientCA string) (*tls.Config, error) {
	cfg := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert.current.Load(), nil },
	}
	if clientCA == "" {
		return cfg, nil
	}
	cert.clientCA = clientCA
	if err := cert.Load(); err != nil {
		return nil, err
	}
	cfg.ClientAuth = tls.VerifyClientCertIfGiven
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := cfg.Clone()
		now.ClientCAs = cert.clients.Load()
		return now, nil
	}
	return cfg, nil
}
