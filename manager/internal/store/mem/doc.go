// Package mem is the in-memory engine: ordered maps under one lock. Without a
// log it is the volatile engine "memory"; with one it is "wal", the default
// durable engine.
//
// # Transactions
//
// Update runs its function under the lock, over an overlay that collects the
// writes, so functions never conflict. Then, still under the lock, it appends
// the write set to the log as one record and applies it to the maps. An
// appended record cannot fail any more except together with the whole engine,
// so memory is never ahead of what the log will hold. The lock is released
// before the wait for durability; that is what lets many transactions share
// one fsync.
//
// Callers who find the lock taken do not queue up for it: they leave the call
// to the holder of the lock, which runs it before giving the lock up, see call. At
// 64 callers that makes a sixth more reserves of a ledger durable per second.
//
// When the log is busy (its queue is full, or its next segment is still being
// created) nothing is applied: Update waits without the lock and runs the
// function again.
//
// # No reader sees what a crash could undo
//
// Memory runs ahead of the disk by the transactions that wait. Each record
// carries the log sequence number of its last change, recently deleted keys
// and indexes keep that of the deletion. A transaction notes the highest
// number among what it looked at. If it writes, its own record follows those
// in the log and is durable after them; if it does not (a View, an Update that
// writes nothing or whose function returned an error), it waits for that
// number before it answers. Readers of records that are durable already never
// wait. Len counts durable records only: changes of counts are queued and
// applied as they become durable.
//
// # Snapshots
//
// A snapshot stands for the state after some sequence number S. Its writer
// walks over the records in small steps under the lock, and skips those
// that are newer than S. A transaction that replaces or deletes a record not
// newer than S hands the old version over to the running snapshot. So each
// record as of S is written at least once, from a consistent view, while
// transactions go on; a record that is written twice is the same twice.
//
// # Recovery
//
// The snapshot's records and then the write sets of the log are applied in
// order. Both are encoded alike, see codec.go. The result depends on nothing
// but the files.
package mem
