package charts

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files")

const chartDir = "../../charts/oncegate"

// cases are the names of the values in testdata.
func cases(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.values.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no values", err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), ".values.yaml")
	}
	return files
}

func values(t *testing.T, name string) map[string]any {
	t.Helper()
	v, err := chartutil.ReadValuesFile("testdata/" + name + ".values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// render is `helm template pay charts/oncegate --namespace payments`: the files' names, and what is in them. Values that do not say so
// have an image, and a Secret of tokens.
func render(c *chart.Chart, v map[string]any) (map[string]string, error) {
	return renderAs("pay", c, v)
}

// required are the values that have no default.
func required(v map[string]any) map[string]any {
	auth := map[string]any{"existingSecret": "oncegate-tokens"}
	if given, _ := v["auth"].(map[string]any); given["anonymous"] == true {
		auth = nil
	}
	return chartutil.CoalesceTables(v, map[string]any{"image": map[string]any{"repository": "registry.example.com/oncegate/manager"}, "auth": auth})
}

func renderAs(name string, c *chart.Chart, v map[string]any) (map[string]string, error) {
	release := chartutil.ReleaseOptions{Name: name, Namespace: "payments", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, required(v), release, nil)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, all)
}

// objects are the manifests of a rendered case, each a YAML document.
func objects(t *testing.T, v map[string]any) []string {
	t.Helper()
	files, err := render(load(t), v)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for doc := range strings.SplitSeq(files[name], "\n---\n") {
			if doc = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(doc), "---")); doc != "" {
				out = append(out, doc+"\n")
			}
		}
	}
	return out
}

