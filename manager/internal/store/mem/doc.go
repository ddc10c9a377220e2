// Package mem is the in-memory engine: ordered maps under one lock. Without a
// log it is the volatile engine "memory"; with one it is "wal", the default
// durable engine.
//
// # Transactions
//
// Update runs its function under the lock, over an overlay that collects the writes, so functions never conflict. Then,
// still under the lock, it appends the write set to the log as one record and applies it to the maps. An appended
// record cannot fail any more, except together with the whole engine, so memory never holds what the log will not.
// Update releases the lock before it waits for durability, so many transactions can share one fsync. Nothing that holds
// the lock waits for anything, so waiting for the lock needs no bound.
//
// When the log is busy (its queue is full, or its next segment is still being created) nothing is applied. Update waits
// without the lock and then runs the function again.
//
// # No reader sees what a crash could undo
//
// Memory is ahead of the disk by the transactions that wait for an fsync. Each record carries the log sequence number
// of its last change; recently deleted keys and indexes keep that of the deletion. A transaction keeps the highest
// number among everything it read. If it writes, its own record follows those in the log and is durable after them. If
// it does not (a View, an Update that writes nothing or whose function returned an error), it waits for that number
// before it answers. Readers of durable records never wait. Len counts durable records only: changes of the counts are
// queued and applied when they become durable.
//
// # Snapshots
//
// A snapshot holds the state after some sequence number S. Its writer walks over the records in small steps under the
// lock, and skips those that are newer than S. A transaction that replaces or deletes a record that is not newer than S
// passes the old version to the running snapshot. So each record as of S is written at least once, from a consistent
// view, while transactions continue. A record that is written twice is the same both times.
//
// # Recovery
//
// Open applies the snapshot's records and then the write sets of the log, in order. Both have the same encoding (see
// codec.go). The result depends only on the files.
package mem
