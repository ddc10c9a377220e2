// Package e2e tests the whole system as real processes: clients, the gate in a proxy,
// the manager with its write-ahead log, and the payments upstream, all on
// loopback ports that the kernel picks.
//
// # What runs
//
// The gate is build/oncegate.wasm, the file that users deploy; the tests fail with a
// clear message where it is missing (make build). The Go programs are built from
// the source tree when the tests start, with the race detector when the tests have it:
// a data race in any of them fails the test that ends the process.
//
// A Target is a proxy with the gate in it. The gateway always is one. A real Envoy is
// another where there is a binary, named by ENVOY_BIN or found as envoy on PATH; its
// configurations are those of package envoy with other addresses. Without a
// binary the log says "e2e: real Envoy did not run" once, and no test claims otherwise.
//
// # How tests wait
//
// On log lines that processes write once they listen, on answers, and on conditions that
// are asked for again until they hold; the time limits are there to end a hang. No test
// depends on how fast the machine is. Where an outcome depends on a TTL, the TTL is either
// so long that it cannot end during the test or the test waits until its end is seen.
package e2e