func TestGolden(t *testing.T) {
	for _, name := range cases(t) {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(objects(t, values(t, name)), "---\n")
			golden := "testdata/" + name + ".golden.yaml"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("go test . -update writes this (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLint is `helm lint --strict`: warnings are mistakes.
func TestLint(t *testing.T) {
	for _, name := range cases(t) {
		for _, m := range lint.AllWithKubeVersion(chartDir, values(t, name), "payments", nil).Messages {
			if m.Severity >= support.WarningSev {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// TestNotes: what an installation prints names the shards, says how soon proxies must ask for a pod's name again, and warns only where no
// credentials are asked for.
func TestNotes(t *testing.T) {
	c := load(t)
	page, err := os.ReadFile("../../docs/istio.md")
	if err != nil {
		t.Fatal(err)
	}
	setting := regexp.MustCompile("`meshConfig\\.(dnsRefreshRate: \\w+)`").FindSubmatch(page)
	if setting == nil {
		t.Fatal("docs/istio.md sets no dnsRefreshRate")
	}
	mesh := fmt.Sprintf("meshConfig: {%s}", setting[1])
	if text, err := os.ReadFile(chartDir + "/values.yaml"); err != nil || !strings.Contains(string(text), mesh) {
		t.Errorf("values.yaml does not say %q: %v", mesh, err)
	}
	for name, wants := range map[string][]string{
		"defaults": {`{"shards": ["pay-oncegate-0","pay-oncegate-1"]}`, "pay-oncegate-1.pay-oncegate.payments.svc.cluster.local:8090", "dns_refresh_rate"},
		"azure":    {"WARNING"},
		"istio":    {mesh},
		"postgres": {"pay-oncegate.payments.svc.cluster.local:8090"},
	} {
		files, err := render(c, values(t, name))
		if err != nil {
			t.Fatal(err)
		}
		notes := files["oncegate/templates/NOTES.txt"]
		for _, want := range wants {
			if !strings.Contains(notes, want) {
				t.Errorf("%s: no %q in:\n%s", name, want, notes)
			}
		}
		if strings.Contains(notes, "WARNING") != slices.Contains(wants, "WARNING") {
			t.Errorf("%s: a warning too many:\n%s", name, notes)
		}
	}
}

// TestTelemetry: rules and boards arrive as they are in the chart's files.
func TestTelemetry(t *testing.T) {
	v, d, found := schemas(t), decoder(t), 0
	for _, doc := range objects(t, map[string]any{"prometheusRule": map[string]any{"enabled": true}, "dashboards": map[string]any{"enabled": true}}) {
		check(t, v, d, "telemetry", doc)
		var object struct {
			Kind string            `json:"kind"`
			Data map[string]string `json:"data"`
			Spec struct {
				Groups []any `json:"groups"`
			} `json:"spec"`
		}
		if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
			t.Fatal(err)
		}
		switch object.Kind {
		case "ConfigMap":
			found++
			boards, err := filepath.Glob(chartDir + "/files/grafana/*.json")
			if err != nil || len(boards) == 0 || len(boards) != len(object.Data) {
				t.Errorf("%d boards, want %d, %v", len(object.Data), len(boards), err)
			}
			for _, b := range boards {
				if want, err := os.ReadFile(b); err != nil || object.Data[filepath.Base(b)] != string(want) {
					t.Errorf("%s is another one, %v", b, err)
				}
			}
		case "PrometheusRule":
			found++
			var want []any
			for _, name := range []string{"alerts", "recording"} {
				text, err := os.ReadFile(chartDir + "/files/prometheus/" + name + ".yaml")
				if err != nil {
					t.Fatal(err)
				}
				var file struct {
					Groups []any `json:"groups"`
				}
				if err := yaml.Unmarshal(text, &file); err != nil {
					t.Fatal(err)
				}
				want = append(want, file.Groups...)
			}
			if diff := cmp.Diff(want, object.Spec.Groups); diff != "" {
				t.Error(diff)
			}
		}
	}
	if found != 2 {
		t.Errorf("%d objects, want 2", found)
	}
}

// TestRefusedValues: what the schema does not know, and what contradicts itself, is refused by name.
func TestRefusedValues(t *testing.T) {
	c := load(t)
	for _, r := range []struct{ values, want string }{
		{"replicaCount: 3", "replicaCount"},
		{"image: {tga: x}", "tga"},
		{"store: {engine: memory}", "engine"},
		{"store: {engine: postgres}", "store.dsn.existingSecret is empty"},
		{"store: {dsn: {existingSecret: a}}", "has no server"},
		{"shards: {count: 0}", "count"},
		{"shards: {count: 65}", "count"},
		{"shards: {count: two}", "count"},
		{"shards: {count: 2, listed: 3}", "shards.listed is 3"},
		{"settings: {comitted-ttl-seconds: 3}", "comitted-ttl-seconds"},
		{"settings: {data-dir: /tmp}", "data-dir"},
		{"settings: {max-entries: many}", "max-entries"},
		{"extraArgs: [serve]", "extraArgs"},
		{"auth: {existingSecret: a, key: ../x}", "key"},
		{"auth: {token: abc}", "token"},
		{"store: {engine: sqlite}\nship: {to: 's3://b'}", "only the engine wal"},
		{"ship: {to: b}", "ship"},
		{"ship: {to: 's3://b', googleCredentials: {existingSecret: a}}", "must begin with gs://"},
		{"ship: {to: 'gs://b', googleCredentials: {existingSecret: a, key: ../x}}", "googleCredentials"},
		{"ship: {to: 's3://b', azureCredentials: {existingSecret: a}}", "must begin with azblob://"},
		{"ship: {to: 's3://b', azureAccount: abc}", "must begin with azblob://"},
		{"ship: {to: 'azblob://b', azureAccount: abc, azureCredentials: {existingSecret: a}}", "only one of them"},
		{"ship: {to: 'az://b', azureAccount: a/b}", "azureAccount"},
		{"ship: {to: 'azblob://b', azureCredentials: {existingSecret: a, key: ../x}}", "azureCredentials"},
		{"tls: {certManager: {enabled: true}}", "issuerRef.name is empty"},
		{"tls: {existingSecret: a, certManager: {enabled: true, issuerRef: {name: b}}}", "only one of them"},
		{"tls: {admin: true}", "tls.admin is true"},
		{"tls: {clientCA: {existingSecret: a}}", "tls.clientCA.existingSecret"},
		{"tls: {existingSecret: a, clientRoles: {existingSecret: b}}", "tls.clientRoles.existingSecret"},
		{"istio: {enabled: true}", "shards.names istio"},
		{"serviceMonitor: {enabled: true}", "networkPolicy.adminFrom"},
		{"dataCenter: {peers: [{name: dc2, url: 'http://$(POD).b'}]}", "needs dataCenter.origin"},
		{"dataCenter: {origin: dc1, token: {existingSecret: a}}", "needs dataCenter.peers"},
		{"dataCenter: {origin: dc1, peers: [{name: dc2, url: 'http://b'}]}", "must have $(POD)"},
		{"dataCenter: {origin: dc1, peers: [{name: dc2, url: 'b:8090'}]}", "url"},
		{"dataCenter: {origin: 'dc 1'}", "origin"},
		{"persistence: {accessModes: [ReadWriteMany]}", "accessModes"},
		{"podDisruptionBudget: {maxUnavailable: all}", "maxUnavailable"},
		{"service: {port: 8091}", "service.port and service.adminPort are both 8091"},
		{"fullnameOverride: 1pay", `the name "1pay" must be that of a Service`},
		{"image: {repository: ''}", "image.repository is empty"},
		{"auth: {existingSecret: ''}", "would be an administrator"},
		{"auth: {anonymous: true, existingSecret: a}", "auth.anonymous is true"},
		{"resources: {limits: {memory: 1Gi}}", "resources.limits.memory is 1Gi: must be at least 1152Mi"},
		{"resources: {limits: {memory: 1152Mi}}\nsettings: {cache-bytes: 268435457}", "must be at least 1153Mi"},
		{"resources: {limits: {memory: 1000000000}}", "must be at least 1152Mi"},
		{"resources: {limits: {memory: much}}", "resources.limits.memory is much"},
		{"settings: {cache-bytes: 1073741824}", "must be at least 2688Mi"},
		{"settings: {max-bytes: 549755813888}", "must be at least 3136Mi"},
		{"settings: {max-bytes: 549755813888, max-entries: 1000000000}", "must be at least 2996Mi"},
		{"settings: {job-max-bytes: 549755813888}", "must be at least 3136Mi"},
		{"settings: {max-body-memory-bytes: 2147483648}", "must be at least 2688Mi"},
		{"store: {engine: redis, dsn: {existingSecret: a}}\nresources: {limits: {memory: 511Mi}}", "must be at least 512Mi"},
	} {
		v, err := chartutil.ReadValues([]byte(r.values))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := render(c, v); err == nil || !strings.Contains(err.Error(), r.want) {
			t.Errorf("%s: want an error with %q, got %v", r.values, r.want, err)
		}
	}
}

// TestMemoryThatIsEnough: each way to write it.
func TestMemoryThatIsEnough(t *testing.T) {
	c := load(t)
	for _, values := range []string{
		"resources: {limits: {memory: 1152Mi}}", "resources: {limits: {memory: 1.125Gi}}", "resources: {limits: {memory: 1207959552}}",
		"resources: {limits: {memory: '1207959552'}}", "resources: {limits: {memory: 4G}}", "resources: {limits: {memory: null}}",
		"resources: {limits: {memory: 1025Mi}}\nsettings: {max-bytes: 100000000, job-max-bytes: 50000000}",
		"resources: {limits: {memory: 640Mi}}\nsettings: {cache-bytes: 16777216, max-entries: 1000000}",
		"store: {engine: redis, dsn: {existingSecret: a}}\nresources: {limits: {memory: 512Mi}}",
		"store: {engine: sqlite}\nresources: {limits: {memory: 512Mi}}",
	} {
		v, err := chartutil.ReadValues([]byte(values))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := render(c, v); err != nil {
			t.Errorf("%s: %v", values, err)
		}
	}
}

// TestRefusedReleases: Helm takes names that no Service can have.
func TestRefusedReleases(t *testing.T) {
	c := load(t)
	for _, name := range []string{"1pay", "pay.1", "oncegate.1"} {
		if _, err := renderAs(name, c, nil); err == nil || !strings.Contains(err.Error(), "set fullnameOverride") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := renderAs(name, c, map[string]any{"fullnameOverride": "pay"}); err != nil {
			t.Errorf("%s under another name: %v", name, err)
		}
	}
}

// TestValuesHaveASchema: each default is one that the schema knows by its full path, and the other way round.
func TestValuesHaveASchema(t *testing.T) {
	c := load(t)
	var schema map[string]any
	if err := yaml.Unmarshal(c.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	var compare func(at string, schema map[string]any, values map[string]any)
	compare = func(at string, schema, values map[string]any) {
		properties, _ := schema["properties"].(map[string]any)
		if properties == nil || at == ".settings" {
			return
		}
		if schema["additionalProperties"] != false {
			t.Errorf("%s: takes unknown values", at)
		}
		for name, p := range properties {
			value, ok := values[name]
			if !ok && at+name != "global" {
				t.Errorf("%s.%s has no default in values.yaml", at, name)
			}
			if v, ok := value.(map[string]any); ok {
				compare(at+"."+name, p.(map[string]any), v)
			}
		}
	}
	compare("", schema, c.Values)
}

func toJSON(doc string) ([]byte, error) {
	out, err := yaml.YAMLToJSONStrict([]byte(doc))
	if err != nil {
		return nil, fmt.Errorf("%w in:\n%s", err, doc)
	}
	return out, nil
}
