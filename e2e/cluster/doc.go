// Package cluster has tests with the programs of a Kubernetes cluster, built from their Go modules at the versions in go.mod.
//
// An API server (etcd, kube-apiserver with its admission; the namespace demands Pod Security "restricted") gets what docs/kubernetes.md,
// docs/istio.md and docs/envoy-gateway.md have a reader type, by kubectl and helm. It judges the chart's objects, the updates that add and remove shards,
// and the files in envoy/.
//
// For docs/envoy-gateway.md there is a node, too (node_test.go). Kubernetes' controllers make the pods, among them those of the chart, of Envoy Gateway
// and of the Envoy that it asks for. The test runs their containers as processes with a network and a root file system of their own,
// for which it runs itself in Linux namespaces. There are no images: programs built here stand for them, and run as root.
//
// Istio's control plane, istiod, reads the files in envoy/istio, and a real Envoy takes its configuration from there. Managers and payments run
// beside it, at addresses of their own, which a DNS server of the test knows; those of shards.yaml get the arguments in that file. Envoy's own build lacks Istio's filters for ALPN and metadata,
// so istiod leaves them out. The module comes from a file: to fetch an image is the work of Istio's agent, which does not run here.
//
// `make test-cluster` builds the programs and runs the tests. The tests are a separate module, because the programs need hundreds of others.
package cluster
