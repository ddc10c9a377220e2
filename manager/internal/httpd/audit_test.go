package httpd

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"strings"
	"testing"
)

// proven is a source whose client proved a certificate, nil without one.
type proven struct {
	source
	cert *x509.Certificate
}

func (p proven) certificate() *x509.Certificate { return p.cert }
func (proven) remote() string                   { return "10.0.0.7:1" }

// TestAuditLinesNameTheCaller: the token's position and words, and the certificate's name. Where no token is asked for, the
// words are the certificate's.
func TestAuditLinesNameTheCaller(t *testing.T) {
	cert := &x509.Certificate{Subject: pkix.Name{CommonName: "ops"}}
	operator, admin := &rights{roles: Operator, number: 2}, &rights{roles: Admin | Submitter}
	for want, r := range map[string]*Request{
		"token=0 roles=admin":                             {source: proven{}},
		"token=2 roles=operator":                          {source: proven{}, caller: caller{token: operator}},
		"token=2 roles=operator certificate=ops":          {source: proven{cert: cert}, caller: caller{token: operator, certificate: admin}},
		`token=0 roles="submitter admin" certificate=ops`: {source: proven{cert: cert}, caller: caller{certificate: admin}},
		"token=0 roles=admin certificate=ops":             {source: proven{cert: cert}},
	} {
		var out bytes.Buffer
		r.server = &Server{opts: Options{Audit: slog.New(slog.NewTextHandler(&out, nil))}}
		r.Audit("function paused", "function", "f")
		if !strings.HasSuffix(out.String(), `msg="function paused" remote=10.0.0.7:1 via=api `+want+" function=f\n") {
			t.Errorf("want %s: %s", want, out.String())
		}
	}
}
