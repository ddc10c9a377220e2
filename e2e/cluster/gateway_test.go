package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// aroundGateway is what docs/envoy-gateway.md takes for granted: a Gateway, the payments, and a route to them.
const aroundGateway = `apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: eg}
spec: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
---
apiVersion: v1
kind: Namespace
metadata: {name: payments}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: payments, namespace: payments}
spec:
  selector: {matchLabels: {app: payments}}
  template:
    metadata: {labels: {app: payments}}
    spec:
      containers:
      - {name: payments, image: "registry.example.com/payments:1", args: ["--listen=0.0.0.0:9000"], readinessProbe: {httpGet: {path: /executions, port: 9000, scheme: HTTP}}}
---
apiVersion: v1
kind: Service
metadata: {name: payments, namespace: payments}
spec:
  selector: {app: payments}
  ports: [{port: 9000}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: public, namespace: payments}
spec:
  gatewayClassName: eg
  listeners: [{name: http, protocol: HTTP, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: payments, namespace: payments}
spec:
  parentRefs: [{name: public}]
  hostnames: [payments.example.com]
  rules: [{backendRefs: [{name: payments, port: 9000}]}]
`

// TestEnvoyGateway: what docs/kubernetes.md and docs/envoy-gateway.md have a reader type makes a gate that works. Envoy Gateway,
// the managers, the payments and Envoy run as pods, with the commands, variables, files and probes that their objects have.
func TestEnvoyGateway(t *testing.T) {
	programs := map[string]string{
		"envoyproxy/envoy": envoyPath(t), "envoyproxy/gateway": built(t, "cluster/envoy-gateway"), "oncegate/manager": built(t, "oncegate"),
		"payments": built(t, "payments"),
	}
	if !onNode(t) {
		return
	}
	n, p := newNode(t, programs), readPage(t, "envoy-gateway.md")
	n.crds(t)

	// Envoy Gateway, as a reader of the page has it already: the chart in its module is a template of the published one.
	module := moduleDir(t, ".", "github.com/envoyproxy/gateway")
	n.paste(t, fmt.Sprintf(`cp -r %s/charts/gateway-helm . && chmod -R u+w gateway-helm
sed 's|\${GatewayImage}|docker.io/envoyproxy/gateway:%s|; s|\${GatewayImagePullPolicy}|IfNotPresent|' gateway-helm/values.tmpl.yaml >gateway-helm/values.yaml`,
		module, filepath.Base(module)))
	n.paste(t, "helm install eg ./gateway-helm -n envoy-gateway-system --create-namespace --set crds.enabled=false --wait --timeout 5m")
	n.apply(t, aroundGateway)

	upgrade := readPage(t, "envoy-gateway.md").block(t, "helm upgrade eg")
	const published = "oci://docker.io/envoyproxy/gateway-helm"
	if !strings.Contains(upgrade, published) {
		t.Errorf("the page upgrades from another chart: %s", upgrade)
	}
	n.paste(t, strings.Replace(upgrade, published, "./gateway-helm", 1))
	n.paste(t, "kubectl -n envoy-gateway-system rollout status deployment/envoy-gateway")

	n.paste(t, readPage(t, "kubernetes.md").block(t, "kubectl create namespace oncegate"))
	n.write(t, "values.yaml", readPage(t, "kubernetes.md").yaml(t, "committed-ttl-seconds"))
	n.write(t, "gateway.yaml", p.yaml(t, "networkPolicy"))
	n.paste(t, strings.Replace(readPage(t, "kubernetes.md").block(t, "helm install oncegate charts/oncegate"), "-f values.yaml", "-f values.yaml -f gateway.yaml", 1))

	n.pushImages(t)
	n.paste(t, readPage(t, "envoy-gateway.md").block(t, "sed -n 's/ gate$//p' tokens"))
	n.edit(t, filepath.Join("envoy", "gateway", "oncegate.yaml"), "oncegate/gate:0.1.0", "oncegate/gate:1.2.3")
	n.paste(t, readPage(t, "envoy-gateway.md").block(t, "kubectl apply -f envoy/gateway/oncegate"))
	n.paste(t, readPage(t, "envoy-gateway.md").block(t, "kubectl -n payments patch gateway public"))
	await(t, "the proxies' new container", func(ctx context.Context) error {
		_, err := output(ctx, n.dir, n.env, "bash", "-c", `kubectl -n envoy-gateway-system get pod -l gateway.envoyproxy.io/owning-gateway-name=public -o json |
			jq -e '.items | length == 1 and any(.[0].spec.containers[].env[]?; .name == "ONCEGATE_GATE_TOKEN")'`)
		return err
	})

	conditions, curl, _ := strings.Cut(readPage(t, "envoy-gateway.md").block(t, "kubectl -n payments get envoypatchpolicy"), "\n")
	await(t, "accepted policies", func(ctx context.Context) error {
		got, err := output(ctx, n.dir, n.env, "bash", "-c", conditions)
		accepted, programmed := strings.Count(got, "type: Accepted"), strings.Count(got, "type: Programmed")
		if err == nil && (accepted != 3 || programmed != 2 || strings.Contains(got, `status: "False"`)) {
			err = fmt.Errorf("%d accepted, %d programmed:\n%s", accepted, programmed, got)
		}
		return err
	})
	envoy := n.podIP(t, "envoy-gateway-system", "gateway.envoyproxy.io/owning-gateway-name=public")
	upstream := n.podIP(t, "payments", "app=payments")
	await(t, "the gate", func(ctx context.Context) error {
		dump, err := n.envoyDump(ctx, envoy)
		if err == nil && !strings.Contains(dump.text("envoy.config.listener.v3.Listener"), `"root_id":"oncegate-body"`) {
			err = errNotYet
		}
		return err
	})
	for run := range 8 { // both shards have keys of them
		pays(t, n.cluster, curl, envoy+":10080", fmt.Sprint("key-", run), upstream+":9000", run+1)
	}
	for i := range 2 {
		address := n.podIP(t, "oncegate", fmt.Sprintf("statefulset.kubernetes.io/pod-name=oncegate-manager-%d", i))
		if metrics := fetch(t, "http://"+address+":8091/metrics"); !asked.MatchString(metrics) {
			t.Errorf("nothing asked the manager %d:\n%s", i, metrics)
		}
	}
}

