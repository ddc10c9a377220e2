package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/oncegate/oncegate/envoy"
)

// deprecated returns the lines of an Envoy's log that warn of settings which a later release will not have.
func (p *proxy) deprecated() (lines []string) {
	for line := range strings.Lines(p.tail(maxLines)) {
		if strings.Contains(strings.ToLower(line), "deprecated") {
			lines = append(lines, line)
		}
	}
	return lines
}

// wantNothingDeprecated checks that an Envoy warned of no setting of its configuration.
func (p *proxy) wantNothingDeprecated(t *testing.T) {
	t.Helper()
	for _, line := range p.deprecated() {
		t.Error(line)
	}
}

// TestShippedFilesUseNothingDeprecated: every supported Envoy starts with each file of envoy/ that has a listener, and warns of no
// setting of it. TestPublishedXDSFiles checks those of envoy/xds and the clusters of shards, TestGateCallsTheManagerByTLS the one of TLS.
func TestShippedFilesUseNothingDeprecated(t *testing.T) {
	t.Parallel()
	module, err := filepath.Abs(wasmModule)
	if err != nil {
		t.Fatal(err)
	}
	ca := newIdentity(t, "ca", nil)
	certificates := tlsFiles(t, newIdentity(t, "gate", ca), ca)
	here := strings.NewReplacer("/etc/oncegate/tls/", certificates+"/", `"tls.crt"`, `"`+certificates+`/ca.crt"`,
		"/etc/oncegate/oncegate.wasm", module, "build/oncegate.wasm", module)
	files, err := envoy.Files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if file.IsDir() {
			continue
		}
		text, err := os.ReadFile(filepath.Join("../envoy", file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "\n  listeners:\n") {
			continue
		}
		for _, target := range envoys {
			t.Run(target.Name()+"/"+file.Name(), func(t *testing.T) {
				t.Parallel()
				var bootstrap map[string]any
				if err := yaml.UnmarshalStrict(text, &bootstrap); err != nil {
					t.Fatal(err)
				}
				bootstrap["admin"] = map[string]any{"address": anyPort}
				resources := bootstrap["static_resources"].(map[string]any)
				listeners, _ := resources["listeners"].([]any)
				for _, l := range listeners {
					if l := l.(map[string]any); l["internal_listener"] == nil {
						l["address"] = anyPort
					}
				}
				config, err := json.Marshal(bootstrap)
				if err != nil {
					t.Fatal(err)
				}
				target.variable = tokenVariable + "=" + gateToken
				p, err := target.start(t.TempDir(), []byte(here.Replace(string(config))), 1, "--use-dynamic-base-id", "--disable-hot-restart")
				if p != nil {
					defer p.kill()
				}
				if err != nil {
					t.Fatal(err)
				}
				p.wantNothingDeprecated(t)
			})
		}
	}
}

// anyPort is an address in a configuration of Envoy.
var anyPort = map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": 0}}
