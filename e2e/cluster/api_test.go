package cluster

import (
	"path/filepath"
	"strings"
	"testing"
)

// asPod makes of a workload the pod that its controller would make.
const asPod = `kubectl -n oncegate get statefulset,deployment -o json |
	jq '.items[0] | {apiVersion: "v1", kind: "Pod", metadata: {name: "pod", namespace: "oncegate", labels: .spec.template.metadata.labels},
		spec: (.spec.template.spec + {volumes: (.spec.template.spec.volumes + [.spec.volumeClaimTemplates[]? | {name: .metadata.name, emptyDir: {}}])})}'`

// TestAPIServerTakesTheChart: the API server takes what the chart renders with the values of docs/kubernetes.md and of .ci/charts, its pods
// comply with "restricted", and it takes the updates by which docs/kubernetes.md adds and removes a shard.
func TestAPIServerTakesTheChart(t *testing.T) {
	c, p := newCluster(t), readPage(t, "kubernetes.md")
	c.paste(t, readPage(t, "kubernetes.md").block(t, "kubectl create namespace oncegate"))
	c.restricted(t, "oncegate")
	c.crds(t)
	c.write(t, "values.yaml", p.yaml(t, "committed-ttl-seconds"))
	install, rollout, _ := strings.Cut(p.block(t, "helm install oncegate charts/oncegate"), "\n")
	if !strings.Contains(rollout, "rollout status statefulset/oncegate-manager") {
		t.Errorf("the page waits by %q", rollout)
	}
	c.paste(t, readPage(t, "kubernetes.md").block(t, "helm template oncegate charts/oncegate"))
	upgrade := strings.Replace(install, "helm install", "helm upgrade", 1)
	c.paste(t, install)
	c.paste(t, asPod+" | kubectl create --dry-run=server -f -")
	c.refused(t, asPod+` | jq '.spec.containers[0].securityContext.allowPrivilegeEscalation = true' | kubectl create --dry-run=server -f -`, "violates PodSecurity")
	for _, set := range []string{
		// "Add a shard" and "Remove a shard"
		"--set shards.count=3 --set shards.partition=2", "--set shards.count=3 --set shards.partition=0",
		"--set shards.count=3 --set shards.listed=2 --set shards.updateStrategy=OnDelete", "--set shards.count=2",
	} {
		if !strings.Contains(p.text, "`helm upgrade ... "+set+"`") {
			t.Errorf("the page has no helm upgrade with %s", set)
		}
		c.paste(t, upgrade+" "+set)
	}
	c.paste(t, "helm uninstall oncegate -n oncegate")

	c.write(t, "values.yaml", readPage(t, "istio.md").yaml(t, "shards: {names: istio}"))
	c.paste(t, readPage(t, "istio.md").block(t, "helm install oncegate charts/oncegate"))
	c.paste(t, asPod+" | kubectl create --dry-run=server -f -")
	for n := range 2 {
		if notes := c.paste(t, "helm get notes oncegate -n oncegate"); !strings.Contains(notes, shard(n)) {
			t.Errorf("Helm does not print %s:\n%s", shard(n), notes)
		}
	}
	c.paste(t, "helm uninstall oncegate -n oncegate")
	c.paste(t, "kubectl create namespace istio-system && kubectl -n istio-system create deployment istio-ingressgateway --image=istio-proxy")
	c.paste(t, readPage(t, "istio.md").block(t, "sed -n 's/ gate$//p' tokens"))
	c.paste(t, `kubectl -n istio-system get deployment istio-ingressgateway -o json | jq -e '.spec.template.spec.containers[0].env ==
		[{name: "ONCEGATE_GATE_TOKEN", valueFrom: {secretKeyRef: {name: "oncegate-gate-token", key: "ONCEGATE_GATE_TOKEN"}}}]'`)
	c.paste(t, "mkdir build && ln -s "+built(t, "release")+" build/release")
	c.paste(t, readPage(t, "istio.md").block(t, "kubectl -n istio-system create configmap"))
	c.paste(t, `kubectl -n istio-system get deployment istio-ingressgateway -o json | jq -e '.spec.template.spec |
		(.containers | length) == 1 and .containers[0].volumeMounts[0].mountPath == "/etc/oncegate" and .volumes[0].configMap.name == "oncegate-module"'`)
	c.paste(t, `kubectl -n istio-system get configmap oncegate-module -o json | jq -e '.binaryData | has("oncegate.wasm")'`)

	files, err := filepath.Glob(filepath.Join(root, ".ci", "charts", "testdata", "*.values.yaml"))
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	c.paste(t, "kubectl create priorityclass important --value=1000")
	for _, file := range files {
		file, err := filepath.Abs(file)
		if err != nil {
			t.Fatal(err)
		}
		// The Prometheus Operator's definitions are in no module.
		c.paste(t, "helm install pay charts/oncegate -n oncegate -f "+file+" --set serviceMonitor.enabled=false --set prometheusRule.enabled=false")
		c.paste(t, asPod+" | kubectl create --dry-run=server -f -")
		c.paste(t, "helm uninstall pay -n oncegate")
	}
}

// TestAPIServerTakesTheFiles: it takes the files in envoy/istio and envoy/gateway, by the definitions of Istio and Envoy Gateway, and refuses
// a mistake in each.
func TestAPIServerTakesTheFiles(t *testing.T) {
	c := newCluster(t)
	c.crds(t)
	c.paste(t, "for n in oncegate payments istio-system; do kubectl create namespace $n; done")
	c.paste(t, readPage(t, "istio.md").block(t, "kubectl apply -f envoy/istio/body-mode"))
	c.paste(t, readPage(t, "envoy-gateway.md").block(t, "kubectl apply -f envoy/gateway/oncegate"))
	for _, dir := range []string{"istio", "gateway"} {
		files, err := filepath.Glob(filepath.Join(c.dir, "envoy", dir, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, f := range files {
			apply := "kubectl apply --server-side --dry-run=server --validate=strict --force-conflicts -f "
			c.paste(t, apply+f)
			c.refused(t, "sed 's/^spec:/spec:\\n  unknownField: 1/' "+f+" | "+apply+"-", "unknownField")
		}
	}
}

const istioCRDs = "manifests/charts/base/files/crd-all.gen.yaml" // in Istio's module

// crds defines the kinds of Istio, Envoy Gateway and cert-manager.
func (c *cluster) crds(t *testing.T) {
	t.Helper()
	charts := filepath.Join(root, ".ci", "charts") // the module whose tests know the same versions
	gateway := filepath.Join(moduleDir(t, charts, "github.com/envoyproxy/gateway"), "charts/gateway-helm/charts/crds/crds")
	for _, files := range []string{
		filepath.Join(moduleDir(t, ".", "istio.io/istio"), istioCRDs),
		gateway + "/gatewayapi-crds.yaml", gateway + "/generated",
		filepath.Join(moduleDir(t, charts, "github.com/cert-manager/cert-manager"), "deploy/crds"),
	} {
		c.paste(t, "kubectl apply --server-side -f "+files)
	}
	c.paste(t, "kubectl wait --for condition=established --timeout 5m crd --all")
}
