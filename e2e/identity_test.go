package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3" // for protojson
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3" // for protojson
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Callers are known by a claim of a verified token, or by the certificate of their connection: a renewed token retries the
// same request, other callers have their own keys, and a header that a client makes up identifies no caller.
func TestCallersAreKnownByTokenAndCertificate(t *testing.T) {
	ca := newIdentity(t, "ca", nil)
	server, alice, bob := newIdentity(t, "server", ca), newIdentity(t, "alice", ca), newIdentity(t, "bob", ca)
	issuer := newIdentity(t, "issuer", nil)
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := &stack{dir: t.TempDir(), target: target, mode: mode, paymentsAddr: newAskedUpstream(t).address, plugin: map[string]any{
			"match": []any{
				map[string]any{"path": "/token", "scope": []any{"host", "path"}, "anonymous": "shared", "key": map[string]any{
					"sources": []string{"jwt:payload.sub", "header:idempotency-key"}}},
				map[string]any{"path": "/san", "scope": []any{"host", "path", "certificate:dns_san"}},
				map[string]any{"path": "/subject", "scope": []any{"host", "path", "certificate:subject"}},
				map[string]any{"path": "/digest", "scope": []any{"host", "path", "certificate:sha256"}},
				map[string]any{"path": "/certificate", "scope": []any{"host", "path", "header:x-forwarded-client-cert"}},
				map[string]any{},
			},
			"anonymous": "refuse",
		}}
		s.bootstrap = func(b *bootstrapv3.Bootstrap) error {
			socket := new(corev3.TransportSocket)
			err := protojson.Unmarshal(fmt.Appendf(nil, `{"name": "tls", "typed_config": {
				"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
				"require_client_certificate": true, "common_tls_context": {
				"tls_certificates": [{"certificate_chain": {"inline_string": %q}, "private_key": {"inline_string": %q}}],
				"validation_context": {"trusted_ca": {"inline_string": %q}}}}}`, server.certPEM(), server.keyPEM(t), ca.certPEM()), socket)
			b.GetStaticResources().GetListeners()[0].GetFilterChains()[0].TransportSocket = socket
			return err
		}
		s.edit = func(hcm *hcmv3.HttpConnectionManager) error {
			hcm.ForwardClientCertDetails = hcmv3.HttpConnectionManager_SANITIZE_SET
			hcm.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{Subject: wrapperspb.Bool(true)}
			filter := new(hcmv3.HttpFilter)
			err := protojson.Unmarshal(fmt.Appendf(nil, `{"name": "jwt", "typed_config": {
				"@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
				"providers": {"p": {"issuer": "us", "forward": true, "payload_in_metadata": "payload",
				"local_jwks": {"inline_string": %q}}},
				"rules": [{"match": {"path": "/token"}, "requires": {"provider_name": "p"}}]}}`, issuer.jwks(t)), filter)
			hcm.HttpFilters = append([]*hcmv3.HttpFilter{filter}, hcm.GetHttpFilters()...)
			return err
		}
		s.stopAtEnd(t)
		s.startManager(t)
		s.startProxy(t)
		p := s.proxies[0]
		send := func(caller *identity, c call, status int, replay bool) answer {
			t.Helper()
			a, err := doWith(t.Context(), caller.client(t, ca), p, c)
			if err != nil || a.status != status || a.replayed() != replay {
				t.Fatalf("%v, %v; want status %d, replayed %v", a, err, status, replay)
			}
			return a
		}

		key := newKey()
		of := func(path string, headers ...string) call {
			c := pay(key, headers...)
			c.path = path
			return c
		}
		token := func(subject string, lifetime time.Duration) string {
			return "Bearer " + issuer.token(t, subject, lifetime)
		}
		first := send(alice, of("/token", "Authorization", token("alice", time.Hour)), 201, false)
		renewed := send(bob, of("/token", "Authorization", token("alice", 2*time.Hour)), 201, true)
		if err := renewed.sameAs(first); err != nil {
			t.Error(err)
		}
		send(alice, of("/token", "Authorization", token("bob", time.Hour)), 201, false)
		forged := token("alice", time.Hour)
		send(alice, of("/token", "Authorization", forged[:len(forged)-8]+"AAAAAAAA"), 401, false)

		first = send(alice, of("/certificate"), 201, false)
		if got := first.seen(t).Headers.Get("X-Forwarded-Client-Cert"); !strings.Contains(got, "CN=alice") {
			t.Errorf("upstream gets the certificate %q", got)
		}
		if err := send(alice, of("/certificate"), 201, true).sameAs(first); err != nil {
			t.Error(err)
		}
		bobs := send(bob, of("/certificate", "X-Forwarded-Client-Cert", first.seen(t).Headers.Get("X-Forwarded-Client-Cert")), 201, false)
		if got := bobs.seen(t).Headers.Get("X-Forwarded-Client-Cert"); strings.Contains(got, "CN=alice") {
			t.Errorf("upstream gets %q for bob", got)
		}
		send(alice, of("/unnamed"), 400, false)

		again := newIdentity(t, "alice", ca) // a renewed certificate
		for path, renewed := range map[string]bool{"/san": true, "/subject": true, "/digest": false} {
			first := send(alice, of(path), 201, false)
			send(bob, of(path), 201, false)
			if a := send(again, of(path), 201, renewed); renewed {
				if err := a.sameAs(first); err != nil {
					t.Errorf("%s: %v", path, err)
				}
			}
		}
	})
}

// identity has a key and a certificate for it.
type identity struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

// newIdentity makes an identity that the issuer vouches for, without one it does so itself.
func newIdentity(t *testing.T, name string, issuer *identity) *identity {
	t.Helper()
	return newIdentityUntil(t, name, issuer, time.Now().Add(24*time.Hour))
}

// newIdentityUntil is newIdentity with the end of its certificate.
func newIdentityUntil(t *testing.T, name string, issuer *identity, end time.Time) *identity {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	id := &identity{key: key, cert: &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: end,
		IsCA: issuer == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}}
	if issuer == nil {
		issuer = id
	}
	der, err := x509.CreateCertificate(rand.Reader, id.cert, issuer.cert, &key.PublicKey, issuer.key)
	if err != nil {
		t.Fatal(err)
	}
	if id.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return id
}

func (id *identity) certPEM() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: id.cert.Raw}))
}

func (id *identity) keyPEM(t *testing.T) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(id.key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// client returns a client for the proxies' http URLs that shows the certificate on its connections.
func (id *identity) client(t *testing.T, ca *identity) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	dialer := &tls.Dialer{Config: &tls.Config{
		RootCAs: roots, ServerName: "server",
		Certificates: []tls.Certificate{{Certificate: [][]byte{id.cert.Raw}, PrivateKey: id.key}},
	}}
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, address)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// jwks returns the public key as a JSON Web Key Set.
func (id *identity) jwks(t *testing.T) string {
	t.Helper()
	public, err := id.key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	x, y := public[1:33], public[33:]
	return fmt.Sprintf(`{"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "x": %q, "y": %q}]}`,
		base64.RawURLEncoding.EncodeToString(x), base64.RawURLEncoding.EncodeToString(y))
}

// token returns a signed JSON Web Token.
func (id *identity) token(t *testing.T, subject string, lifetime time.Duration) string {
	t.Helper()
	claims, err := json.Marshal(map[string]any{"iss": "us", "sub": subject, "exp": time.Now().Add(lifetime).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(`{"alg": "ES256", "typ": "JWT"}`)) + "." + encode(claims)
	digest := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, id.key, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	var signature [64]byte
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return text + "." + encode(signature[:])
}
