package envoy

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	networkingv1 "istio.io/api/networking/v1"

	"github.com/oncegate/oncegate/envoy/envoybin"
	"github.com/oncegate/oncegate/plugin/config"
)

// comment returns the lines of a file's comments without their mark.
func comment(t *testing.T, name string) string {
	t.Helper()
	text, err := Files.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if c, ok := strings.CutPrefix(strings.TrimSpace(line), "#"); ok {
			lines = append(lines, strings.TrimSpace(c))
		}
	}
	return strings.Join(lines, "\n")
}

// shardsFile is the file, and the names of the clusters in it.
func shardsFile(t *testing.T) (b *bootstrapv3.Bootstrap, names []string) {
	t.Helper()
	b, err := LoadBootstrap("shards.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range b.GetStaticResources().GetClusters() {
		names = append(names, c.GetName())
	}
	return b, names
}

// Each shard's cluster is the published one's like, with one endpoint; what the comments say to write is
// what the filter and the managers take.
func TestShardClustersMatchTheFilter(t *testing.T) {
	b, names := shardsFile(t)
	for _, name := range byMode {
		whole, err := LoadBootstrap(name)
		if err != nil {
			t.Fatal(err)
		}
		one := clusterOf(whole, "oncegate_manager")
		for _, c := range b.GetStaticResources().GetClusters() {
			like := proto.CloneOf(one)
			like.Name, like.LoadAssignment = c.GetName(), c.GetLoadAssignment()
			if !proto.Equal(like, c) {
				t.Errorf("%s is not like %s in %s:\n%v\n%v", c.GetName(), one.GetName(), name, c, like)
			}
			endpoints := c.GetLoadAssignment().GetEndpoints()
			if c.GetLoadAssignment().GetClusterName() != c.GetName() || len(endpoints) != 1 || len(endpoints[0].GetLbEndpoints()) != 1 {
				t.Errorf("%s is not one manager's: %v", c.GetName(), c.GetLoadAssignment())
			}
		}
	}
	text := comment(t, "shards.yaml")
	_, field, ok := strings.Cut(text, `"manager": `)
	field, _, _ = strings.Cut(field, "\n")
	cfg, err := config.Parse([]byte(`{"manager": ` + field + `}`))
	if !ok || err != nil || !slices.Equal(cfg.Manager.Shards, names) {
		t.Errorf("the filter's configuration is %s (%v), the clusters are %v", field, err, names)
	}
	for _, name := range names {
		if line := "--shard " + name + " --shards " + strings.Join(names, ","); !strings.Contains(text, line) {
			t.Errorf("no manager is started with %s", line)
		}
	}
}

// useShards replaces the manager by the shards.
func useShards(t *testing.T, b *bootstrapv3.Bootstrap) error {
	t.Helper()
	shards, names := shardsFile(t)
	replaceManager(b, shards.GetStaticResources().GetClusters()...)
	return Edit(b, func(_ *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
		text, err := merge(plugin, map[string]any{"manager": map[string]any{"shards": names, "timeout_ms": 5000}})
		if err != nil {
			return err
		}
		var lines bytes.Buffer
		if err := json.Indent(&lines, append(text, '\n'), "", "  "); err != nil {
			return err
		}
		return SetPluginJSON(plugin, lines.Bytes())
	})
}

