// Package gatebench measures the gate as it ships: build/oncegate.wasm on hostsim.
// It has only tests and benchmarks.
//
// The yardstick is a filter that does nothing, made with the same SDK and compiler
// (testdata/noop), on the same host in the same run. BenchmarkHit gives the cost of a
// hit as a multiple of that filter's cost. It also shows both without the host's own
// cost for a stream, which it measures with a native guest that does nothing.
//
// Allocations inside the VM cannot be seen from outside. A second module
// (testdata/memstats) counts them. It has the same gate, is compiled in the same way,
// and adds the runtime's own counters as two gauges.
//
// The package also measures how many host calls a miss makes and why
// (miss_test.go), whether hits scale with the workers (BenchmarkHitWorkers), and
// whether memory stops growing in the VM and in shared data (memory_test.go; a
// million requests with GATE_LOAD_REQUESTS=1000000, as in make test-long).
package gatebench
