// Package hostsim is a Proxy-Wasm host that behaves like Envoy wherever a filter
// can tell.
package hostsim
