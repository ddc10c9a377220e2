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
// A Target is a proxy with the gate in it: the gateway, and the Envoys that package envoybin
// gives to tests, Envoy 1.40.0 and 1.36.2 unless the environment says otherwise. Their
// configurations are those of package envoy with other addresses. The first line of the
// output says what the tests run on. A missing Envoy is named there, and fails the
// tests where CI=true or ENVOYS require it.
//
// # How tests wait
//
// On log lines that processes write once they listen, on answers, and on conditions that
// are asked for again until they hold; the time limits are there to end a hang. No test
// depends on how fast the machine is. Where an outcome depends on a TTL, the TTL is either
// so long that it cannot end during the test or the test waits until its end is seen.
package e2e
