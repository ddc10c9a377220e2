package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// tlsStack is an xdsStack whose manager serves by TLS and asks for a certificate. Its proxies are guests.
type tlsStack struct {
	*xdsStack
	ca, stranger *identity
	managerFiles string
	roles        string             // the file with the names of gates
	cluster      *clusterv3.Cluster // of the manager, as it is when nothing is wrong
}

func newTLS(t *testing.T, target envoyTarget, edits ...func(*bootstrapv3.Bootstrap) error) *tlsStack {
	t.Helper()
	x := &tlsStack{
		ca: newIdentity(t, "ca", nil), stranger: newIdentity(t, "other", nil),
		managerFiles: t.TempDir(), roles: filepath.Join(t.TempDir(), "roles"),
	}
	x.writeManager(t, newIdentity(t, managerName, x.ca), x.ca, "payments gate")
	gate := tlsFiles(t, newIdentity(t, "payments gate", x.ca), x.ca)
	x.xdsStack = withoutEnvoy(t, target, []string{
		"--tls-cert", filepath.Join(x.managerFiles, "tls.crt"), "--tls-key", filepath.Join(x.managerFiles, "tls.key"),
		"--client-ca", filepath.Join(x.managerFiles, "ca.crt"), "--client-roles-file", x.roles,
	}, append(edits, tlsCluster(gate))...)
	if err := editCluster(x.lifecycle.bootstrap, "oncegate_manager", func(c *clusterv3.Cluster) { x.cluster = proto.CloneOf(c) }); err != nil {
		t.Fatal(err)
	}
	x.startGuest(t)
	return x
}

// startGuest adds a proxy. Only the first one's configuration changes.
func (x *tlsStack) startGuest(t *testing.T) *proxy {
	t.Helper()
	p, err := x.target.host(x.lifecycle.bootstrap, 2)
	if err != nil {
		t.Fatal(err)
	}
	x.proxies = append(x.proxies, p)
	return p
}

// writeManager writes the manager's files: its certificate, the CA of the gates, and the names of the gates.
func (x *tlsStack) writeManager(t *testing.T, id, ca *identity, gates ...string) {
	t.Helper()
	writeTLS(t, x.managerFiles, id, ca)
	var text strings.Builder
	for _, name := range gates {
		fmt.Fprintf(&text, "CN=%q gate\n", name)
	}
	if err := os.WriteFile(x.roles, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// reload has the manager read its files again.
func (x *tlsStack) reload(t *testing.T) {
	t.Helper()
	m := x.stack.manager
	before := strings.Count(m.tail(maxLines), ` reloaded"`)
	if err := m.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the manager does not read its files", func() error {
		if n := strings.Count(m.tail(maxLines), ` reloaded"`); n < before+2 {
			return fmt.Errorf("%d files; its log:\n%s", n-before, m.tail(20))
		}
		return nil
	})
}

// setCluster changes the manager's cluster by CDS. Statistics of the changed cluster have the name mark.
func (x *tlsStack) setCluster(t *testing.T, mark string, change func(*clusterv3.Cluster)) {
	t.Helper()
	clusters := x.lifecycle.bootstrap.GetStaticResources().GetClusters()
	i := slices.IndexFunc(clusters, func(c *clusterv3.Cluster) bool { return c.GetLoadAssignment().GetClusterName() == x.cluster.GetName() })
	clusters[i] = proto.CloneOf(x.cluster)
	clusters[i].AltStatName = mark
	change(clusters[i])
	if err := replaceResources(x.proxies[0].host.clusterFile(), clusters...); err != nil {
		t.Fatal(err)
	}
	x.taken(t, mark)
}

// managerTrouble is what cuts the gate off from the manager.
type managerTrouble struct {
	cluster func(*testing.T, *tlsStack, *clusterv3.Cluster) // changes the cluster
	manager func(*testing.T, *tlsStack)                     // writes the manager's files
	large   bool                                            // it concerns large messages only
}

// withFiles gives the cluster the files of an identity and a CA.
func withFiles(of func(*testing.T, *tlsStack) (id, ca *identity)) managerTrouble {
	return managerTrouble{cluster: func(t *testing.T, x *tlsStack, c *clusterv3.Cluster) {
		id, ca := of(t, x)
		socket, err := tlsSocket(tlsFiles(t, id, ca))
		if err != nil {
			t.Fatal(err)
		}
		c.TransportSocket = socket
	}}
}

