// Package envoy holds configurations of Envoy, Istio and Envoy Gateway with the gate in them, and
// reads them with the proxies' own API types.
//
//	envoy.yaml             a static Envoy before one service, body mode: the smallest file that is right
//	body-mode.yaml         a static Envoy, body mode, with the routes in an inner listener as well, and a reason for each setting
//	headers-mode.yaml      a static Envoy, headers mode
//	managers.yaml          several managers that share a store, for both
//	capabilities.yaml      what the module calls, to restrict it
//	tls.yaml               the cluster of a manager with TLS and client certificates, for both
//	shards.yaml            the clusters of several managers with a ledger each, for both
//	xds/                   body-mode.yaml for an Envoy that takes changed files while it runs; with shards and several managers, too
//	istio/body-mode.yaml   the gate at Istio's ingress gateway, body mode
//	istio/traffic-extension.yaml  the same in headers mode
//	istio/wasmplugin.yaml  the same in headers mode for Istio without TrafficExtension
//	istio/manager.yaml     how Istio's proxies reach the manager, and a protected route
//	istio/grpc.yaml        the routes for unary gRPC calls, in body mode
//	istio/shards.yaml      several managers with a ledger each, and how Istio's proxies reach them
//	gateway/oncegate.yaml  the gate before a route of Envoy Gateway, body mode, and how its proxies reach the managers
//
// The files are meant to be copied; each says what to adapt. The Go code serves this package's tests, which check every
// file and the gate's configuration inside it. It also serves everything that runs body-mode.yaml and headers-mode.yaml in
// a real Envoy with other addresses (Local): the end-to-end tests and the examples.
package envoy
