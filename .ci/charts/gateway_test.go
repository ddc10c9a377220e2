package charts

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	egv1a1 "github.com/envoyproxy/gateway/api/v1alpha1"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"github.com/oncegate/oncegate/envoy"
	"github.com/oncegate/oncegate/plugin/config"
)

// gatewayFile has the objects of envoy/gateway/oncegate.yaml.
type gatewayFile struct {
	proxy              egv1a1.EnvoyProxy
	managers, bodyMode egv1a1.EnvoyPatchPolicy
	policy             egv1a1.EnvoyExtensionPolicy
	traffic            egv1a1.ClientTrafficPolicy
	// cfg is the gate's configuration, as Envoy Gateway hands it on.
	cfg *config.Config
}

func readGatewayFile(t *testing.T) *gatewayFile {
	t.Helper()
	text, err := os.ReadFile("../../envoy/gateway/oncegate.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f := new(gatewayFile)
	to := []any{&f.proxy, &f.managers, &f.policy, &f.traffic, &f.bodyMode}
	docs := strings.Split(string(text), "\n---\n")
	if len(docs) != len(to) {
		t.Fatalf("%d objects, want %d", len(docs), len(to))
	}
	for i, doc := range docs {
		if err := yaml.UnmarshalStrict([]byte(doc), to[i]); err != nil {
			t.Fatal(err)
		}
	}
	if len(f.policy.Spec.Wasm) != 1 {
		t.Fatalf("%d filters", len(f.policy.Spec.Wasm))
	}
	if f.cfg, err = config.Parse(f.policy.Spec.Wasm[0].Config.Raw); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestGatewayReachesTheManagers: each shard that the gate names has a cluster, which leads to the chart's pod of that name.
func TestGatewayReachesTheManagers(t *testing.T) {
	f := readGatewayFile(t)
	var names []string
	for _, p := range f.managers.Spec.JSONPatches {
		cluster := new(clusterv3.Cluster)
		if err := protojson.Unmarshal(p.Operation.Value.Raw, cluster); err != nil {
			t.Fatal(err)
		}
		if err := envoy.Validate(cluster); err != nil {
			t.Error(err)
		}
		endpoint := cluster.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress()
		if p.Type != egv1a1.ClusterEnvoyResourceType || p.Operation.Op != "add" || *p.Operation.Path != "" || p.Name != cluster.GetName() ||
			cluster.GetLoadAssignment().GetClusterName() != p.Name {
			t.Errorf("%s: is not added as a cluster of that name", p.Name)
		}
		if endpoint.GetAddress() != p.Name+".oncegate-manager.oncegate.svc.cluster.local" || endpoint.GetPortValue() != 8090 {
			t.Errorf("%s leads to %v", p.Name, endpoint)
		}
		names = append(names, p.Name)
	}
	if diff := cmp.Diff(f.cfg.Manager.Shards, names); diff != "" {
		t.Errorf("the gate's shards and the clusters (+) differ:\n%s", diff)
	}
	// The same names as the chart's, if it is installed as docs/kubernetes.md says.
	c := objects(t, map[string]any{"fullnameOverride": "oncegate-manager"})
	if !strings.Contains(strings.Join(c, "\n"), "--shards="+strings.Join(names, ",")+`"`) {
		t.Errorf("the chart has other shards than %v", names)
	}
}

// TestGatewayAroundTheGate: limits and headers agree with what the gate needs.
func TestGatewayAroundTheGate(t *testing.T) {
	f := readGatewayFile(t)
	if wasm := f.policy.Spec.Wasm[0]; *wasm.Name != "oncegate-body" || *wasm.RootID != *wasm.Name || *wasm.FailOpen {
		t.Errorf("%+v", wasm)
	}
	route, traffic := f.cfg.Route("POST", "/"), f.traffic.Spec
	if route == nil || route.Mode != config.ModeBody {
		t.Fatalf("POST / is not protected in body mode: %+v", route)
	}
	if limit := traffic.Connection.BufferLimit.Value(); limit < int64(max(route.MaxRequestBody, route.MaxResponseBody)) {
		t.Errorf("Envoy buffers %d bytes", limit)
	}
	if got := string(*traffic.Timeout.HTTP.StreamIdleTimeout); got != "60s" || route.PendingWait+f.cfg.Manager.Timeout >= 60e9 {
		t.Errorf("streams end after %s, waiting takes up to %v", got, route.PendingWait+f.cfg.Manager.Timeout)
	}
	for _, h := range []string{"x-envoy-retry-on", "x-envoy-retry-grpc-on", "x-envoy-max-retries", "x-envoy-hedge-on-per-try-timeout"} {
		if !slices.Contains(traffic.Headers.EarlyRequestHeaders.Remove, h) {
			t.Errorf("%s stays", h)
		}
	}
}

// TestGatewayToken: the gate takes its token from the variable that the EnvoyProxy sets.
func TestGatewayToken(t *testing.T) {
	f := readGatewayFile(t)
	wasm, env := f.policy.Spec.Wasm[0], f.proxy.Spec.Provider.Kubernetes.EnvoyDeployment.Container.Env
	name := f.cfg.Manager.AuthTokenEnv
	if name == "" || wasm.Env == nil || !slices.Equal(wasm.Env.HostKeys, []string{name}) || len(env) != 1 || env[0].Name != name ||
		env[0].ValueFrom.SecretKeyRef.Key != name {
		t.Errorf("the gate takes %q, the filter sees %+v, the proxies have %+v", name, wasm.Env, env)
	}
	if namespace := f.policy.Namespace; f.proxy.Namespace != namespace {
		t.Errorf("the EnvoyProxy is in %s, the Gateway in %s", f.proxy.Namespace, namespace)
	}
}

// TestGatewayBodyMode applies the patches to what Envoy Gateway writes as a filter's config, and compares with envoy/body-mode.yaml.
func TestGatewayBodyMode(t *testing.T) {
	// Envoy Gateway names a filter after its policy, in another way with XDSNameSchemeV2 and with its file provider. The root_id is ours.
	const filter = "..http_filters[?(@.typed_config.config.root_id=='oncegate-body')].typed_config.config"
	plugin := map[string]json.RawMessage{"name": json.RawMessage(`"oncegate-body"`), "fail_open": json.RawMessage("false")}
	for _, p := range readGatewayFile(t).bodyMode.Spec.JSONPatches {
		if p.Type != egv1a1.ListenerEnvoyResourceType || p.Operation.Op != "add" ||
			*p.Operation.JSONPath != filter {
			t.Errorf("%s: %+v", p.Name, p.Operation)
		}
		plugin[*p.Operation.Path] = p.Operation.Value.Raw
	}
	text, err := json.Marshal(plugin)
	if err != nil {
		t.Fatal(err)
	}
	got := new(wasmv3.PluginConfig)
	if err := protojson.Unmarshal(text, got); err != nil {
		t.Fatal(err)
	}
	b, err := envoy.LoadBootstrap("body-mode.yaml")
	if err != nil {
		t.Fatal(err)
	}
	err = envoy.Edit(b, func(_ *hcmv3.HttpConnectionManager, want *wasmv3.PluginConfig) error {
		if got.GetFailurePolicy() != want.GetFailurePolicy() || !got.GetAllowOnHeadersStopIteration().GetValue() ||
			got.GetReloadConfig().String() != want.GetReloadConfig().String() {
			t.Errorf("got %v, want %v", got, want)
		}
		//lint:ignore SA1019 that is what is checked
		if got.GetCapabilityRestrictionConfig() != nil {
			t.Error("Envoy 1.40 warns of capability_restriction_config here")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
