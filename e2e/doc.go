// Package e2e tests the whole system as real processes: clients, the gate in a proxy, the manager with its write-ahead log,
// and the payments upstream. All of them listen on loopback ports that the kernel picks.
//
// # What runs
//
// The gate is build/oncegate.wasm, the file that users deploy. The tests fail with a clear message if it is missing (make
// build). The Go programs are built from the source tree when the tests start, in make test-deep with the race detector: a data
// race in a program fails the test that ends it.
//
// The proxies are the Envoys that package envoybin gives to tests (1.40.0 and 1.36.2 unless the environment says otherwise).
// Their configurations are those of package envoy with other addresses. The first line of output names what the tests run on.
// A missing Envoy is named there, and fails the tests if CI=true or ENVOYS require it.
//
// A test runs on each Envoy and in both modes, which are the cells of its matrix. make test runs it in one cell, which the
// test's name chooses. make test-deep runs it in the one that shares neither with it, and what can differ for a mode of one
// Envoy in all others (eachCell). make test-envoys runs all tests in all cells.
//
// # How tests wait
//
// Tests wait for log lines that processes write once they listen, for answers, and for conditions that they poll. Time limits
// only end a hang. No test depends on how fast the machine is. If an outcome depends on a TTL, the TTL is so long that it
// cannot end during the test, or the test waits until it sees its end.
package e2e
