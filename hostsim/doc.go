// Package hostsim is a Proxy-Wasm host that behaves like Envoy wherever an HTTP filter
// can tell: in its threads, its shared data, its callouts, and above all in the way
// it pauses, buffers and ends streams. It is a library for tests (package hostsimtest
// has the conveniences) and the core of a small gateway that runs a filter without
// Envoy. CONFORMANCE.md lists what it promises, with the test for each promise.
//
// # Parts
//
// A Host is one plugin in one process. It owns
//
//	main thread   an event loop with a VM that is configured and ticks
//	workers       N event loops, each with its own VM, each playing its own streams
//	Process       shared data, shared queues and metrics; several hosts may share one
//	clusters      where callouts go: HTTPCluster, or anything that implements Cluster
//	Clock         the machine's, or a VirtualClock that a test moves
//
// A guest is a wasm module (Wasm) or a Go type (Native); both run under the same rules.
// The core knows guests as the interface Guest and is known to them as HostCalls; only
// the files wasm*.go know the engine, wazero.
//
// # Loops
//
// Every thread is one goroutine that takes events from a mailbox: a stream's input, a
// queue's item, a tick, a callout's answer. All state of a VM and of its streams
// belongs to its loop, so that callbacks of one VM never overlap and nothing there
// needs a lock. Posting an event never blocks; the mailbox is bounded by what may
// post (streams and their backlogs, calls under way, queued items, timers).
//
// # A VM's life
//
//	newGuest: _initialize or _start (host calls restricted)
//	   -> on_context_create(root) -> on_vm_start -> on_configure -> serving
//	serving -> trap: dead; FailurePolicy decides what follows
//	serving -> on_done -> (proxy_done) -> on_delete -> gone
//
// Start does this on a canary that is thrown away, then on the main thread, then on all
// workers at once.
//
// # A stream's life
//
//	NewStream -> RequestHeaders: on_context_create, on_request_headers, ...
//	          -> one half for the request, one for the response (below)
//	          -> over, by the end of the response, a reset, or the client's leaving:
//	             on_log, on_done, on_delete, Done
//
// Each half is Envoy's filter manager with a single filter in the chain:
//
//	            headers: Pause                      body: Pause
//	iterating -----------------> stopAll   iterating --------> stopSingle
//	    ^                           |          ^                   |
//	    |        resume: headers    |          |  Continue from    |
//	    |        go on, then body   |          |  the next body    |
//	    +---- and trailers are -----+          +-- or trailers ----+
//	          played through the                   callback, or
//	          callbacks                            resume: all that
//	                                               is held goes on
//
// With AllowOnHeadersStopIteration a pause on headers leads to stopSingle instead, with
// the headers among what is held.
//
// What a callback asks for (resume, local reply, close, done) happens when it has
// returned, in the order in which it was asked: the first of these, inside the end of the
// callbacks that it leads to the second, and so on (Config.MaxNestedReplies). A local reply that is made while the
// request half runs waits until that half is done with the callback, then travels back
// through the response half; one made when response headers are there goes straight to
// the client, or resets it if the headers are out.
//
// # Rationale
//
// Why not test against the SDK's own proxytest? It is friendlier than Envoy: its shared
// data has other CAS rules, callbacks run in the caller's stack, nothing is ever
// deferred, bodies are never held. Filters pass there that fail in production.
//
// Why are modules rewritten to bound their work, instead of using the engine's own
// interruption? The engine's leaves compiled code for every round of every loop and starts
// a goroutine for every call: loops became 25 times slower and an empty call 50 times.
// The counter that package meter weaves in costs about 1 %, and the same call costs the
// same number of units on every machine, so that limits can be tested without a clock.
//
// Why is misuse reported and survived? In Envoy, resuming what is not paused is an
// assertion in debug builds and undefined otherwise. A test wants to hear of it
// (Violations), and the gateway should not fall over it.
//
// Why does Await not count what a filter holds below the limit? Because Envoy does not
// either: it reads its socket until the buffer is above the limit, and one read can bring
// as much as the limit on top of what is held.
//
// Why no blocking in sinks? They run on the loop, and a slow client would stall every
// stream of its worker. A sink that writes to a socket keeps a queue and uses the windows.
package hostsim
