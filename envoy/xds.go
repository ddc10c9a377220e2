package envoy

import (
	"path"
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// The files of SplitXDS. Each can be replaced while Envoy runs, except the first.
const (
	XDSBootstrap = "envoy.yaml"
	XDSListeners = "listeners.yaml"
	XDSClusters  = "clusters.yaml"
	XDSRoutes    = "routes.yaml" // of both listeners
	XDSGate      = "gate.yaml"   // the filter with its configuration
)

// SplitXDS divides a static configuration into files that Envoy reads from dir and watches. A file is read again when
// any file is renamed into dir. The result has a message for each file; b stays as it is.
func SplitXDS(b *bootstrapv3.Bootstrap, dir string) (map[string]proto.Message, error) {
	b = proto.CloneOf(b)
	resources := b.GetStaticResources()
	files := map[string]proto.Message{XDSBootstrap: b}
	add := func(file string, m proto.Message) error {
		packed := new(anypb.Any)
		if err := anypb.MarshalFrom(packed, m, deterministic); err != nil {
			return err
		}
		response, ok := files[file].(*discoveryv3.DiscoveryResponse)
		if !ok {
			response = &discoveryv3.DiscoveryResponse{VersionInfo: "1"}
			files[file] = response
		}
		response.Resources = append(response.Resources, packed)
		return nil
	}
	source := func(file string) *corev3.ConfigSource {
		return &corev3.ConfigSource{
			ResourceApiVersion: corev3.ApiVersion_V3,
			ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{
				Path: path.Join(dir, file), WatchedDirectory: &corev3.WatchedDirectory{Path: dir},
			}},
		}
	}
	var routes *routev3.RouteConfiguration
	for _, l := range resources.GetListeners() {
		filter, hcm, err := connectionManager(l)
		if err != nil {
			return nil, err
		}
		gate := slices.IndexFunc(hcm.GetHttpFilters(), func(f *hcmv3.HttpFilter) bool { return f.GetTypedConfig().MessageIs((*wasmfilterv3.Wasm)(nil)) })
		if gate >= 0 {
			f := hcm.GetHttpFilters()[gate]
			if err := add(XDSGate, &corev3.TypedExtensionConfig{Name: f.GetName(), TypedConfig: f.GetTypedConfig()}); err != nil {
				return nil, err
			}
			f.ConfigType = &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: &corev3.ExtensionConfigSource{
				ConfigSource: source(XDSGate), TypeUrls: []string{f.GetTypedConfig().GetTypeUrl()},
			}}
			routes = hcm.GetRouteConfig()
			if err := add(XDSRoutes, routes); err != nil {
				return nil, err
			}
		}
		if proto.Equal(hcm.GetRouteConfig(), routes) {
			hcm.RouteSpecifier = &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: source(XDSRoutes), RouteConfigName: routes.GetName()}}
		}
		if err := anypb.MarshalFrom(filter.GetTypedConfig(), hcm, deterministic); err != nil {
			return nil, err
		}
		if err := add(XDSListeners, l); err != nil {
			return nil, err
		}
	}
	for _, c := range resources.GetClusters() {
		if err := add(XDSClusters, c); err != nil {
			return nil, err
		}
	}
	b.StaticResources = nil
	b.Node = &corev3.Node{Id: "oncegate-gate", Cluster: "oncegate"} // Envoy asks for names where it has dynamic resources
	b.DynamicResources = &bootstrapv3.Bootstrap_DynamicResources{LdsConfig: source(XDSListeners), CdsConfig: source(XDSClusters)}
	for _, m := range files {
		if err := Validate(m); err != nil {
			return nil, err
		}
	}
	return files, nil
}
