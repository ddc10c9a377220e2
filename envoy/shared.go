package envoy

import (
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"
)

// SharedManager is one of several managers that share a store. Both addresses have the form IP:port, with the same IP.
type SharedManager struct{ API, Admin string }

// addShared replaces the gate's cluster by that of managers.yaml, for these managers.
func addShared(b *bootstrapv3.Bootstrap, managers []SharedManager) error {
	shared, err := LoadBootstrap("managers.yaml")
	if err != nil {
		return err
	}
	cluster := shared.GetStaticResources().GetClusters()[0]
	cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	group := cluster.GetLoadAssignment().GetEndpoints()[0]
	first := group.GetLbEndpoints()[0]
	group.LbEndpoints = nil
	for _, m := range managers {
		e := proto.CloneOf(first)
		if err := setAddress(e.GetEndpoint().GetAddress(), m.API); err != nil {
			return err
		}
		admin, err := parseAddress(m.Admin)
		if err != nil {
			return err
		}
		e.GetEndpoint().GetHealthCheckConfig().PortValue = uint32(admin.Port())
		group.LbEndpoints = append(group.LbEndpoints, e)
	}
	replaceManager(b, cluster)
	return nil
}

// replaceManager replaces the cluster oncegate_manager by others.
func replaceManager(b *bootstrapv3.Bootstrap, by ...*clusterv3.Cluster) {
	b.StaticResources.Clusters = append(slices.DeleteFunc(b.GetStaticResources().GetClusters(), func(c *clusterv3.Cluster) bool {
		return c.GetName() == "oncegate_manager"
	}), by...)
}
