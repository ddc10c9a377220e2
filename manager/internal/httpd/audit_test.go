package httpd

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"net/http"
	"strings"
	"testing"
)

// proven is a connection whose client proved a certificate.
type proven struct{ cert *x509.Certificate }

func (p proven) ConnectionState() tls.ConnectionState {
	all := []*x509.Certificate{p.cert}
	return tls.ConnectionState{PeerCertificates: all, VerifiedChains: [][]*x509.Certificate{all}}
}

// TestAuditLinesNameTheCaller: the token's position and words, and the certificate's name. Where no token is asked for, the
// words are the certificate's.
func TestAuditLinesNameTheCaller(t *testing.T) {
	from, cert := &http.Request{RemoteAddr: "10.0.0.7:1"}, proven{&x509.Certificate{Subject: pkix.Name{CommonName: "ops"}}}
	operator, admin := &rights{roles: Operator, number: 2}, &rights{roles: Admin | Submitter}
	for want, r := range map[string]*Request{
		"token=0 roles=admin":                             {source: &source{r: from}},
		"token=2 roles=operator":                          {source: &source{r: from}, caller: caller{token: operator}},
		"token=2 roles=operator certificate=ops":          {source: &source{from, cert}, caller: caller{token: operator, certificate: admin}},
		`token=0 roles="submitter admin" certificate=ops`: {source: &source{from, cert}, caller: caller{certificate: admin}},
		"token=0 roles=admin certificate=ops":             {source: &source{from, cert}},
	} {
		var out bytes.Buffer
		r.server = &Server{opts: Options{Audit: slog.New(slog.NewTextHandler(&out, nil))}}
		r.Audit("function paused", "function", "f")
		if !strings.HasSuffix(out.String(), `msg="function paused" remote=10.0.0.7:1 via=api `+want+" function=f\n") {
			t.Errorf("want %s: %s", want, out.String())
		}
	}
}
