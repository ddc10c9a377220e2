// Package charts tests the Helm chart of charts/oncegate and the custom resources of envoy/istio and envoy/gateway, with
// Helm's own library and with the types, schemas and rules of Kubernetes, Istio, Envoy Gateway and others. It is a module of its
// own, because these need many others.
//
// Each file testdata/NAME.values.yaml is rendered and compared with testdata/NAME.golden.yaml; `go test . -update` writes
// them. testdata/schemas has the JSON schemas for kubeconform. They cannot be downloaded where the tests run, so the command
// schemas made them from files in Go modules:
//
//	k8s.io/kubernetes v1.36.0               api/openapi-spec/swagger.json
//	istio.io/api v1.31.1                    kubernetes/customresourcedefinitions.gen.yaml
//	github.com/cert-manager/cert-manager v1.21.2  deploy/crds/cert-manager.io_certificates.yaml
//	github.com/envoyproxy/gateway v1.9.1    charts/gateway-helm/charts/crds/crds/gatewayapi-crds.yaml, generated/*.yaml
package charts
