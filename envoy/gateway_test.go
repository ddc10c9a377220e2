package envoy

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/oncegate/oncegate/plugin/config"
)

// The clusters that Envoy Gateway adds carry the gate's streams, and are those that the gate calls. make test-cluster runs the file.
func TestEnvoyGatewayReachesTheManagers(t *testing.T) {
	const name = "gateway/oncegate.yaml"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var clusters, shards []string
	for _, r := range parseResources(t, name, text) {
		var spec struct {
			JSONPatches []struct {
				Type, Name string
				Operation  struct{ Value json.RawMessage }
			}
			Wasm []struct{ Config json.RawMessage }
		}
		if err := json.Unmarshal(r.Spec, &spec); err != nil {
			t.Fatal(err)
		}
		for _, p := range spec.JSONPatches {
			if p.Type != "type.googleapis.com/envoy.config.cluster.v3.Cluster" {
				continue
			}
			c := new(clusterv3.Cluster)
			if err := protojson.Unmarshal(p.Operation.Value, c); err != nil {
				t.Fatalf("%s: %v", p.Name, err)
			}
			if err := Validate(c); err != nil || c.GetName() != p.Name {
				t.Errorf("%s is the cluster %s: %v", p.Name, c.GetName(), err)
			}
			checkStreams(t, c)
			clusters = append(clusters, c.GetName())
		}
		for _, filter := range spec.Wasm {
			cfg, err := config.Parse(filter.Config)
			if err != nil {
				t.Fatal(err)
			}
			shards = cfg.Manager.Shards
		}
	}
	if len(shards) == 0 || !slices.Equal(clusters, shards) {
		t.Errorf("the gate calls %v, the clusters are %v", shards, clusters)
	}
}
