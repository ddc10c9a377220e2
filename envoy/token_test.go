package envoy

import (
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"github.com/oncegate/oncegate/plugin/config"
)

// tokenVariable is the environment variable that the files name.
const tokenVariable = "ONCEGATE_GATE_TOKEN"

// uncommented is a file without the marks of the comments that give the gate its token.
func uncommented(t *testing.T, name string) []byte {
	t.Helper()
	text, err := Files.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var marks []string
	for _, field := range []string{"environment_variables:", "auth_token_env:", "vmConfig:"} {
		marks = append(marks, "# "+field, field)
	}
	return []byte(strings.NewReplacer(marks...).Replace(string(text)))
}

// The comments about the token are right where they stand: without its mark, each gives the VM the variable.
func TestCommentsAboutTheToken(t *testing.T) {
	keys := func(name string, plugin *wasmv3.PluginConfig) {
		t.Helper()
		if got := plugin.GetVmConfig().GetEnvironmentVariables().GetHostEnvKeys(); !slices.Equal(got, []string{tokenVariable}) {
			t.Errorf("%s: the VM has %v", name, got)
		}
	}
	for _, name := range byMode {
		b := new(bootstrapv3.Bootstrap)
		if err := unmarshalYAML(uncommented(t, name), b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		err := Edit(b, func(_ *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
			keys(name, plugin)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}

	object := func(name, apiVersion, kind string, m proto.Message) {
		t.Helper()
		var r resource
		if err := yaml.UnmarshalStrict(uncommented(t, name), &r); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		spec(t, r, apiVersion, kind, m)
	}
	body := new(networkingv1alpha3.EnvoyFilter)
	object("istio/body-mode.yaml", "networking.istio.io/v1alpha3", "EnvoyFilter", body)
	text, err := protojson.Marshal(body.GetConfigPatches()[len(body.GetConfigPatches())-1].GetPatch().GetValue())
	if err != nil {
		t.Fatal(err)
	}
	filter, wasm := new(hcmv3.HttpFilter), new(wasmfilterv3.Wasm)
	if err := protojson.Unmarshal(text, filter); err != nil {
		t.Fatal(err)
	}
	if err := filter.GetTypedConfig().UnmarshalTo(wasm); err != nil {
		t.Fatal(err)
	}
	keys("istio/body-mode.yaml", wasm.GetConfig())

	plugin, extension := new(extensionsv1alpha1.WasmPlugin), new(extensionsv1alpha1.TrafficExtension)
	object("istio/wasmplugin.yaml", "extensions.istio.io/v1alpha1", "WasmPlugin", plugin)
	object("istio/traffic-extension.yaml", "extensions.istio.io/v1alpha1", "TrafficExtension", extension)
	for kind, p := range map[string]interface {
		GetVmConfig() *extensionsv1alpha1.VmConfig
		GetPluginConfig() *structpb.Struct
	}{"WasmPlugin": plugin, "TrafficExtension": extension.GetWasm()} {
		text, err := protojson.Marshal(p.GetPluginConfig())
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		env := p.GetVmConfig().GetEnv()
		if len(env) != 1 || env[0].GetName() != tokenVariable || env[0].GetValueFrom() != extensionsv1alpha1.EnvValueSource_HOST ||
			cfg.Manager.AuthTokenEnv != tokenVariable {
			t.Errorf("%s: the VM has %v, the gate takes %q", kind, env, cfg.Manager.AuthTokenEnv)
		}
	}
}
