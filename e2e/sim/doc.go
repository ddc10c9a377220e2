// Package sim runs the system in simulated worlds: the gate, the ledger, the server's handlers
// and the write-ahead log are the real ones; threads, networks, disks, clocks, clients and the
// upstream are simulated. One seed decides everything that happens in a world, and an
// adversary uses that to do what real systems meet rarely, and hardly ever together.
//
// # How to run it
//
//	go test ./e2e/sim                        some thousand seeds, in about a minute
//	go test ./e2e/sim -sim.seed=7            seed 7 alone, with its timeline
//	go test ./e2e/sim -sim.seeds=1000000     so many seeds (SIM_SEEDS in the environment is the same)
//	go test ./e2e/sim -sim.first=5001        other seeds
//	go test ./e2e/sim -sim.with=busy+garble  powers that all worlds have; -sim.without: none has
//	SIM_HOLES=window go test -v ./e2e/sim -run TestHoles   how many seeds the holes of that name take,
//	                                         on a branch on which they are open
//
// A seed that fails prints its number, what was found, the last events, and the file that has
// the whole timeline. A line of it is an event: virtual time in seconds, who, what.
//
//	4.680566  upstream EXECUTES key5/charges/alice: run 2, will take 9.1ms, will answer 200
//
// Proxies are a, b and c; a.1 is the VM of the first worker of proxy a, a.0 the main thread's,
// which gets no requests; m0 to m3 are the managers' machines, and the shards that they are; b0.1 is
// the second client of bob's operation with key0.
//
// # What is real
//
// The gate is the native build of package gate with the caches and configuration of the
// shipped one. vm is its Host: shared data and queues as Envoy has them, several VMs in a
// proxy, streams that pause and resume (half is Envoy's filter manager with one filter). A
// manager is the in-memory engine on the log on package faultfs, the ledger, and the server's
// handlers, called without a connection (server.Do). The disk takes time to sync, and loses
// or tears what was not synced when the manager's machine crashes.
//
// # One clock, one order
//
// A world lives in a bubble of testing/synctest, so time is virtual: a world of a minute takes
// some milliseconds. All that is simulated runs in one goroutine that carries out events in
// the order of their times. Only the manager's work has goroutines of its own; the loop lets
// them come to rest before the next event. So a seed is always the same world, which
// TestSameSeed checks; only when a stopped manager goes on may the order of what it does next
// differ.
//
// # What the adversary may do
//
// Each seed draws a Plan with some of the powers (Power), for with all of them every world
// would look alike. At the end of its time the adversary leaves: all processes are there
// again, no message gets lost any more, and every operation is asked for once more through
// every proxy.
//
// Between a gate and a manager, calls and answers get lost, doubled and late. Answers are cut short,
// or replaced by those of somebody else, and an answer to a batch may have too few or too many parts.
// A manager may be killed when it has carried out a batch and has not said so. A proxy's thread that
// is busy finds more ready at once, which is how calls come to go together.
//
// Half of the worlds have several ledgers. One may be away while the others serve, a cluster of a proxy
// may lead to the wrong one, and the list of shards may change to any other. Gates and managers go
// over to the new list one by one in any order, and are killed and replaced meanwhile. Only one step
// has its place: a gate forgets the previous list when every manager has served with the new one for
// so long that nothing of before is left. That is the longest time of a request, then that of its
// reservation and its outcome, and it does not pass while a manager is away.
//
// # What is checked
//
//   - No operation is executed a second time within its window (except what
//     failure_mode open let through unprotected).
//   - An answer of upstream's that a client gets is that of an execution of its own operation,
//     byte for byte, and no client gets a 2xx that upstream has not given.
//   - An outcome that a living gate has is the ledger's in the end, a key under which nothing
//     ran is free, and where nothing keeps a gate from renewing, no reservation runs out.
//   - No client waits longer than all timeouts together, in a proxy that lives.
//   - A manager starts from whatever a crash has left.
//   - What managers answer is explained by some order of the calls (simulated.Model with
//     porcupine): so what was acknowledged has survived. A part of the seeds, as it takes long.
//   - Shared data, the window and the log's disk stay within their bounds, and what has expired
//     is swept; in the end no stream is left
//     and no gate has an outcome that the ledger does not know.
//   - The gate never does what Envoy does not forgive: callouts from a stream's context,
//     resuming what is not paused, a counter that is changed by 0.
package sim