// A real Envoy takes both files with the shards instead of the manager.
func TestShardsInARealEnvoy(t *testing.T) {
	found, missing, err := envoybin.ForTests(t.Context(), filepath.Join("..", "build", "toolchain"))
	if err != nil {
		t.Fatal(err)
	}
	if len(missing) > 0 {
		if envoybin.Required() {
			t.Fatal("missing: ", missing)
		}
		t.Log("missing: ", missing)
	}
	module, err := filepath.Abs("../build/oncegate.wasm")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range byMode {
		b, err := LoadBootstrap(name)
		if err != nil {
			t.Fatal(err)
		}
		err = useShards(t, b)
		if err == nil {
			err = Edit(b, func(_ *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
				plugin.GetVmConfig().GetCode().GetLocal().Specifier = &corev3.DataSource_Filename{Filename: module}
				return nil
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := MarshalBootstrap(b)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "envoy.json")
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		for _, e := range found {
			if out, err := exec.CommandContext(t.Context(), e.Path, "--mode", "validate", "--config-path", file).CombinedOutput(); err != nil {
				t.Errorf("%s, %s: %v\n%s", name, e.Name(), err, out)
			}
		}
	}
}

// istioNames are the names that Istio gives to the clusters of the shards.
func istioNames(t *testing.T) (names []string, set resource) {
	t.Helper()
	rules := map[string]bool{}
	for _, r := range resources(t, "shards.yaml") {
		switch r.Kind {
		case "ServiceEntry":
			entry := spec(t, r, "networking.istio.io/v1", "ServiceEntry", new(networkingv1.ServiceEntry))
			names = append(names, managerCluster(entry))
			if len(entry.GetHosts()) != 1 || len(entry.GetPorts()) != 1 || entry.GetPorts()[0].GetNumber() != 8090 {
				t.Errorf("%v is not one manager's", entry)
			}
		case "DestinationRule":
			rule := spec(t, r, "networking.istio.io/v1", "DestinationRule", new(networkingv1.DestinationRule))
			rules["outbound|8090||"+rule.GetHost()] = true
			if p := rule.GetTrafficPolicy(); p.GetOutlierDetection() != nil || !speaksHTTP2(rule) {
				t.Errorf("%v", rule)
			}
		case "StatefulSet":
			set = r
		case "Service":
			var s struct {
				ClusterIP                string `json:"clusterIP"`
				PublishNotReadyAddresses bool   `json:"publishNotReadyAddresses"`
			}
			if err := json.Unmarshal(r.Spec, &s); err != nil || s.ClusterIP != "None" || !s.PublishNotReadyAddresses {
				t.Errorf("the pods' names come and go: %+v, %v", s, err)
			}
		default:
			t.Errorf("unexpected %s", r.Kind)
		}
	}
	for _, name := range names {
		if !rules[name] {
			t.Errorf("no rule for %s", name)
		}
	}
	return names, set
}

// In Istio the pods have the names that the filter's configuration lists.
func TestIstioPodsHaveTheNamesOfShards(t *testing.T) {
	names, set := istioNames(t)
	var s struct {
		Replicas int `json:"replicas"`
		Template struct {
			Spec struct {
				SecurityContext struct {
					User  int `json:"runAsUser"`
					Group int `json:"fsGroup"`
				} `json:"securityContext"`
				Containers []struct {
					Args []string `json:"args"`
				} `json:"containers"`
			} `json:"spec"`
		} `json:"template"`
	}
	if err := json.Unmarshal(set.Spec, &s); err != nil {
		t.Fatal(err)
	}
	args := s.Template.Spec.Containers[0].Args
	if s.Replicas != len(names) || !slices.Contains(args, "--shards="+strings.Join(names, ",")) {
		t.Errorf("%d replicas with %v for %v", s.Replicas, args, names)
	}
	// A volume belongs to root unless the pod says otherwise.
	if c, user := s.Template.Spec.SecurityContext, 65532; c.User != user || c.Group != user {
		t.Errorf("the image's user %d cannot write to the volume: %+v", user, c)
	}
	for i, name := range names {
		pod := set.Metadata.Name + "-" + strconv.Itoa(i)
		if !slices.ContainsFunc(args, func(a string) bool { return strings.ReplaceAll(a, "$(POD)", pod) == "--shard="+name }) {
			t.Errorf("pod %s is not %s: %v", pod, name, args)
		}
	}
	_, lines, _ := strings.Cut(comment(t, "istio/wasmplugin.yaml"), "\nshards:\n")
	var listed []string
	for line := range strings.Lines(lines) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "- ")
		if !ok {
			break
		}
		listed = append(listed, name)
	}
	if !slices.Equal(listed, names) {
		t.Errorf("the filter's comment lists %v, the hosts are %v", listed, names)
	}
}
