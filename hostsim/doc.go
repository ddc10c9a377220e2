// Package hostsim is a Proxy-Wasm host that behaves like Envoy in everything that an HTTP filter can observe: threads,
// shared data, callouts, and above all how it pauses, buffers and ends streams. It is a library for tests (package
// hostsimtest has helpers) and the core of a small gateway that runs a filter without Envoy. CONFORMANCE.md lists its
// guarantees, with the test for each.
//
// # Parts
//
// A Host is one plugin in one process. It owns
//
//	main thread   an event loop with a VM that is configured and ticks
//	workers       N event loops, each with its own VM, each playing its own streams
//	Process       shared data, shared queues and metrics; several hosts may share one
//	clusters      where callouts and gRPC streams go: HTTPCluster, or anything that implements Cluster or GRPCCluster
//	Clock         the machine's, or a VirtualClock that a test moves
//
// A guest is a wasm module (Wasm) or a Go type (Native); both run under the same rules. The core calls guests through
// the interface guest, and guests call the host through HostCalls. Only the files wasm*.go use the engine, wazero.
//
// # Loops
//
// Every thread is one goroutine that handles events from a mailbox: a stream's input, a queue's item, a tick, a
// callout's answer. All state of a VM and of its streams belongs to its loop, so callbacks of one VM never overlap and
// need no lock. Posting an event never blocks. The mailbox is bounded by what may post: streams and their backlogs,
// calls in progress, queued items, timers.
//
// # A VM's life
//
//	newGuest: _initialize or _start (host calls restricted)
//	   -> on_context_create(root) -> on_vm_start -> on_configure -> serving
//	serving -> trap: dead; FailurePolicy decides what follows
//	serving -> on_done -> (proxy_done) -> on_delete -> gone
//
// Start does this first on a canary that is discarded, then on the main thread, then on all workers concurrently.
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
//	    |        continue, then body   |          |  the next body    |
//	    +---- and trailers are -----+          +-- or trailers ----+
//	          played through the                   callback, or
//	          callbacks                            resume: all that
//	                                               is held continues
//
// With AllowOnHeadersStopIteration a pause on headers leads to stopSingle instead, and the headers are held too.
//
// What a callback asks for (resume, local reply, close, done) happens after it has returned, in the order of the calls.
// Each action runs inside the end of the callbacks that the previous one caused (Config.MaxNestedReplies). A local
// reply made while the request half runs waits until that half has finished with the callback, and then travels back
// through the response half. A local reply made when response headers have arrived goes directly to the client, or
// resets it if the headers were sent.
//
// # gRPC streams
//
// A filter opens a stream in any context, and the stream belongs to the plugin (guestStream). What its server does arrives
// on the loop as events (StreamEvents) and becomes callbacks in their order, always with trailing metadata before the
// close. Envoy keeps a stream that has ended until the guest closes or cancels it, but frees what is behind it. So a filter
// must do that in the close callback, and must cancel a stream, or open the next one, in a callback that is not the
// stream's own. A callback may open one stream only, and must not ask for a resume or a reply before that.
//
// # Rationale
//
// Why not test against the SDK's own proxytest? It is more lenient than Envoy: its shared data has other CAS rules,
// callbacks run in the caller's stack, nothing is deferred, paused bodies have no limit. Filters that fail in production
// pass there. docs/hostsim.md compares the two.
//
// Why has a callback no time limit by default? Envoy has none. The engine's interruption puts a check into each iteration
// of a loop, and starts a goroutine for each call.
//
// Why is misuse reported and survived? In Envoy, resuming a stream that is not paused is an assertion in debug builds
// and undefined otherwise. A test wants to learn of it (Violations), and the gateway must not crash.
//
// Why does AwaitRequest not count what a filter holds below the limit? Envoy does not count it either: it reads its
// socket until the buffer is above the limit, and one read can add as much as the limit to what is held.
//
// Why must sinks not block? They run on the loop, and a slow client would stall every stream of its worker. A sink that
// writes to a socket keeps a queue and uses the windows.
package hostsim
