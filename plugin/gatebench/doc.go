// Package gatebench measures the gate as it ships: build/oncegate.wasm on hostsim.
// There is no code in it but tests and benchmarks.
//
// The yardstick is a filter that does nothing, made with the same SDK and compiler
// (testdata/noop), on the same host in the same run; BenchmarkHit gives the cost of a
// hit as a multiple of it. Both are also shown without what the host itself takes
// for a stream, which a native guest that does nothing tells.
//
// What is allocated inside the VM cannot be seen from outside. It is counted by a
// second module (testdata/memstats) that is made of the same gate and compiled the
// same way, and adds the runtime's own counters as two gauges.
//
// The other questions: how many host calls a miss takes and what each is for
// (miss_test.go), whether hits scale with the workers (BenchmarkHitWorkers), and
// whether memory stays where it is, in the VM and in shared data (memory_test.go; a
// million requests with GATE_LOAD_REQUESTS=1000000, as in make test-long).
package gatebench
