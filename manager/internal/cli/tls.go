package cli

import (
	"crypto/tls"
	"crypto/x509"
	"flag"
	"net/http"
	"os"
	"time"

	"github.com/oncegate/oncegate/manager/internal/settings"
)

// clientTLS is how "oncegate jobs" proves who it is, and knows the manager, where
// a bearer token and the system's CAs are not all there is.
type clientTLS struct{ ca, cert, key string }

func (c *clientTLS) flags(fs *flag.FlagSet) {
	fs.StringVar(&c.ca, "ca-file", "", "`file` of the CAs (PEM) that sign managers, instead of the system's")
	fs.StringVar(&c.cert, "cert-file", "", "`file` of the client certificate (PEM), for managers that require one")
	fs.StringVar(&c.key, "key-file", "", "`file` of that certificate's key (PEM)")
}

// client returns nil when no flag was given; the errors are of usage.
func (c *clientTLS) client() (*http.Client, error) {
	if *c == (clientTLS{}) {
		return nil, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if (c.cert == "") != (c.key == "") {
		return nil, settings.Usagef("--cert-file and --key-file: must be given together")
	}
	if c.cert != "" {
		cert, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, settings.Usagef("--cert-file %s, --key-file %s: %v", c.cert, c.key, err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	if c.ca != "" {
		pem, err := os.ReadFile(c.ca)
		if err != nil {
			return nil, settings.Usagef("--ca-file: %v", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, settings.Usagef("--ca-file %s: must hold certificates in PEM form", c.ca)
		}
	}
	return &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: cfg, TLSHandshakeTimeout: 5 * time.Second, ForceAttemptHTTP2: true,
	}}, nil
}
