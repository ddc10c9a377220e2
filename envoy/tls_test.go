package envoy

import (
	"testing"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
)

// The cluster with TLS is the published one otherwise, and checks the name that it asks for.
func TestTLSClusterMatchesTheStaticFiles(t *testing.T) {
	b, err := LoadBootstrap("tls.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c := clusterOf(b, "oncegate_manager")
	for _, name := range byMode {
		whole, err := LoadBootstrap(name)
		if err != nil {
			t.Fatal(err)
		}
		like := proto.CloneOf(clusterOf(whole, "oncegate_manager"))
		like.TransportSocket, like.LoadAssignment = c.GetTransportSocket(), c.GetLoadAssignment()
		if !proto.Equal(like, c) {
			t.Errorf("not like the cluster in %s:\n%v\n%v", name, c, like)
		}
	}
	context := new(tlsv3.UpstreamTlsContext)
	if err := c.GetTransportSocket().GetTypedConfig().UnmarshalTo(context); err != nil {
		t.Fatal(err)
	}
	validation := context.GetCommonTlsContext().GetValidationContext()
	names := validation.GetMatchTypedSubjectAltNames()
	host := c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress().GetAddress()
	if validation.GetTrustedCa() == nil || context.GetSni() != host || len(names) != 1 || names[0].GetMatcher().GetExact() != host {
		t.Errorf("the manager is %s, Envoy asks for %s and takes %v", host, context.GetSni(), validation)
	}
}
