package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/oncegate/oncegate/envoy"
)

// managerName is the manager's name in tls.yaml.
const managerName = "oncegate-manager.oncegate.svc.cluster.local"

// tlsFiles writes an identity and its CA under the names of tls.yaml, and returns the folder.
func tlsFiles(t *testing.T, id, ca *identity) string {
	t.Helper()
	dir := t.TempDir()
	writeTLS(t, dir, id, ca)
	return dir
}

// writeTLS writes the files of tlsFiles into a folder.
func writeTLS(t *testing.T, dir string, id, ca *identity) {
	t.Helper()
	for name, text := range map[string]string{"ca.crt": ca.certPEM(), "tls.crt": id.certPEM(), "tls.key": id.keyPEM(t)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// tlsSocket is what tls.yaml has for connections to the manager, with the files of a folder.
func tlsSocket(dir string) (*corev3.TransportSocket, error) {
	published, err := envoy.LoadBootstrap("tls.yaml")
	if err != nil {
		return nil, err
	}
	text, err := envoy.MarshalBootstrap(published)
	if err != nil {
		return nil, err
	}
	moved := new(bootstrapv3.Bootstrap)
	if err := protojson.Unmarshal([]byte(strings.ReplaceAll(string(text), "/etc/oncegate/tls", dir)), moved); err != nil {
		return nil, err
	}
	return moved.GetStaticResources().GetClusters()[0].GetTransportSocket(), nil
}

// tlsCluster gives oncegate_manager the transport socket of tls.yaml, with the files of a folder.
func tlsCluster(dir string) func(*bootstrapv3.Bootstrap) error {
	return func(b *bootstrapv3.Bootstrap) error {
		socket, err := tlsSocket(dir)
		if err != nil {
			return err
		}
		return editCluster(b, "oncegate_manager", func(c *clusterv3.Cluster) { c.TransportSocket = socket })
	}
}

// The gate calls a manager that asks for a certificate and a token.
func TestGateCallsTheManagerByTLS(t *testing.T) {
	ca := newIdentity(t, "ca", nil)
	gate := tlsFiles(t, newIdentity(t, "payments gate", ca), ca)
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		target.variable = tokenVariable + "=" + gateToken
		manager := tlsFiles(t, newIdentity(t, managerName, ca), ca)
		s := &stack{dir: t.TempDir(), target: target, mode: mode, plugin: tokenFromEnv()}
		s.settings = []string{
			"--tls-cert", filepath.Join(manager, "tls.crt"), "--tls-key", filepath.Join(manager, "tls.key"), "--client-ca", filepath.Join(manager, "ca.crt"),
			"--client-roles-file", tokenFile(t, "roles", "CN=\"payments gate\" gate\n"), "--auth-token-file", tokenFile(t, "tokens", gateToken+" gate\n"),
		}
		s.stopAtEnd(t)
		s.startManager(t)
		s.startPayments(t)
		s.bootstrap = both(edit(passOn), tlsCluster(gate))
		p := s.startProxy(t)
		key := newKey()
		first := wantFirst(t, p, pay(key), 201)
		wantReplay(t, p, pay(key), first)
		s.wantExecutions(t, key, 1)
		p.wantNothingDeprecated(t)
	})
}

// changeSocket changes the TLS of a cluster.
func changeSocket(c *clusterv3.Cluster, change func(*tlsv3.UpstreamTlsContext)) error {
	context := new(tlsv3.UpstreamTlsContext)
	config := c.GetTransportSocket().GetTypedConfig()
	if err := config.UnmarshalTo(context); err != nil {
		return err
	}
	change(context)
	return config.MarshalFrom(context)
}
