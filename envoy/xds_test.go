package envoy

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

var update = flag.Bool("update", false, "rewrite the files in xds")

// xdsDir is where the published files expect themselves.
const xdsDir = "/etc/oncegate/xds"

// xdsSets are the folders with their files, each made of static ones.
func xdsSets(t *testing.T) map[string]map[string]proto.Message {
	t.Helper()
	sets := map[string]map[string]proto.Message{}
	for folder, change := range map[string]func(*bootstrapv3.Bootstrap) error{
		"xds":          func(*bootstrapv3.Bootstrap) error { return nil },
		"xds/shards":   func(b *bootstrapv3.Bootstrap) error { return useShards(t, b) },
		"xds/managers": useManagers,
	} {
		b, err := LoadBootstrap("body-mode.yaml")
		if err == nil {
			err = change(b)
		}
		if err != nil {
			t.Fatal(err)
		}
		if sets[folder], err = SplitXDS(b, xdsDir); err != nil {
			t.Fatal(err)
		}
	}
	// A variant has only the files in which it differs from the first set.
	for folder, files := range sets {
		for name, m := range files {
			if folder != "xds" && proto.Equal(m, sets["xds"][name]) {
				delete(files, name)
			}
		}
	}
	return sets
}

// useManagers puts the listener of managers.yaml before the managers.
func useManagers(b *bootstrapv3.Bootstrap) error {
	shared, err := LoadBootstrap("managers.yaml")
	if err != nil {
		return err
	}
	proto.Merge(b, shared)
	at := shared.GetStaticResources().GetListeners()[0].GetAddress().GetSocketAddress()
	clusterOf(b, "oncegate_manager").ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	endpoint := clusterOf(b, "oncegate_manager").GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint()
	proto.Reset(endpoint.GetAddress().GetSocketAddress())
	proto.Merge(endpoint.GetAddress().GetSocketAddress(), at)
	return nil
}

// inYAML renders a message with its fields in their usual order.
func inYAML(t *testing.T, m proto.Message) []byte {
	t.Helper()
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var n yaml.Node
	if err := yaml.Unmarshal(text, &n); err != nil { // JSON is YAML
		t.Fatal(err)
	}
	plain(&n)
	out := bytes.NewBufferString("# Made of the static files in envoy/, which say why it is so (go test ./envoy -run TestXDSFiles -update).\n" +
		"# See docs/ENVOY.md.\n")
	e := yaml.NewEncoder(out)
	e.SetIndent(2)
	if err := e.Encode(&n); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// plain takes JSON's quotes and braces away, except from short lists.
func plain(n *yaml.Node) {
	length, flat := 0, n.Kind != yaml.DocumentNode && len(n.Content) > 0
	for _, c := range n.Content {
		plain(c)
		length += len(c.Value) + 2
		flat = flat && c.Kind == yaml.ScalarNode && c.Style == 0
	}
	n.Style = 0
	switch {
	case flat && length < 100:
		n.Style = yaml.FlowStyle
	case strings.Contains(n.Value, "\n"):
		n.Style = yaml.LiteralStyle
	}
}

// The files say what the static ones say, and there is no other file.
func TestXDSFiles(t *testing.T) {
	want := map[string]bool{}
	for folder, files := range xdsSets(t) {
		for name, m := range files {
			file := filepath.Join(folder, name)
			want[file] = true
			text := inYAML(t, m)
			if *update {
				if err := os.MkdirAll(folder, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, text, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			have, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(text), string(have)); diff != "" {
				t.Errorf("%s is not what the static files say (+ is the file); go test ./envoy -run TestXDSFiles -update\n%s", file, diff)
			}
			again := m.ProtoReflect().New().Interface()
			if err := unmarshalYAML(have, again); err != nil || !proto.Equal(again, m) {
				t.Errorf("%s does not read as it was written: %v", file, err)
			}
		}
	}
	for _, pattern := range []string{"xds/*.yaml", "xds/*/*.yaml"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if !want[f] {
				t.Errorf("%s comes from no static file", f)
			}
		}
	}
}
