package envoy

import (
	"net"
	"strconv"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"

	// The extensions that managers.yaml names by type URL.
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
)

// SharedManager is one of several managers that share a store. Both addresses have the form IP:port, with the same IP.
type SharedManager struct{ API, Admin string }

// addShared adds what managers.yaml has, for these managers. The gate's cluster gets the listener as its endpoint.
func addShared(b *bootstrapv3.Bootstrap, listen string, managers []SharedManager) error {
	shared, err := LoadBootstrap("managers.yaml")
	if err != nil {
		return err
	}
	listener, cluster := shared.GetStaticResources().GetListeners()[0], shared.GetStaticResources().GetClusters()[0]
	if err := setAddress(listener.GetAddress(), listen); err != nil {
		return err
	}
	cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	group := cluster.GetLoadAssignment().GetEndpoints()[0]
	first := group.GetLbEndpoints()[0]
	group.LbEndpoints = nil
	for _, m := range managers {
		e := proto.CloneOf(first)
		if err := setAddress(e.GetEndpoint().GetAddress(), m.API); err != nil {
			return err
		}
		_, port, err := net.SplitHostPort(m.Admin)
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return err
		}
		e.GetEndpoint().GetHealthCheckConfig().PortValue = uint32(n)
		group.LbEndpoints = append(group.LbEndpoints, e)
	}
	b.StaticResources.Listeners = append(b.StaticResources.Listeners, listener)
	b.StaticResources.Clusters = append(b.StaticResources.Clusters, cluster)
	return setEndpoint(b, "oncegate_manager", listen)
}