// breaker gives the cluster a limit.
func breaker(limit *clusterv3.CircuitBreakers_Thresholds) func(*testing.T, *tlsStack, *clusterv3.Cluster) {
	return func(_ *testing.T, _ *tlsStack, c *clusterv3.Cluster) {
		c.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{limit}}
	}
}

var managerTroubles = map[string]managerTrouble{
	"no such cluster": {cluster: func(_ *testing.T, _ *tlsStack, c *clusterv3.Cluster) { c.Name = "elsewhere" }},
	"max_requests":    {cluster: breaker(&clusterv3.CircuitBreakers_Thresholds{MaxRequests: wrapperspb.UInt32(0)})},
	// Each worker may have one connection nevertheless, which its stream for small messages takes.
	"max_connections": {cluster: breaker(&clusterv3.CircuitBreakers_Thresholds{MaxConnections: wrapperspb.UInt32(1)}), large: true},
	"the gate trusts another CA": withFiles(func(t *testing.T, x *tlsStack) (*identity, *identity) {
		return newIdentity(t, "payments gate", x.ca), x.stranger
	}),
	"the gate's certificate is of another CA": withFiles(func(t *testing.T, x *tlsStack) (*identity, *identity) {
		return newIdentity(t, "payments gate", x.stranger), x.ca
	}),
	"the gate has no certificate": {cluster: func(t *testing.T, _ *tlsStack, c *clusterv3.Cluster) {
		if err := changeSocket(c, func(context *tlsv3.UpstreamTlsContext) { context.CommonTlsContext.TlsCertificates = nil }); err != nil {
			t.Fatal(err)
		}
	}},
	"the gate's certificate has ended": withFiles(func(t *testing.T, x *tlsStack) (*identity, *identity) {
		return newIdentityUntil(t, "payments gate", x.ca, time.Now().Add(-time.Minute)), x.ca
	}),
	"the manager's certificate is of another CA": {manager: func(t *testing.T, x *tlsStack) {
		x.writeManager(t, newIdentity(t, managerName, x.stranger), x.ca, "payments gate")
	}},
	"the manager's certificate has ended": {manager: func(t *testing.T, x *tlsStack) {
		x.writeManager(t, newIdentityUntil(t, managerName, x.ca, time.Now().Add(-time.Minute)), x.ca, "payments gate")
	}},
	"the manager's certificate is of another name": {manager: func(t *testing.T, x *tlsStack) {
		x.writeManager(t, newIdentity(t, "other", x.ca), x.ca, "payments gate")
	}},
	"the manager takes certificates of another CA": {manager: func(t *testing.T, x *tlsStack) {
		x.writeManager(t, newIdentity(t, managerName, x.ca), x.stranger, "payments gate")
	}},
	"the manager has no role for the gate": {manager: func(t *testing.T, x *tlsStack) {
		x.writeManager(t, newIdentity(t, managerName, x.ca), x.ca, "another gate")
	}},
}

// The gate is cut off from the manager by a cluster or a certificate, while a request runs. New keys are refused and do not run. Once the
// fault is mended, a retry is served, once, and the ledger learns how the running request ended.
func TestManagerTroubleIsMended(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		for _, name := range deep.Keys(t, managerTroubles) {
			t.Run(name, func(t *testing.T) { managerTroubles[name].run(t, newTLS(t, target, hurried)) })
		}
	})
}

