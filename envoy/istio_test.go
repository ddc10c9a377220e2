package envoy

import (
	"encoding/json"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	networkingv1 "istio.io/api/networking/v1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"github.com/oncegate/oncegate/plugin/config"
)

// resource is a Kubernetes object around an Istio message.
type resource struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Spec json.RawMessage `json:"spec"`
}

// resources reads a file for Istio.
func resources(t *testing.T, name string) []resource {
	t.Helper()
	text, err := Files.ReadFile("istio/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return parseResources(t, name, text)
}

// parseResources reads a file's objects; nothing but the four fields may be in an object.
func parseResources(t *testing.T, name string, text []byte) []resource {
	t.Helper()
	var out []resource
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var r resource
		if err := yaml.UnmarshalStrict([]byte(doc), &r); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if r.Metadata.Name == "" || r.Metadata.Namespace == "" {
			t.Errorf("%s: %s without name or namespace", name, r.Kind)
		}
		out = append(out, r)
	}
	return out
}

// spec reads r's spec, strictly, when r is what is expected.
func spec[M proto.Message](t *testing.T, r resource, apiVersion, kind string, m M) M {
	t.Helper()
	if r.APIVersion != apiVersion || r.Kind != kind {
		t.Fatalf("%s %s, want %s %s", r.APIVersion, r.Kind, apiVersion, kind)
	}
	if err := protojson.Unmarshal(r.Spec, m); err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	return m
}

// managerCluster is Istio's name for a service's cluster.
func managerCluster(entry *networkingv1alpha3.ServiceEntry) string {
	return "outbound|8090||" + entry.GetHosts()[0]
}

func managerResources(t *testing.T) (*networkingv1alpha3.ServiceEntry, *networkingv1alpha3.DestinationRule, *networkingv1alpha3.VirtualService) {
	t.Helper()
	rs := resources(t, "manager.yaml")
	if len(rs) != 3 {
		t.Fatalf("%d resources, want 3", len(rs))
	}
	return spec(t, rs[0], "networking.istio.io/v1", "ServiceEntry", new(networkingv1.ServiceEntry)),
		spec(t, rs[1], "networking.istio.io/v1", "DestinationRule", new(networkingv1.DestinationRule)),
		spec(t, rs[2], "networking.istio.io/v1", "VirtualService", new(networkingv1.VirtualService))
}

// speaksHTTP2 reports whether a host's cluster has HTTP/2, and a connection for each stream.
func speaksHTTP2(rule *networkingv1alpha3.DestinationRule) bool {
	pool := rule.GetTrafficPolicy().GetConnectionPool().GetHttp()
	return pool.GetH2UpgradePolicy() == networkingv1alpha3.ConnectionPoolSettings_HTTPSettings_UPGRADE && pool.GetMaxRequestsPerConnection() == 1
}

func TestIstioReachesTheManager(t *testing.T) {
	entry, rule, routes := managerResources(t)
	if rule.GetHost() != entry.GetHosts()[0] || entry.GetPorts()[0].GetNumber() != 8090 {
		t.Errorf("the rule is for %q, the entry for %q port %d", rule.GetHost(), entry.GetHosts()[0], entry.GetPorts()[0].GetNumber())
	}
	if !speaksHTTP2(rule) {
		t.Errorf("the gate's streams need HTTP/2, and a connection each: %v", rule)
	}
	if lb := rule.GetTrafficPolicy().GetLoadBalancer(); lb.GetSimple() != networkingv1alpha3.LoadBalancerSettings_ROUND_ROBIN {
		t.Errorf("streams must not go again and again to a manager that was killed, as with %v", lb)
	}
	for _, r := range routes.GetHttp() {
		if r.GetRetries() == nil || r.GetRetries().GetAttempts() != 0 {
			t.Errorf("Istio's default retries are on: %v", r.GetRetries())
		}
	}
}

// The retry of a gRPC call goes to the manager, whatever other routes there are.
func TestIstioAnswersGRPC(t *testing.T) {
	rs := resources(t, "grpc.yaml")
	if len(rs) != 1 {
		t.Fatalf("%d resources, want 1", len(rs))
	}
	routes := spec(t, rs[0], "networking.istio.io/v1", "VirtualService", new(networkingv1.VirtualService)).GetHttp()
	answer, others := routes[0], routes[1:]
	if len(answer.GetMatch()) != 1 || answer.GetMatch()[0].GetUri().GetExact() != "/oncegate/answer" || answer.GetRewrite() != nil {
		t.Errorf("the first route matches %v, rewrites to %v", answer.GetMatch(), answer.GetRewrite())
	}
	entry, _, _ := managerResources(t)
	for _, to := range answer.GetRoute() {
		d := to.GetDestination()
		if d.GetHost() != entry.GetHosts()[0] || d.GetPort().GetNumber() != entry.GetPorts()[0].GetNumber() {
			t.Errorf("it leads to %v", d)
		}
	}
	for _, r := range others {
		if r.GetRetries() == nil || r.GetRetries().GetAttempts() != 0 {
			t.Errorf("Istio's default retries are on: %v", r.GetRetries())
		}
	}
}

// wasmConfig is what WasmPlugin and TrafficExtension have in common.
type wasmConfig interface {
	GetFailStrategy() extensionsv1alpha1.FailStrategy
	GetType() extensionsv1alpha1.PluginType
	GetPluginName() string
	GetPluginConfig() *structpb.Struct
}

