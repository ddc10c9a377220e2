// Package sim runs the system in simulated worlds. The gate, the ledger, the server's handlers and
// the write-ahead log are the real code. Threads, networks, disks, clocks, clients and the upstream
// are simulated. One seed decides everything that happens in a world. An adversary combines faults
// that real systems meet rarely, and hardly ever together.
//
// # How to run it
//
//	go test ./e2e/internal/sim                        some thousand seeds, in about a minute
//	go test ./e2e/internal/sim -sim.seed=7            seed 7 alone, with its timeline
//	go test ./e2e/internal/sim -sim.seeds=1000000     so many seeds (SIM_SEEDS in the environment is the same)
//	go test ./e2e/internal/sim -sim.first=5001        other seeds
//	go test ./e2e/internal/sim -sim.with=busy+garble  powers that all worlds have; -sim.without: none has
//	SIM_HOLES=window go test -v ./e2e/internal/sim -run TestHoles   how many seeds the holes of that name take,
//	                                         on a branch on which they are open
//
// A seed that fails prints its number, what was found, the last events, and the file with the
// whole timeline. Each line of it is an event: virtual time in seconds, the actor, the action.
//
//	4.680566  upstream EXECUTES key5/charges/alice: run 2, will take 9.1ms, will answer 200
//
// Proxies are a, b and c. a.1 is the VM of the first worker of proxy a; a.0 is the main thread's VM,
// which gets no requests. m0 to m3 are the managers' machines, and also the names of their shards.
// b0.1 is the second client of bob's operation with key0.
//
// # What is real
//
// The gate is the native build of package gate with the caches and configuration of the
// shipped one. vm is its Host: it has shared data and queues like Envoy's, several VMs in a
// proxy, and streams that pause and resume (half is Envoy's filter manager with one filter). A
// manager is the in-memory engine on a log on package faultfs, the ledger, and the server's
// handlers, called without a connection (server.Do). No scope has a share of the window. The disk takes time to sync, and loses
// or tears what was not synced when the manager's machine crashes.
//
// # One clock, one order
//
// A world lives in a bubble of testing/synctest, so time is virtual: a world of a minute takes
// some milliseconds. Everything simulated runs in one goroutine that carries out events in the
// order of their times. Only the manager's work has goroutines of its own, and the loop lets them
// come to rest before the next event. So a seed is always the same world; TestSameSeed checks
// that. The one exception is a stopped manager that continues: the order of what it does next may
// differ.
//
// # What the adversary may do
//
// Each seed draws a Plan with some of the powers (Power), because with all of them every world
// would look alike. At the end of its time the adversary leaves: all processes run again, no
// message gets lost, and clients repeat every operation through every proxy.
//
// A gate and a manager have connections (conn), on which each message is one call or one reply, in its order. They are late, and
// break at any message, in one direction or both. The gate may not hear of it, and the manager carries out what it got.
// Messages are cut short, and proxies in between end connections with any status. A manager may be killed after it
// has carried out a call and before it answers. A connection may break when a call has left, so that the gate makes it twice.
//
// Half of the worlds have several ledgers. One may be away while the others serve, a cluster of a proxy
// may lead to the wrong one, and the list of shards may change to any other. Gates and managers change
// to the new list one by one in any order, and are killed and replaced meanwhile. Only one step
// has its place: a gate forgets the previous list after every manager has served with the new one for
// so long that no older entry is left. That is the longest time of a request, plus that of its
// reservation and its outcome. The time does not pass while a manager is away.
//
// A machine may lose its disk (lose). Its manager starts as a new ledger, and a gate that remembers the lost one reports that.
// The disk is lost only while each proxy has met the ledger, and no proxy is restarted before the new ledger has heard of the
// lost one: what nobody remembers nobody can miss. The answers that only that disk had are gone.
//
// # Several data centres
//
//	go test ./e2e/internal/sim -run TestCentres
//	go test ./e2e/internal/sim -sim.with=centres -sim.seed=7
//
// These worlds have three data centres, each with a manager that has an origin and one or two proxies.
// Clocks differ by up to a day. The managers pull from one another and call the homes of global keys
// over a network that loses, delays and doubles calls and answers. The adversary also cuts data centres
// off (partition), loses what pages of a change feed hold, and replays old pages (pages). Feeds keep few
// changes, so cursors become too old. Managers are killed and recover from their logs as in all worlds.
//
// Data centres forget. One loses its disk (lose) or is put back to an earlier state (back), and clients repeat what they
// sent before. A second manager of one origin starts on an empty disk (twin), and gates are led to it. A new ledger waits
// until all of its peers have spoken, as in the program.
//
// A global key is never executed twice, and a local one not twice in one data centre, except what no other data centre
// knew of in time after a loss; forget.go says what that is. Soon after the adversary has left, 15 s or five comparisons of
// digests where pages or disks were lost, each data centre holds
// every acknowledged outcome: as its answer, or in a conflict. When no request is under way, all hold the
// same digests, answers and conflicts; executions that a loss cost are among the conflicts. An outcome that a data centre knew is not replaced by one of its
// own that ended later.
//
// # What is checked
//
//   - No operation is executed a second time within its window (except what
//     failure_mode open let through unprotected).
//   - When a client gets an upstream answer, it is byte for byte the answer of an execution of
//     its own operation. No client gets a 2xx that upstream has not given.
//   - A ledger whose disk was lost begins a quarantine with the first call of a gate that remembers the lost one, and no
//     other ledger begins one.
//   - An outcome that a living gate knows reaches the ledger in the end. A key under which nothing
//     ran is free. No reservation runs out if nothing keeps the gate from renewing it.
//   - No client of a living proxy waits longer than all timeouts together.
//   - A manager starts from everything that a crash can leave.
//   - What managers answer is explained by some order of the calls (simulated.Model with
//     porcupine), so everything acknowledged has survived. This takes long, so only part of the
//     seeds are checked.
//   - Shared data, the window and the log's disk stay within their bounds, and expired entries
//     are swept. In the end no stream is left, and no gate has an outcome that the ledger does not
//     know.
//   - The gate makes no call that is fatal or undefined in Envoy: a callout from a stream's context,
//     a resume of a stream that is not paused, a counter that is changed by 0.
package sim
