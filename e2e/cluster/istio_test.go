package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// meshConfig leaves out what only Istio's build of Envoy has; so do the variables in istiod. The page's setting follows.
const meshConfig = `
enablePrometheusMerge: false
enableAutoMtls: false # certificates come from the agent
`

var meshSetting = regexp.MustCompile("`meshConfig\\.(dnsRefreshRate: \\w+)`")

// refreshRate is what docs/istio.md sets, as Envoy has it.
const refreshRate = `"dns_refresh_rate":"5s"`

// istio is Istio's control plane, and Envoy as its ingress gateway.
type istio struct {
	c     *cluster
	envoy *envoy
	port  string   // of the gateway
	pods  sync.Map // addresses by DNS name
}

// start starts both. Envoy is ready when it has a listener, so around must be there.
func (i *istio) start(t *testing.T) {
	t.Helper()
	mesh := filepath.Join(t.TempDir(), "mesh.yaml")
	setting := meshSetting.FindStringSubmatch(readPage(t, "istio.md").text)
	if setting == nil {
		t.Fatalf("istio.md does not say %v", meshSetting)
	}
	if err := os.WriteFile(mesh, []byte(meshConfig+setting[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	xds, web := freePort(t), freePort(t)
	istiod := start(t, []string{
		"POD_NAME=istiod-1", "POD_NAMESPACE=istio-system", "PILOT_ENABLE_ALPN_FILTER=false", "PILOT_ENABLE_METADATA_EXCHANGE=false",
		"INJECTION_WEBHOOK_CONFIG_NAME=", "VALIDATION_WEBHOOK_CONFIG_NAME=",
	}, "istiod", built(t, "cluster/pilot-discovery"), "discovery", "--kubeconfig="+i.c.kubeconfig, "--grpcAddr=127.0.0.1:"+xds,
		"--httpAddr=127.0.0.1:"+web, "--httpsAddr=", "--secureGRPCAddr=", "--monitoringAddr=127.0.0.1:"+freePort(t), "--ctrlz_port="+freePort(t),
		"--meshConfig="+mesh, "--shutdownDuration=1s")
	istiod.await(t, "ready", answers(http.DefaultClient, "http://127.0.0.1:"+web+"/ready"))
	i.envoy = startEnvoy(t, `
  id: router~10.0.0.9~istio-ingressgateway-1.istio-system~istio-system.svc.cluster.local
  cluster: istio-ingressgateway.istio-system
  metadata: {LABELS: {istio: ingressgateway}, NAMESPACE: istio-system, ISTIO_VERSION: 1.31.0, CLUSTER_ID: Kubernetes}`, xds)
}

// around are the Gateway that the files name, the payments after it by HTTP and by gRPC, and the DNS. Without a server's address, as istiod
// leaves it, the clusters with names would ask the DNS of the machine.
func (i *istio) around(t *testing.T, http, grpc string) string {
	t.Helper()
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
  - {number: 9001, name: grpc, protocol: GRPC, targetPort: %s}
  endpoints:
  - {address: 127.0.0.1}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: dns, namespace: istio-system}
spec:
  configPatches:
  - applyTo: CLUSTER
    match: {context: GATEWAY}
    patch:
      operation: MERGE
      value:
        typed_dns_resolver_config:
          name: envoy.network.dns_resolver.cares
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig
            resolvers: [{socket_address: {address: 127.0.0.1, port_value: %s}}]
`, i.port, http, grpc, startDNS(t, "127.0.0.1:0", func(host string) string {
		ip, _ := i.pods.Load(host)
		address, _ := ip.(string)
		return address
	}))
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

// TestIstioFiles: istiod makes of the files in envoy/istio what they say, and a retry through Envoy gets the first answer.
func TestIstioFiles(t *testing.T) {
	module, upstream, grpc := built(t, "oncegate.wasm"), startPayments(t), freePort(t)
	start(t, nil, "grpc", built(t, "examples/grpc"), "serve", "127.0.0.1:"+grpc).await(t, "ready", func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+grpc)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	// The manager listens at 8090, as in a cluster, at its own address.
	manager := freeAddress()
	startManager(t, "manager", manager, "serve", "--listen=0.0.0.0:8090", "--admin=0.0.0.0:8091", "--data-dir=ledger")
	c := newCluster(t)
	c.paste(t, "kubectl apply --server-side -f "+filepath.Join(moduleDir(t, ".", "istio.io/istio"), istioCRDs)+"\nkubectl wait --for condition=established --timeout 5m crd --all")
	c.paste(t, "for n in oncegate payments istio-system; do kubectl create namespace $n; done")
	i := &istio{c: c, port: freePort(t)}
	c.apply(t, i.around(t, upstream, grpc))
	i.start(t)
	c.apply(t, file(t, "manager.yaml", nil, "192.0.2.10", manager))
	_, curl, _ := strings.Cut(readPage(t, "istio.md").block(t, "istioctl proxy-config cluster"), "\n")
	runs := 0
	pay := func(t *testing.T) {
		t.Helper()
		runs++
		pays(t, c, curl, "127.0.0.1:"+i.port, fmt.Sprint("key-", runs), "127.0.0.1:"+upstream, runs)
	}
	plugin := []string{"file:///etc/oncegate/oncegate.wasm", "file://" + module}
	for _, f := range []struct {
		file string
		body bool
		text string
	}{
		{"traffic-extension.yaml", false, file(t, "traffic-extension.yaml", nil, gateImage, "file://"+module)},
		{"wasmplugin.yaml", false, file(t, "wasmplugin.yaml", nil, plugin...)},
		{"body-mode.yaml", true, file(t, "body-mode.yaml", nil, "/etc/oncegate/oncegate.wasm", module)},
	} {
		t.Run(f.file, func(t *testing.T) {
			defer i.gate(t, f.text, f.body, 0, oneManager)()
			pay(t)
		})
	}
	t.Run("grpc.yaml", func(t *testing.T) {
		c.apply(t, file(t, "grpc.yaml", nil, "payments-grpc.example.com", "127.0.0.1")) // the client's name for the gateway
		defer func() { c.paste(t, "kubectl -n payments delete virtualservice payments-grpc") }()
		defer i.gate(t, file(t, "body-mode.yaml", nil, "/etc/oncegate/oncegate.wasm", module, `"mode": "body",`, `"mode": "body", "match": [{"grpc": "unary"}],`),
			true, 1, oneManager)()
		for _, status := range []string{"executed", "replayed"} {
			want := fmt.Sprintf("run 1 of \"pay\" [%s] trailer x-run: [1]\n", status)
			if got := c.paste(t, built(t, "examples/grpc")+" call 127.0.0.1:"+i.port+" k1 pay"); got != want {
				t.Errorf("the call prints %q, want %q", got, want)
			}
		}
	})
	t.Run("shards.yaml", func(t *testing.T) {
		c.paste(t, "kubectl -n oncegate delete serviceentry,destinationrule oncegate-manager")
		// Envoy asks for names that have no address yet, as when the pods are new.
		c.apply(t, file(t, "shards.yaml", nil))
		defer i.gate(t, file(t, "wasmplugin.yaml", nil, append(plugin, "cluster: "+oneManager, fmt.Sprintf("shards: [%q, %q]", shard(0), shard(1)))...),
			false, 0, shard(0), shard(1))()
		ledger := t.TempDir()
		pod0, address0 := i.startShard(t, 0, ledger)
		_, address1 := i.startShard(t, 1, t.TempDir())
		asks := func(addresses ...string) {
			t.Helper()
			for _, a := range addresses {
				await(t, "the manager's address", i.envoy.resolves(a))
			}
			for range 8 {
				pay(t)
			}
			for _, a := range addresses {
				if metrics := fetch(t, "http://"+a+":8091/metrics"); !asked.MatchString(metrics) {
					t.Errorf("nothing asked the manager at %s:\n%s", a, metrics)
				}
			}
		}
		asks(address0, address1)
		// A pod goes, and comes back with its volume at another address.
		pod0.stop()
		i.pods.Delete(podName(0))
		await(t, "no address", func(ctx context.Context) error {
			if err := i.envoy.resolves(address0)(ctx); !errors.Is(err, errNotYet) {
				return fmt.Errorf("envoy still has %s: %w", address0, cmp.Or(err, errNotYet))
			}
			return nil
		})
		_, address0 = i.startShard(t, 0, ledger)
		asks(address0, address1)
	})
}

var asked = regexp.MustCompile(`(?m)^oncegate_http_request_duration_seconds_count\{route="POST /v1/ledger/reserve"\} [1-9]`)

// startShard starts a manager with the arguments in shards.yaml, and gives its name an address.
func (i *istio) startShard(t *testing.T, n int, ledger string) (manager *process, address string) {
	t.Helper()
	args := i.c.paste(t, "kubectl -n oncegate get statefulset oncegate-manager -o 'jsonpath={.spec.template.spec.containers[0].args[*]}'")
	pod, address := fmt.Sprint("oncegate-manager-", n), freeAddress()
	manager = startManager(t, pod, address, strings.Fields(strings.NewReplacer("$(POD)", pod, "/var/lib/oncegate", ledger).Replace(args))...)
	i.pods.Store(podName(n), address)
	return manager, address
}

// podName is the DNS name of the n-th manager.
func podName(n int) string { return strings.TrimPrefix(shard(n), "outbound|8090||") }

// startManager starts one that listens at its own address instead of all.
func startManager(t *testing.T, name, address string, args ...string) *process {
	t.Helper()
	var own []string
	for _, a := range args {
		own = append(own, strings.Replace(a, "0.0.0.0", address, 1))
	}
	p := start(t, nil, name, built(t, "oncegate"), own...)
	p.await(t, "ready", answers(http.DefaultClient, "http://"+address+":8091/readyz"))
	return p
}

func freeAddress() string { return fmt.Sprintf("127.%d.%d.1", 1+rand.IntN(250), 1+rand.IntN(250)) }

// gate applies a file with the gate, checks what Envoy runs, and returns what removes it.
func (i *istio) gate(t *testing.T, text string, body bool, retries int, shards ...string) (remove func()) {
	t.Helper()
	name := "oncegate-headers"
	if body {
		name = "oncegate-body"
	}
	i.c.apply(t, text)
	await(t, "the gate", i.envoy.has(t, i.port, name, shards[0]))
	i.check(t, body, retries, shards)
	return func() {
		i.c.paste(t, "kubectl delete -f objects.yaml")
		await(t, "no gate", i.envoy.hasNot(t, i.port))
	}
}

// pays runs a page's command twice, with another key and the address of the gateway here, and counts what the upstream has executed.
func pays(t *testing.T, c *cluster, curl, gateway, key, upstream string, want int) {
	t.Helper()
	curl = strings.NewReplacer("curl ", "curl -H 'Host: payments.example.com' ", "https://payments.example.com/", "http://"+gateway+"/",
		"Idempotency-Key: a1", "Idempotency-Key: "+key).Replace(curl)
	for _, status := range []string{"executed", "replayed"} {
		if got := strings.TrimSpace(c.paste(t, curl)); got != "idempotency-status: "+status {
			t.Errorf("%s\nprints %q, want %s", curl, got, status)
		}
	}
	var executions struct {
		Total int `json:"total"`
	}
	if err := json.Unmarshal([]byte(fetch(t, "http://"+upstream+"/executions")), &executions); err != nil || executions.Total != want {
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

// check compares what Envoy runs with what docs/istio.md promises. retries is how many routes may repeat requests.
func (i *istio) check(t *testing.T, body bool, retries int, shards []string) {
	t.Helper()
	config := i.envoy.config(t)
	chain := config.filters(t, i.port)
	gate := slices.IndexFunc(chain, func(f filter) bool {
		return strings.Contains(f.name, "oncegate") && strings.Contains(f.text, "oncegate.wasm")
	})
	// An extension comes before Istio's own filters for faults and CORS, an EnvoyFilter right before the router.
	after := []string{"envoy.filters.http.grpc_stats", "envoy.filters.http.fault", "envoy.filters.http.cors", "envoy.filters.http.router"}
	if body {
		after = after[3:]
	}
	if gate < 0 || !slices.Equal(names(chain[gate+1:]), after) {
		t.Fatalf("the gate is not before %v: %v", after, names(chain))
	}
	if body && (chain[gate-1].name != "oncegate.no_retries_by_header" ||
		!strings.Contains(chain[gate].text, `"allow_on_headers_stop_iteration":true`)) {
		t.Errorf("not as in body-mode.yaml: %v\n%s", names(chain), chain[gate].text)
	}
	for _, s := range shards {
		cluster := config.named("envoy.config.cluster.v3.Cluster", s)
		if cluster == "" || strings.Contains(cluster, "STRICT_DNS") && !strings.Contains(cluster, refreshRate) {
			t.Errorf("the cluster %s is missing or has another refresh rate than %s: %s", s, refreshRate, cluster)
		}
		if !strings.Contains(chain[gate].text, s) {
			t.Errorf("the gate does not call %s: %s", s, chain[gate].text)
		}
	}
	await(t, "the routes", func(ctx context.Context) error {
		d, err := i.envoy.dump(ctx)
		if routes := d.text("envoy.config.route.v3.RouteConfiguration"); err == nil &&
			(strings.Count(routes, `"retry_policy":`) != retries || !strings.Contains(routes, "payments.example.com")) {
			err = fmt.Errorf("not %d routes with retries:\n%s", retries, routes)
		}
		return err
	})
}

func names(chain []filter) (all []string) {
	for _, f := range chain {
		all = append(all, f.name)
	}
	return all
}