func TestIstioWasmPlugin(t *testing.T) {
	rs := resources(t, "wasmplugin.yaml")
	if len(rs) != 1 {
		t.Fatalf("%d resources, want 1", len(rs))
	}
	checkWasm(t, spec(t, rs[0], "extensions.istio.io/v1alpha1", "WasmPlugin", new(extensionsv1alpha1.WasmPlugin)))
}

func TestIstioTrafficExtension(t *testing.T) {
	rs := resources(t, "traffic-extension.yaml")
	if len(rs) != 1 {
		t.Fatalf("%d resources, want 1", len(rs))
	}
	extension := spec(t, rs[0], "extensions.istio.io/v1alpha1", "TrafficExtension", new(extensionsv1alpha1.TrafficExtension))
	checkWasm(t, extension.GetWasm())
}

func checkWasm(t *testing.T, plugin wasmConfig) {
	t.Helper()
	entry, _, _ := managerResources(t)
	if plugin.GetFailStrategy() != extensionsv1alpha1.FailStrategy_FAIL_RELOAD || plugin.GetType() != extensionsv1alpha1.PluginType_HTTP {
		t.Errorf("%v, %v", plugin.GetFailStrategy(), plugin.GetType())
	}
	if want := pluginNames[config.ModeHeaders]; plugin.GetPluginName() != want {
		t.Errorf("pluginName %q, want %q", plugin.GetPluginName(), want)
	}
	// Istio hands the Struct on as JSON.
	text, err := protojson.Marshal(plugin.GetPluginConfig())
	if err != nil {
		t.Fatal(err)
	}
	cfg := parsePlugin(t, text, config.ModeHeaders, 0)
	if cfg.Manager.Shards[0] != managerCluster(entry) {
		t.Errorf("calls go to %q, the manager is %q", cfg.Manager.Shards[0], managerCluster(entry))
	}
}

func TestIstioBodyMode(t *testing.T) {
	entry, _, _ := managerResources(t)
	rs := resources(t, "body-mode.yaml")
	if len(rs) != 1 {
		t.Fatalf("%d resources, want 1", len(rs))
	}
	filter := spec(t, rs[0], "networking.istio.io/v1alpha3", "EnvoyFilter", new(networkingv1alpha3.EnvoyFilter))
	var (
		limit   int
		hcm     = new(hcmv3.HttpConnectionManager)
		removed = map[string]bool{}
		gate    *wasmfilterv3.Wasm
	)
	for i, p := range filter.GetConfigPatches() {
		text, err := protojson.Marshal(p.GetPatch().GetValue())
		if err != nil {
			t.Fatal(err)
		}
		read := func(m proto.Message) {
			if err := protojson.Unmarshal(text, m); err != nil {
				t.Fatalf("patch %d is not Envoy's: %v", i, err)
			}
		}
		switch p.GetApplyTo() {
		case networkingv1alpha3.EnvoyFilter_LISTENER:
			l := new(listenerv3.Listener)
			read(l)
			limit = int(l.GetPerConnectionBufferLimitBytes().GetValue())
		case networkingv1alpha3.EnvoyFilter_NETWORK_FILTER:
			f := new(listenerv3.Filter)
			read(f)
			if err := f.GetTypedConfig().UnmarshalTo(hcm); err != nil {
				t.Fatal(err)
			}
		case networkingv1alpha3.EnvoyFilter_HTTP_FILTER:
			f := new(hcmv3.HttpFilter)
			read(f)
			if err := Validate(f); err != nil {
				t.Fatalf("patch %d: %v", i, err)
			}
			if p.GetPatch().GetOperation() != networkingv1alpha3.EnvoyFilter_Patch_INSERT_BEFORE ||
				p.GetMatch().GetListener().GetFilterChain().GetFilter().GetSubFilter().GetName() != "envoy.filters.http.router" {
				t.Errorf("patch %d is not put before the router", i)
			}
			msg, err := f.GetTypedConfig().UnmarshalNew()
			if err != nil {
				t.Fatal(err)
			}
			switch m := msg.(type) {
			case *headermutationv3.HeaderMutation:
				for _, r := range m.GetMutations().GetRequestMutations() {
					removed[r.GetRemove()] = true
				}
			case *wasmfilterv3.Wasm:
				gate = m
			default:
				t.Errorf("patch %d: unexpected %T", i, m)
			}
		default:
			t.Errorf("patch %d applies to %v", i, p.GetApplyTo())
		}
	}
	checkRemoved(t, removed)
	if gate == nil {
		t.Fatal("no gate")
	}
	checkPlugin(t, gate.GetConfig(), config.ModeBody)
	text, err := PluginJSON(gate.GetConfig())
	if err != nil {
		t.Fatal(err)
	}
	if limit == 0 {
		t.Fatal("no buffer limit")
	}
	cfg := parsePlugin(t, text, config.ModeBody, limit)
	if cfg.Manager.Shards[0] != managerCluster(entry) {
		t.Errorf("calls go to %q, the manager is %q", cfg.Manager.Shards[0], managerCluster(entry))
	}
	checkHost(t, hcm)
	if pause := cfg.Route("POST", "/").PendingWait + cfg.Manager.Timeout; hcm.GetStreamIdleTimeout().AsDuration() <= pause {
		t.Errorf("stream_idle_timeout %v ends streams that wait regularly, up to %v", hcm.GetStreamIdleTimeout().AsDuration(), pause)
	}
}
