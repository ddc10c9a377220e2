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

// Certificate is what a TLS listener shows. It can be changed while the
// listener is in use.
type Certificate struct {
	certFile, keyFile string
	current           atomic.Pointer[tls.Certificate]
}

// NewCertificate reads a certificate and its key, both PEM.
func NewCertificate(certFile, keyFile string) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile}
	if err := c.Load(); err != nil {
		return nil, err
	}
	return c, nil
}

// Load reads the files again; connections that begin from now on see what they
// hold. On error the old certificate stays.
func (c *Certificate) Load() error {
	cert, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("TLS certificate: %w", err)
	}
	c.current.Store(&cert)
	return nil
}

// Collector tells when the certificate of a listener ends.
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
	pem, err := os.ReadFile(clientCA)
	if err != nil {
		return nil, fmt.Errorf("client CA: %w", err)
	}
	cfg.ClientCAs = x509.NewCertPool()
	if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, errors.New("client CA " + clientCA + ": holds no certificate in PEM form")
	}
	cfg.ClientAuth = tls.VerifyClientCertIfGiven
	return cfg, nil
}
