// Package mem has two engines. The volatile engine "memory" is ordered maps under one lock. The default durable engine
// "wal" has the same maps, as layers of changes above a state on disk (package state), and a log (package wal).
//
// # Transactions
//
// Update runs its function under the lock, over an overlay that collects the writes, so functions never conflict. Then,
// still under the lock, it appends the write set to the log as one record and applies it to the maps. An appended
// record cannot fail any more, except together with the whole engine, so memory never holds what the log will not.
// Update releases the lock before it waits for durability, so many transactions can share one fsync. Nothing that holds
// the lock waits for another transaction, or for an fsync.
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
// # Layers
//
// With a log, a collection has up to two layers of changes in memory: the hot one, which writes go to, and while a flush
// runs the frozen one, which does not change. Below them is the state. A version in a layer hides what is below it, and
// remembers the index entries of the version below, which the flush must delete. A deletion is a version, too, where
// there is something below.
//
// Scans merge the entries of layers and state; they read the latter from the disk under the lock. Each index remembers
// parts of the state and of the frozen layer in which everything is hidden (see passed), so a queue whose front is taken
// again and again is not read from its start.
//
// # Records on disk
//
// A function that needs a record of the state ends with an error of this package's own. The record is read without the
// lock, and the function runs again. So no transaction waits for the reads of another one. What was read stays right
// until it is used, because any later change is in the layers. A function that still lacks a record in its fourth run
// or later reads it from the disk under the lock, and all other transactions wait for that read. Prefetch names several
// records at once, and a record that a scan has found is read together with its neighbours. Most keys that are looked up
// are absent, and the state knows that without a read.
//
// # Flushes
//
// A flush begins when the hot layers have Options.LayerBytes, or the log has grown by Options.FlushBytes. It freezes the
// layers, waits until their last record is durable, and writes all their changes to the state at once. Then it drops
// the layers and lets the log delete the segments that only they needed. A reservation that is committed within one
// layer is written to the state once.
//
// A flush that fails is tried again, and the frozen layers stay. Once there are twice as many changes as make a flush due,
// calls that write wait for the end of the flush. While flushes fail they get store.ErrNoSpace or store.ErrUnavailable.
//
// # Recovery
//
// Open replays the records of the log that the state does not have, and flushes whenever a layer is full, so its memory
// is bounded. The log's snapshot is a single record which says that the state has everything up to there. A log that
// was restored from a copy has all records in its snapshot instead: Open makes them the state. The result depends only
// on the files. A log and a state that do not belong together are ErrState.
package mem
