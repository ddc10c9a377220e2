// Package sqlite is the store engine on one SQLite file, for a single manager whose state other tools can read.
//
// SQLite has one writer at a time, so the engine makes one batch of updates at a time (see package batch). It runs them
// one after the other inside one SQLite transaction, each under its own savepoint, so concurrent callers share one commit
// and one fsync. Views read snapshots through separate connections.
//
// Durability: journal_mode WAL with synchronous FULL, so an acknowledged transaction survives kill -9 and power loss,
// provided that the disk keeps what it confirmed. An I/O error during a commit stops the engine for good (Failed),
// because it is unknown what a failed fsync left on the disk. A full disk only fails the transactions, with ErrNoSpace.
//
// The file is for one process at a time: Open takes a lock on "<file>.lock".
package sqlite