func (m managerTrouble) run(t *testing.T, x *tlsStack) {
	p := x.proxies[0]
	var headers []string
	if m.large {
		headers = []string{"X-More", "100000"}
	}
	f := x.fly(t, headers...)

	if m.cluster != nil {
		x.setCluster(t, "troubled", func(c *clusterv3.Cluster) { m.cluster(t, x, c) })
	} else {
		m.manager(t, x)
		x.stack.manager.kill()
		x.startManager(t)
	}
	c := pay(newKey())
	if m.large {
		eventually(t, "each worker has a connection", func() error {
			other := pay(newKey(), "Connection", "close")
			wantFirst(t, p, other, 201)
			return unequal(x.stat(t, "cluster.troubled.upstream_cx_active"), 2)
		})
	} else {
		eventually(t, "the gate is not cut off", func() error {
			c = pay(newKey()) // the next one, if workers did not know of the change yet
			if a := send(t, p, c); a.status == 201 {
				return fmt.Errorf("%v", a)
			}
			return nil
		})
		if a := wantProblem(t, p, c, 503, "manager-unavailable"); a.headers.Get("Retry-After") == "" {
			t.Errorf("no Retry-After: %v", a)
		}
		if n := x.upstream.count(*c.key); n != 0 {
			t.Errorf("a request that was refused ran %d times", n)
		}
	}
	f.land(t)
	if m.large {
		eventually(t, "the stream for large messages needs no connection", func() error {
			if x.stat(t, "cluster.troubled.upstream_rq_pending_active") == 0 {
				return errors.New("no stream waits for one")
			}
			return nil
		})
	}

	if m.cluster != nil {
		x.setCluster(t, "mended", func(*clusterv3.Cluster) {})
	} else {
		x.writeManager(t, newIdentity(t, managerName, x.ca), x.ca, "payments gate")
		x.reload(t)
	}
	first := eventuallyPaid(t, "the fault is mended, the key does not run", p, *c.key)
	other := x.startGuest(t) // knows only what the ledger knows
	for _, p := range x.proxies {
		wantReplay(t, p, c, first)
		wantReplay(t, p, f.call, f.answers[0])
	}
	for _, c := range []call{c, f.call} {
		if n := x.upstream.count(*c.key); n != 1 {
			t.Errorf("key %s ran %d times", *c.key, n)
		}
	}
	p.wantNoTrap(t)
	other.wantNoTrap(t)
}

// Certificates of the manager and of the gate are renewed under load, while streams are open and others begin: no client gets an error.
func TestCertificatesAreRenewedUnderLoad(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		x := newTLS(t, target, limitCluster("oncegate_manager", func(o *corev3.HttpProtocolOptions) {
			o.MaxStreamDuration = durationpb.New(300 * time.Millisecond)
		}))
		dir := t.TempDir()
		renewGate := func(name string) {
			id := newIdentity(t, name, x.ca)
			err := replaceResources(filepath.Join(dir, "sds.json"), &tlsv3.Secret{Name: "gate", Type: &tlsv3.Secret_TlsCertificate{
				TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inlined(id.certPEM()), PrivateKey: inlined(id.keyPEM(t))},
			}})
			if err != nil {
				t.Fatal(err)
			}
		}
		renewGate("payments gate")
		x.setCluster(t, "renewing", func(c *clusterv3.Cluster) {
			if err := changeSocket(c, func(context *tlsv3.UpstreamTlsContext) {
				context.CommonTlsContext.TlsCertificates = nil
				context.CommonTlsContext.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{{Name: "gate", SdsConfig: &corev3.ConfigSource{
					ResourceApiVersion: corev3.ApiVersion_V3,
					ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{
						Path: filepath.Join(dir, "sds.json"), WatchedDirectory: &corev3.WatchedDirectory{Path: dir},
					}},
				}}}
			}); err != nil {
				t.Fatal(err)
			}
		})
		eventually(t, "the changed cluster does not serve", func() error {
			if a := send(t, x.proxies[0], pay(newKey())); a.status != 201 || x.stat(t, "cluster.renewing.ssl.handshake") == 0 {
				return fmt.Errorf("%v", a)
			}
			return nil
		})
		l := x.payAll(t, nil)
		grows := func(statistic string, by int) {
			before := x.stat(t, statistic)
			l.more(t, 20)
			eventually(t, statistic, func() error {
				if n := x.stat(t, statistic); n < before+by {
					return fmt.Errorf("%d, and %d before", n, before)
				}
				return nil
			})
		}
		const handshakes, updates = "cluster.renewing.ssl.handshake", "cluster.renewing.client_ssl_socket_factory.ssl_context_update_by_sds"
		x.writeManager(t, newIdentity(t, managerName, x.ca), x.ca, "payments gate", "renewed gate")
		x.reload(t)
		grows(handshakes, 4)
		old := x.stat(t, updates)
		renewGate("renewed gate")
		eventually(t, "Envoy does not take the gate's certificate", func() error {
			if n := x.stat(t, updates); n == old {
				return fmt.Errorf("%d", n)
			}
			return nil
		})
		x.writeManager(t, newIdentity(t, managerName, x.ca), x.ca, "renewed gate")
		x.reload(t)
		grows(handshakes, 4)
		l.end()
		if len(l.errs) > 0 {
			t.Errorf("%d of %d keys: %v", len(l.errs), l.done.Load(), l.errs[0])
		}
		if n := x.stat(t, "cluster.renewing.ssl.connection_error"); n != 0 {
			t.Errorf("%d handshakes failed", n)
		}
		x.proxies[0].wantNoTrap(t)
	})
}

func inlined(text string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}}
}
