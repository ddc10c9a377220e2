package cluster

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// meshConfig leaves out what only Istio's build of Envoy has; so do the variables in istiod.
const meshConfig = `
enablePrometheusMerge: false
enableAutoMtls: false # certificates come from the agent
`

// istio is Istio's control plane, and Envoy as its ingress gateway.
type istio struct {
	envoy *envoy
	port  string // of the gateway
}

// start starts both. Envoy's names have the addresses that lookup knows. It is ready when it has a listener, so around must be there.
func (i *istio) start(t *testing.T, lookup func(string) string, kubeconfig string) {
	t.Helper()
	mesh := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(mesh, []byte(meshConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	xds, web := freePort(t), freePort(t)
	istiod := start(t, []string{
		"POD_NAME=istiod-1", "POD_NAMESPACE=istio-system", "PILOT_ENABLE_ALPN_FILTER=false", "PILOT_ENABLE_METADATA_EXCHANGE=false",
		"INJECTION_WEBHOOK_CONFIG_NAME=", "VALIDATION_WEBHOOK_CONFIG_NAME=",
	}, "istiod", built(t, "cluster/pilot-discovery"), "discovery", "--kubeconfig="+kubeconfig, "--grpcAddr=127.0.0.1:"+xds,
		"--httpAddr=127.0.0.1:"+web, "--httpsAddr=", "--secureGRPCAddr=", "--monitoringAddr=127.0.0.1:"+freePort(t), "--ctrlz_port="+freePort(t),
		"--meshConfig="+mesh, "--shutdownDuration=1s")
	istiod.await(t, "ready", answers(http.DefaultClient, "http://127.0.0.1:"+web+"/ready"))
	i.envoy = startEnvoy(t, lookup, `
  id: router~10.0.0.9~istio-ingressgateway-1.istio-system~istio-system.svc.cluster.local
  cluster: istio-ingressgateway.istio-system
  metadata: {LABELS: {istio: ingressgateway}, NAMESPACE: istio-system, ISTIO_VERSION: 1.31.0, CLUSTER_ID: Kubernetes}`, xds)
}

// around are the Gateway that the files name, and the payments behind it.
func (i *istio) around(upstream string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: public, namespace: istio-system}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {bind: 127.0.0.1, port: {number: %s, name: http, protocol: HTTP}, hosts: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: payments, namespace: payments}
spec:
  hosts: [payments.payments.svc.cluster.local]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports:
  - {number: 9000, name: http, protocol: HTTP, targetPort: %s}
  endpoints:
  - {address: 127.0.0.1}
`, i.port, upstream)
}

const (
	oneManager = "outbound|8090||oncegate-manager.oncegate.svc.cluster.local"
	gateImage  = "oci://registry.example.com/oncegate/gate:0.1.0"
)

// file reads one of envoy/istio and replaces texts, in turns. kinds are the objects to take, all if there are none.
func file(t *testing.T, name string, kinds []string, replace ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "envoy", "istio", name))
	if err != nil {
		t.Fatal(err)
	}
	var docs []string
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		if kinds == nil || slices.ContainsFunc(kinds, func(k string) bool { return strings.Contains(doc, "\nkind: "+k+"\n") }) {
			docs = append(docs, doc)
		}
	}
	out := strings.Join(docs, "\n---\n")
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(out, replace[i]) {
			t.Fatalf("%s has no %q", name, replace[i])
		}
	}
	return strings.NewReplacer(replace...).Replace(out)
}

// TestIstioFiles: istiod makes of the files with the gate in envoy/istio what they say, and a retry through Envoy gets the first answer.
func TestIstioFiles(t *testing.T) {
	module, upstream := built(t, "oncegate.wasm"), startPayments(t)
	// The manager listens at 8090, as in a cluster, at an address of its own.
	manager := fmt.Sprintf("127.%d.%d.1", 1+rand.IntN(250), 1+rand.IntN(250))
	start(t, nil, "manager", built(t, "oncegate"), "serve", "--listen="+manager+":8090", "--admin="+manager+":8091", "--data-dir=ledger").
		await(t, "ready", answers(http.DefaultClient, "http://"+manager+":8091/readyz"))
	c := newCluster(t)
	c.paste(t, "kubectl apply --server-side -f "+filepath.Join(moduleDir(t, ".", "istio.io/istio"), istioCRDs)+"\nkubectl wait --for condition=established --timeout 5m crd --all")
	c.paste(t, "for n in oncegate payments istio-system; do kubectl create namespace $n; done")
	i := &istio{port: freePort(t)}
	c.apply(t, i.around(upstream))
	i.start(t, func(string) string { return "" }, c.kubeconfig)
	c.apply(t, file(t, "manager.yaml", nil, "192.0.2.10", manager))
	_, curl, _ := strings.Cut(readPage(t, "istio.md").block(t, "istioctl proxy-config cluster"), "\n")
	runs := 0
	for _, f := range []struct {
		file string
		body bool
		want []string
		text string
	}{
		{"traffic-extension.yaml", false, []string{oneManager}, file(t, "traffic-extension.yaml", nil, gateImage, "file://"+module)},
		{"wasmplugin.yaml", false, []string{oneManager}, file(t, "wasmplugin.yaml", nil, "file:///etc/oncegate/oncegate.wasm", "file://"+module)},
		{"body-mode.yaml", true, []string{oneManager}, file(t, "body-mode.yaml", nil, "/etc/oncegate/oncegate.wasm", module)},
	} {
		t.Run(f.file, func(t *testing.T) {
			c.apply(t, f.text)
			defer func() {
				c.paste(t, "kubectl delete -f objects.yaml")
				await(t, "no gate", i.envoy.hasNot(t, i.port))
			}()
			name := "oncegate-headers"
			if f.body {
				name = "oncegate-body"
			}
			await(t, "the gate", i.envoy.has(t, i.port, name, f.want[0]))
			i.check(t, f.body, f.want)
			runs++
			pays(t, c, curl, i.port, fmt.Sprint("key-", runs), upstream, runs)
		})
	}
}

// pays runs a page's command twice, with another key and the address of the gateway here.
func pays(t *testing.T, c *cluster, curl, port, key, upstream string, want int) {
	t.Helper()
	curl = strings.NewReplacer("curl ", "curl -H 'Host: payments.example.com' ", "https://payments.example.com/", "http://127.0.0.1:"+port+"/",
		"Idempotency-Key: a1", "Idempotency-Key: "+key).Replace(curl)
	for _, status := range []string{"executed", "replayed"} {
		if got := strings.TrimSpace(c.paste(t, curl)); got != "idempotency-status: "+status {
			t.Errorf("%s\nprints %q, want %s", curl, got, status)
		}
	}
	var executions struct {
		Total int `json:"total"`
	}
	if err := json.Unmarshal([]byte(fetch(t, "http://127.0.0.1:"+upstream+"/executions")), &executions); err != nil || executions.Total != want {
		t.Errorf("%d executions, want %d: %v", executions.Total, want, err)
	}
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// startPayments starts the upstream, and returns its port.
func startPayments(t *testing.T) string {
	t.Helper()
	port := freePort(t)
	start(t, nil, "payments", built(t, "payments"), "--listen=127.0.0.1:"+port).await(t, "ready", answers(http.DefaultClient, "http://127.0.0.1:"+port+"/executions"))
	return port
}

// check compares what Envoy runs with what docs/istio.md promises.
func (i *istio) check(t *testing.T, body bool, shards []string) {
	t.Helper()
	config := i.envoy.config(t)
	chain := config.filters(t, i.port)
	gate := slices.IndexFunc(chain, func(f filter) bool {
		return strings.Contains(f.name, "oncegate") && strings.Contains(f.text, "oncegate.wasm")
	})
	// An extension comes before Istio's own filters for faults and CORS, an EnvoyFilter right before the router.
	behind := []string{"envoy.filters.http.grpc_stats", "envoy.filters.http.fault", "envoy.filters.http.cors", "envoy.filters.http.router"}
	if body {
		behind = behind[3:]
	}
	if gate < 0 || !slices.Equal(names(chain[gate+1:]), behind) {
		t.Fatalf("the gate is not before %v: %v", behind, names(chain))
	}
	if body && (chain[gate-1].name != "oncegate.no_retries_by_header" ||
		!strings.Contains(chain[gate].text, `"allow_on_headers_stop_iteration":true`) || strings.Count(chain[gate].text, `"proxy_on_http_call_response":{}`) != 1) {
		t.Errorf("not as in body-mode.yaml: %v\n%s", names(chain), chain[gate].text)
	}
	for _, s := range shards {
		if !config.has("envoy.config.cluster.v3.Cluster", s) {
			t.Errorf("there is no cluster %s", s)
		}
		if gate >= 0 && !strings.Contains(chain[gate].text, s) {
			t.Errorf("the gate does not call %s: %s", s, chain[gate].text)
		}
	}
	if routes := config.text("envoy.config.route.v3.RouteConfiguration"); strings.Contains(routes, "retry_policy") || !strings.Contains(routes, "payments.example.com") {
		t.Errorf("the routes have retries:\n%s", routes)
	}
}

func names(chain []filter) (all []string) {
	for _, f := range chain {
		all = append(all, f.name)
	}
	return all
}
