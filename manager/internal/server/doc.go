// Package server has the handlers of the manager's HTTP API: what callers may ask
// of the ledger, of the queue, and of records that cannot be read. Package httpd
// carries them.
//
// More groups of routes join through New; see httpd.Route. docs/reference/LEDGER.md and docs/reference/JOBS.md tell
// clients and operators what there is.
//
// # Performance
//
// A call costs the HTTP engine two reads and one write of the connection, and
// one that changes something waits once for the log. Most of the processor's
// time is the kernel's; what is ours is kept small like this:
//
//   - Raw requests are read in place: keys and tokens are views of the body
//     until the ledger has copied them into its record.
//   - Requests, answers and the ledger's transactions are reused. A reserve or a
//     commit allocates 6 to 7 objects, nearly all of them the record itself.
//   - Contexts that bound the work are shared by all requests of a second.
//   - Connections leave their timers alone while deadlines move away.
//   - Series of metrics are made once per route.
//
// Tried and dropped, as no gain could be told from noise: a higher GC percent
// (the collector takes 1 to 2 % at the default, with 300,000 entries), one
// processor more for the runtime than the machine has, and fdatasync through
// the kernel's asynchronous I/O. BenchmarkReserveCommit and BenchmarkReplay
// measure the server without an HTTP engine.
//
// Why does a handler wait for the log, when the connection could hold back the
// bytes of the answer until the record is durable? Because it brings nothing: the
// handler returned at once, no goroutine slept per call, a few wrote the answers
// of a whole batch in a row, and on two processors that they share with the
// clients 64 and 256 connections got as much done as before, within the noise.
// With one thread that polls all connections, instead of a goroutine for each, they
// got as much done at best. What a call costs beyond one that needs no log is the sync itself: the
// processors stand still until it is over, and have to be woken. Two groups of
// callers of which one works while the other's sync is under way pay for twice as
// many syncs, which costs more than it brings. Without any log the same calls reach
// about four fifths of what the engine does when it answers nothing but "ok".
package server