// edit replaces texts of a file in the terminal's folder, in turns.
func (c *cluster) edit(t *testing.T, name string, replace ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(string(text), replace[i]) {
			t.Fatalf("%s has no %q", name, replace[i])
		}
	}
	c.write(t, name, strings.NewReplacer(replace...).Replace(string(text)))
}

// podIP is the address of the only pod with a label.
func (n *node) podIP(t *testing.T, namespace, label string) string {
	t.Helper()
	n.paste(t, "kubectl -n "+namespace+" wait --for condition=ready --timeout 5m pod -l "+label)
	return strings.TrimSpace(n.paste(t, "kubectl -n "+namespace+" get pod -l "+label+" -o 'jsonpath={.items[*].status.podIP}'"))
}

// envoyDump is what the Envoy of a pod runs.
func (n *node) envoyDump(ctx context.Context, ip string) (dump, error) {
	text, err := output(ctx, "", nil, "ip", "netns", "exec", netns(ip), "curl", "-fsS", "http://127.0.0.1:19000/config_dump?include_eds")
	if err != nil {
		return nil, err
	}
	return parseDump([]byte(text))
}

// pushImages does what docs/kubernetes.md says, with what `make release` has made.
func (n *node) pushImages(t *testing.T) {
	t.Helper()
	release, push, _ := strings.Cut(readPage(t, "kubernetes.md").block(t, "make release VERSION="), "\n")
	if release != "make release VERSION=1.2.3" { // as the Makefile calls it
		t.Errorf("the page makes another release: %s", release)
	}
	n.paste(t, "mkdir build && ln -s "+built(t, "release")+" build/release\n"+push)
}
