package envoy

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/tetratelabs/wazero"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/oncegate/oncegate/plugin/config"
)

// static are the files for an Envoy without a control plane.
var static = map[string]config.Mode{
	"envoy.yaml":        config.ModeBody,
	"body-mode.yaml":    config.ModeBody,
	"headers-mode.yaml": config.ModeHeaders,
}

func eachStatic(t *testing.T, f func(t *testing.T, mode config.Mode, b *bootstrapv3.Bootstrap, hcm *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig)) {
	for name, mode := range static {
		t.Run(name, func(t *testing.T) {
			b, err := LoadBootstrap(name)
			if err != nil {
				t.Fatal(err)
			}
			err = Edit(b, func(hcm *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
				f(t, mode, b, hcm, plugin)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// parsePlugin reads a filter configuration with the filter's own parser and checks it
// against the mode and what the proxy around it allows.
func parsePlugin(t *testing.T, json []byte, mode config.Mode, bufferLimit int) *config.Config {
	t.Helper()
	cfg, err := config.Parse(json)
	if err != nil {
		t.Fatalf("the filter refuses its configuration: %v\n%s", err, json)
	}
	route := cfg.Route("POST", "/payments")
	if route == nil {
		t.Fatal("POST /payments is not protected")
	}
	if route.Mode != mode {
		t.Errorf("mode %v, want %v", route.Mode, mode)
	}
	if bufferLimit > 0 && (route.MaxRequestBody >= bufferLimit || route.MaxResponseBody >= bufferLimit) {
		t.Errorf("bodies of %d and %d bytes do not fit into a buffer of %d", route.MaxRequestBody, route.MaxResponseBody, bufferLimit)
	}
	return cfg
}

func checkPlugin(t *testing.T, p *wasmv3.PluginConfig, mode config.Mode) {
	t.Helper()
	if !p.GetAllowOnHeadersStopIteration().GetValue() {
		t.Error("allow_on_headers_stop_iteration is missing")
	}
	//lint:ignore SA1019 that is what is checked
	if p.GetCapabilityRestrictionConfig() != nil {
		t.Error("Envoy 1.40 warns of capability_restriction_config here")
	}
	if p.GetFailurePolicy() != wasmv3.FailurePolicy_FAIL_RELOAD {
		t.Errorf("failure_policy is %v", p.GetFailurePolicy())
	}
	if p.GetVmConfig().GetRuntime() != "envoy.wasm.runtime.v8" {
		t.Errorf("runtime is %q", p.GetVmConfig().GetRuntime())
	}
	// Some Envoys take two filters with the same names for one.
	for _, name := range []string{p.GetName(), p.GetRootId(), p.GetVmConfig().GetVmId()} {
		if want := pluginNames[mode]; name != want {
			t.Errorf("name %q, root_id %q, vm_id %q: want %q", p.GetName(), p.GetRootId(), p.GetVmConfig().GetVmId(), want)
			break
		}
	}
}

func TestCapabilitiesAreTheModules(t *testing.T) {
	list, err := Capabilities()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(capabilities(t), slices.Sorted(maps.Keys(list.GetAllowedCapabilities()))); diff != "" {
		t.Errorf("the module's capabilities and those that are allowed (+) differ:\n%s", diff)
	}
}

var pluginNames = map[config.Mode]string{config.ModeBody: "oncegate-body", config.ModeHeaders: "oncegate-headers"}

// capabilities are what the shipped module imports, and the callbacks that it has for HTTP filters. Envoy always allows
// the allocator.
func capabilities(t *testing.T) []string {
	t.Helper()
	module, err := os.ReadFile("../build/oncegate.wasm")
	if err != nil {
		t.Fatalf("the gate cannot be read (run: make build/oncegate.wasm): %v", err)
	}
	rt := wazero.NewRuntimeWithConfig(t.Context(), wazero.NewRuntimeConfigInterpreter())
	defer rt.Close(t.Context())
	compiled, err := rt.CompileModule(t.Context(), module)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range compiled.ImportedFunctions() {
		_, name, _ := f.Import()
		names = append(names, name)
	}
	for name := range compiled.ExportedFunctions() {
		switch name {
		case "proxy_on_memory_allocate",
			// The SDK's, for TCP filters.
			"proxy_on_new_connection", "proxy_on_downstream_data", "proxy_on_upstream_data",
			"proxy_on_downstream_connection_close", "proxy_on_upstream_connection_close":
		default:
			if strings.HasPrefix(name, "proxy_on_") {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// checkHost checks that routes and upstream see a host as the gate's scope does.
func checkHost(t *testing.T, hcm *hcmv3.HttpConnectionManager) {
	t.Helper()
	if !hcm.GetStripAnyHostPort() || !hcm.GetStripTrailingHostDot() {
		t.Errorf("hosts keep their port or trailing dot: %v, %v", hcm.GetStripPortMode(), hcm.GetStripTrailingHostDot())
	}
}

func TestThePluginAndWhatIsAroundIt(t *testing.T) {
	eachStatic(t, func(t *testing.T, mode config.Mode, b *bootstrapv3.Bootstrap, hcm *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) {
		checkPlugin(t, plugin, mode)
		json, err := PluginJSON(plugin)
		if err != nil {
			t.Fatal(err)
		}
		cfg := parsePlugin(t, json, mode, int(b.StaticResources.Listeners[0].GetPerConnectionBufferLimitBytes().GetValue()))
		pause := cfg.Route("POST", "/payments").PendingWait + cfg.Manager.Timeout
		if idle := hcm.GetStreamIdleTimeout().AsDuration(); idle <= pause {
			t.Errorf("stream_idle_timeout %v ends streams that wait regularly, up to %v", idle, pause)
		}
		checkHost(t, hcm)
		manager := clusterOf(b, cfg.Manager.Shards[0])
		if manager == nil {
			t.Fatalf("no cluster %q for the filter's calls", cfg.Manager.Shards[0])
		}
		if len(cfg.Manager.Shards) != 1 || cfg.Manager.Named || len(manager.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()) != 1 {
			t.Error("the manager is not the only one")
		}
		if n := manager.GetCircuitBreakers().GetThresholds()[0].GetMaxConnections().GetValue(); n < 1024 {
			t.Errorf("%d connections to the manager are too few for calls that wait", n)
		}
		if connect := manager.GetConnectTimeout().AsDuration(); connect >= cfg.Manager.Timeout {
			t.Errorf("connecting may take %v, a whole call only %v", connect, cfg.Manager.Timeout)
		}
	})
}

// Nothing after the gate may send a request twice.
func TestNoRetriesBehindTheGate(t *testing.T) {
	eachStatic(t, func(t *testing.T, _ config.Mode, b *bootstrapv3.Bootstrap, hcm *hcmv3.HttpConnectionManager, _ *wasmv3.PluginConfig) {
		for _, host := range hcm.GetRouteConfig().GetVirtualHosts() {
			if host.GetRetryPolicy() != nil || host.GetHedgePolicy() != nil {
				t.Errorf("virtual host %q retries", host.GetName())
			}
			for _, r := range host.GetRoutes() {
				action := r.GetRoute()
				if action.GetRetryPolicy() != nil || action.GetHedgePolicy() != nil {
					t.Errorf("route %v retries", r.GetMatch())
				}
				if action.GetInternalRedirectPolicy() != nil {
					t.Errorf("route %v follows redirects through the gate", r.GetMatch())
				}
				if r.GetDirectResponse() == nil && clusterOf(b, action.GetCluster()) == nil {
					t.Errorf("no cluster %q", action.GetCluster())
				}
			}
		}
		var order []string
		removed := map[string]bool{}
		for _, f := range hcm.GetHttpFilters() {
			msg, err := f.GetTypedConfig().UnmarshalNew()
			if err != nil {
				t.Fatal(err)
			}
			switch m := msg.(type) {
			case *headermutationv3.HeaderMutation:
				order = append(order, "mutation")
				for _, r := range m.GetMutations().GetRequestMutations() {
					removed[r.GetRemove()] = true
				}
			case *wasmfilterv3.Wasm:
				order = append(order, "gate")
			case *routerv3.Router:
				order = append(order, "router")
			}
		}
		if got := strings.Join(order, " "); got != "mutation gate router" {
			t.Errorf("filters in the order %q", got)
		}
		checkRemoved(t, removed)
	})
}

// checkRemoved checks that clients cannot ask for retries.
func checkRemoved(t *testing.T, removed map[string]bool) {
	t.Helper()
	for _, name := range []string{"x-envoy-retry-on", "x-envoy-retry-grpc-on", "x-envoy-max-retries", "x-envoy-hedge-on-per-try-timeout"} {
		if !removed[name] {
			t.Errorf("clients can send %s", name)
		}
	}
}

func clusterOf(b *bootstrapv3.Bootstrap, name string) *clusterv3.Cluster {
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() == name {
			return c
		}
	}
	return nil
}

// The checks above are worth something only if mistakes are found, also deep inside.
func TestMistakesAreFound(t *testing.T) {
	text, err := Files.ReadFile("body-mode.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ old, new, want string }{
		{"stat_prefix: ingress", "stat_prefix: ''", "StatPrefix"},
		{"runtime: envoy.wasm.runtime.v8", "run_time: envoy.wasm.runtime.v8", "run_time"},
		{"failure_policy: FAIL_RELOAD", "failure_policy: FAIL_SOMEHOW", "FAIL_SOMEHOW"},
		{"port_value: 9901", "port_value: 99010", "PortValue"},
		{"base_interval: 1s", "base_interval: 0s", "BaseInterval"},
		{"connect_timeout: 2s", "connect_timeout: 2s\n    connect_timeout: 3s", "connect_timeout"},
		{"x-envoy-max-retries", `"a\nb"`, "Remove"},
	} {
		broken := strings.Replace(string(text), tc.old, tc.new, 1)
		b := new(bootstrapv3.Bootstrap)
		err := unmarshalYAML([]byte(broken), b)
		if err == nil {
			err = Validate(b)
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v; want it to name %s", tc.new, err, tc.want)
		}
	}
}

// Edit changes what it says and nothing else, and the result can be written.
func TestEditAndMarshal(t *testing.T) {
	b, err := LoadBootstrap("body-mode.yaml")
	if err != nil {
		t.Fatal(err)
	}
	before := proto.Clone(b)
	nothing := func(*hcmv3.HttpConnectionManager, *wasmv3.PluginConfig) error { return nil }
	if err := Edit(b, nothing); err != nil || !proto.Equal(before, b) {
		t.Errorf("editing nothing changed something (%v)", err)
	}
	err = Edit(b, func(hcm *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
		hcm.StreamIdleTimeout = durationpb.New(1)
		return SetPluginJSON(plugin, []byte(`{"mode":"body"}`))
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := MarshalBootstrap(b)
	if err != nil {
		t.Fatal(err)
	}
	again := new(bootstrapv3.Bootstrap)
	if err := unmarshalYAML(text, again); err != nil {
		t.Fatal(err)
	}
	err = Edit(again, func(hcm *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
		json, err := PluginJSON(plugin)
		if string(json) != `{"mode":"body"}` || hcm.GetStreamIdleTimeout().GetNanos() != 1 {
			t.Errorf("%s, %v", json, hcm.GetStreamIdleTimeout())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
