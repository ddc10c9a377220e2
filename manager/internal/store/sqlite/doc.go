// Package sqlite is the store engine on one SQLite file, for a single manager
// that wants its state in a file other tools can read.
//
// SQLite has one writer at a time. The engine makes that one goroutine, which
// takes whatever updates are queued and runs them one after the other, each
// under a savepoint of its own, inside one SQLite transaction: concurrent
// callers share one commit and one fsync. Views read snapshots through a few
// connections of their own.
//
// Durability: journal_mode WAL with synchronous FULL, so that an acknowledged
// transaction survives kill -9 and power loss as far as the disk keeps its
// word. An I/O error while committing stops the engine for good (Failed): what
// a failed fsync left on the disk is unknown. A full disk fails the
// transactions with ErrNoSpace and nothing else.
//
// The file is for one process at a time: Open takes a lock on "<file>.lock".
package sqlite
