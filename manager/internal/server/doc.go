// Package server has the handlers of the manager's HTTP API: what callers may ask
// of the ledger, of the queue, and of records that cannot be read. Package httpd
// carries them.
//
// More groups of routes join through New; see httpd.Route. docs/reference/LEDGER.md and docs/reference/JOBS.md show
// clients and operators what they can call.
//
// # Performance
//
// Raw requests are read in place: keys and tokens are views of the body until the
// ledger has copied them into its record. Calls and the ledger's transactions are
// reused. A reserve or a commit allocates 6 to 7 objects, nearly all of them the
// record itself. BenchmarkReserveCommit and BenchmarkReplay measure the handlers
// without a network. docs/RATIONALE.md has the rejected options.
package server
