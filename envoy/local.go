package envoy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
)

// Local is a static configuration with other addresses and another path of the module. Everything else is as published.
type Local struct {
	// Mode is "body" for body-mode.yaml, "headers" for headers-mode.yaml.
	Mode string
	// Listen and Admin are the addresses that Envoy listens on, as IP:port; port 0 takes a free one.
	Listen, Admin string
	// Upstream and Manager are the only endpoints of the clusters upstream and oncegate_manager, as IP:port.
	Upstream, Manager string
	// Managers are further clusters like oncegate_manager, by name, with their only endpoints: the managers of shards.
	Managers map[string]string
	// Shared are managers that share a store, as in managers.yaml, instead of Manager.
	Shared []SharedManager
	// Module is the path of oncegate.wasm.
	Module string
	// Plugin has fields of the gate's configuration that replace the published ones.
	Plugin map[string]any
	// Edit changes the rest; nil for no change.
	Edit func(*hcmv3.HttpConnectionManager) error
}

// byMode names the file of each mode.
var byMode = map[string]string{"body": "body-mode.yaml", "headers": "headers-mode.yaml"}

func load(mode string) (*bootstrapv3.Bootstrap, error) {
	name := byMode[mode]
	if name == "" {
		return nil, fmt.Errorf("the mode is %q, it must be body or headers", mode)
	}
	return LoadBootstrap(name)
}

// PluginConfig returns the gate's configuration as published for a mode, with some fields replaced, as JSON.
func PluginConfig(mode string, fields map[string]any) (text []byte, err error) {
	b, err := load(mode)
	if err != nil {
		return nil, err
	}
	err = Edit(b, func(_ *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
		text, err = merge(plugin, fields)
		return err
	})
	return text, err
}

func merge(plugin *wasmv3.PluginConfig, fields map[string]any) ([]byte, error) {
	text, err := PluginJSON(plugin)
	if err != nil {
		return nil, err
	}
	merged := map[string]any{}
	if err := json.Unmarshal(text, &merged); err != nil {
		return nil, err
	}
	maps.Copy(merged, fields)
	return json.Marshal(merged)
}

// Bootstrap returns the configuration as JSON, which `envoy --config-path` accepts from a file whose name ends in
// .json.
func (l Local) Bootstrap() ([]byte, error) {
	b, err := load(l.Mode)
	if err != nil {
		return nil, err
	}
	if err := setAddress(b.GetAdmin().GetAddress(), l.Admin); err != nil {
		return nil, err
	}
	if err := setAddress(b.GetStaticResources().GetListeners()[0].GetAddress(), l.Listen); err != nil {
		return nil, err
	}
	upstream, manager := cluster(b, "upstream"), cluster(b, "oncegate_manager")
	for name, address := range l.Managers {
		c := proto.CloneOf(manager)
		c.Name, c.LoadAssignment.ClusterName = name, name
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, c)
		if err := setEndpoint(c, address); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(setEndpoint(upstream, l.Upstream), setEndpoint(manager, l.Manager)); err != nil {
		return nil, err
	}
	err = Edit(b, func(hcm *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
		plugin.GetVmConfig().GetCode().GetLocal().Specifier = &corev3.DataSource_Filename{Filename: l.Module}
		text, err := merge(plugin, l.Plugin)
		if err != nil {
			return err
		}
		if l.Edit != nil {
			if err := l.Edit(hcm); err != nil {
				return err
			}
		}
		return SetPluginJSON(plugin, text)
	})
	if err != nil {
		return nil, err
	}
	if len(l.Shared) > 0 {
		if err := addShared(b, l.Shared); err != nil {
			return nil, err
		}
	}
	if err := Validate(b); err != nil {
		return nil, err
	}
	return MarshalBootstrap(b)
}

func parseAddress(address string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		err = fmt.Errorf("the address %q must be IP:port: %w", address, err)
	}
	return at, err
}

func setAddress(a *corev3.Address, address string) error {
	at, err := parseAddress(address)
	if err != nil {
		return err
	}
	s := a.GetSocketAddress()
	s.Address, s.PortSpecifier = at.Addr().String(), &corev3.SocketAddress_PortValue{PortValue: uint32(at.Port())}
	return nil
}

// cluster returns a cluster that the published configurations have.
func cluster(b *bootstrapv3.Bootstrap, name string) *clusterv3.Cluster {
	all := b.GetStaticResources().GetClusters()
	return all[slices.IndexFunc(all, func(c *clusterv3.Cluster) bool { return c.GetName() == name })]
}

// setEndpoint gives a cluster its only endpoint, an IP that needs no DNS.
func setEndpoint(c *clusterv3.Cluster, address string) error {
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	return setAddress(c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress(), address)
}
