package envoy

import (
	"embed"
	"errors"
	"fmt"
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"sigs.k8s.io/yaml"

	// The extensions that the files name by type URL.
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/bootstrap/internal_listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
)

// Files are the configurations, by their paths in this folder.
//
//go:embed *.yaml istio/*.yaml
var Files embed.FS

// LoadBootstrap reads one of the static configurations and checks it with Validate.
func LoadBootstrap(name string) (*bootstrapv3.Bootstrap, error) {
	text, err := Files.ReadFile(name)
	if err != nil {
		return nil, err
	}
	b := new(bootstrapv3.Bootstrap)
	if err := unmarshalYAML(text, b); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := Validate(b); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

// Capabilities returns the list of capabilities.yaml, which belongs into the plugin's VM or, before Envoy 1.40, into the plugin.
func Capabilities() (*wasmv3.CapabilityRestrictionConfig, error) {
	text, err := Files.ReadFile("capabilities.yaml")
	if err != nil {
		return nil, err
	}
	vm := new(wasmv3.VmConfig)
	err = unmarshalYAML(text, vm)
	return vm.GetCapabilityRestrictionConfig(), err
}

// unmarshalYAML reads YAML into a message; unknown and repeated fields are errors.
func unmarshalYAML(text []byte, m proto.Message) error {
	json, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return err
	}
	return protojson.Unmarshal(json, m)
}

// Validate checks a message with the rules of Envoy's API. It also checks the messages packed into it, which Envoy's
// generated validators skip.
func Validate(m proto.Message) error {
	if v, ok := m.(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			return err
		}
	}
	return eachAny(m.ProtoReflect(), func(a *anypb.Any) error {
		inner, err := a.UnmarshalNew()
		if err != nil {
			return err
		}
		return Validate(inner)
	})
}

// eachAny calls f for every Any in m, but not for those inside another Any.
func eachAny(m protoreflect.Message, f func(*anypb.Any) error) error {
	if a, ok := m.Interface().(*anypb.Any); ok {
		return f(a)
	}
	var errs []error
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			if fd.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					errs = append(errs, eachAny(v.Message(), f))
					return true
				})
			}
		case fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				errs = append(errs, eachAny(v.List().Get(i).Message(), f))
			}
		default:
			errs = append(errs, eachAny(v.Message(), f))
		}
		return true
	})
	return errors.Join(errs...)
}

// Edit calls change with the connection manager and the Wasm plugin of the bootstrap's first listener, and stores the
// changed messages back. The only other listener may be the inner one. It gets the first one's routes, and the filters
// after the gate.
func Edit(b *bootstrapv3.Bootstrap, change func(hcm *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error) error {
	listeners := b.GetStaticResources().GetListeners()
	if len(listeners) != 1 && (len(listeners) != 2 || listeners[1].GetInternalListener() == nil) {
		return errors.New("envoy: want one listener, and at most an internal one after it")
	}
	filter, hcm, err := connectionManager(listeners[0])
	if err != nil {
		return err
	}
	var plugins int
	for _, f := range hcm.GetHttpFilters() {
		if !f.GetTypedConfig().MessageIs((*wasmfilterv3.Wasm)(nil)) {
			continue
		}
		plugins++
		wasm := new(wasmfilterv3.Wasm)
		if err := f.GetTypedConfig().UnmarshalTo(wasm); err != nil {
			return err
		}
		if err := change(hcm, wasm.GetConfig()); err != nil {
			return err
		}
		if err := anypb.MarshalFrom(f.GetTypedConfig(), wasm, deterministic); err != nil {
			return err
		}
	}
	if plugins != 1 {
		return fmt.Errorf("envoy: %d Wasm filters, want one", plugins)
	}
	if err := anypb.MarshalFrom(filter.GetTypedConfig(), hcm, deterministic); err != nil {
		return err
	}
	for _, l := range listeners[1:] {
		filter, inner, err := connectionManager(l)
		if err != nil {
			return err
		}
		inner.RouteSpecifier = hcm.GetRouteSpecifier()
		copyFilters(hcm, inner)
		if err := anypb.MarshalFrom(filter.GetTypedConfig(), inner, deterministic); err != nil {
			return err
		}
	}
	return nil
}

// copyFilters copies the filters between gate and router into the inner listener: requests that the gate carries do not pass
// them in the outer one.
func copyFilters(outer, inner *hcmv3.HttpConnectionManager) {
	gate := slices.IndexFunc(outer.GetHttpFilters(), func(f *hcmv3.HttpFilter) bool { return f.GetName() == "oncegate" })
	last := len(inner.GetHttpFilters()) - 1
	if gate < 0 || last < 0 {
		return
	}
	for _, f := range outer.GetHttpFilters()[gate+1 : len(outer.GetHttpFilters())-1] {
		if !slices.ContainsFunc(inner.GetHttpFilters(), func(g *hcmv3.HttpFilter) bool { return g.GetName() == f.GetName() }) {
			inner.HttpFilters = slices.Insert(inner.HttpFilters, last, f)
			last++
		}
	}
}

// connectionManager returns the only filter of a listener.
func connectionManager(l *listenerv3.Listener) (*listenerv3.Filter, *hcmv3.HttpConnectionManager, error) {
	if len(l.GetFilterChains()) != 1 || len(l.GetFilterChains()[0].GetFilters()) != 1 {
		return nil, nil, errors.New("envoy: want one filter chain of one filter in each listener")
	}
	filter := l.GetFilterChains()[0].GetFilters()[0]
	hcm := new(hcmv3.HttpConnectionManager)
	return filter, hcm, filter.GetTypedConfig().UnmarshalTo(hcm)
}

// deterministic makes protojson pack messages with maps in order.
var deterministic = proto.MarshalOptions{Deterministic: true}

// PluginJSON returns the gate's own configuration in the plugin's.
func PluginJSON(plugin *wasmv3.PluginConfig) ([]byte, error) {
	text := new(wrapperspb.StringValue)
	if err := plugin.GetConfiguration().UnmarshalTo(text); err != nil {
		return nil, err
	}
	return []byte(text.GetValue()), nil
}

// SetPluginJSON replaces the gate's own configuration.
func SetPluginJSON(plugin *wasmv3.PluginConfig, json []byte) error {
	return plugin.GetConfiguration().MarshalFrom(wrapperspb.String(string(json)))
}

// MarshalBootstrap renders a bootstrap as JSON, which `envoy --config-path` takes from
// a file whose name ends in .json.
func MarshalBootstrap(b *bootstrapv3.Bootstrap) ([]byte, error) {
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(b)
}
