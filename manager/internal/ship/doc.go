// Package ship copies the records of a write-ahead log to object storage while a
// manager runs, and makes data directories of the copies.
//
// # Objects
//
// A destination is what a URL names: a bucket, a part of one, or a directory. It has the copies of one ledger:
//
//	lease                    which manager may ship here
//	ledger/manifest          the log's objects
//	ledger/TERM/tNNN         a run of the log's tail
//	ledger/TERM/h            the least number of those runs (the head)
//	ledger/TERM/rNNN         a run that small ones were merged into
//	ledger/TERM/sNNN-PPP     a part of a snapshot
//
// The store is the service that serves the destination.
//
// A run holds consecutive records of one segment, about 8 MiB at most, with the times at which they became durable. A
// snapshot holds records of the state that the log led to, see Snapshot. Each object has the CRC-64/NVME of its records
// and the CRC-32C of its header. The manifest has each object's CRC-64. Manifest and head begin with the SHA-256 of their JSON.
//
// # Order
//
// Only durable records are read. A run or a part has a name that is used once. It is written before the manifest names
// it, and deleted after the manifest dropped it. A manifest is replaced on the condition that it did not change. So a crash
// leaves a manifest whose objects exist, and perhaps objects that no manifest names; a sweep deletes those.
//
// At each interval the records that became durable are one run. The manifest grows, so it names the runs of the tail only
// now and then. It has the term and number of the first run that it does not name. A reader asks for that and the next
// ones until there is none, and then reads the manifest again, because runs may have been merged and deleted meanwhile.
// The head, a few bytes, is written after each run: with it, a lost run is not taken for the end of the tail. A listing only
// finds what can be deleted, so a stale one does no harm.
//
//	records ─▶ tNNN ─▶ tNNN+1 ─▶ …          each interval
//	              └──▶ manifest              each 64 runs, and when a segment is sealed
//	                     └──▶ rNNN, manifest when many runs are small
//	snapshot ─▶ sNNN-000 … ─▶ manifest       when it is worth its bytes, with the tail beside it
//
// # Histories
//
// A manifest has a list of histories. One begins with a snapshot, or with the first record of a log. A start continues it
// if the log has the same id and the same last record. A restored log has an id of its own, and a copy of a data directory
// that went its own way has another last record: each begins a new history, and the earlier times can still be restored.
//
// # Snapshots
//
// A state may have gigabytes. Each step ships parts of a snapshot for an interval, and then the tail. One part is in
// memory, about 8 MiB. A part that fails is tried again in the next step. The snapshot stays open meanwhile, but not for
// longer than 10 minutes in which the store takes no part. A
// stop or a lost lease ends the upload, and a sweep deletes its parts.
//
// A snapshot is shipped for one of two reasons:
//
//   - The runs between the last snapshot and the newest have at least as many bytes as the last one.
//   - Records are missing before the tail: at the begin of a history whose log lacks its first records, and after a gap.
//     The tail continues with the records after the snapshot. They count as shipped when the snapshot is complete.
//
// # Bytes
//
// What a byte of log costs in bytes that are written to the store:
//
//   - 1 in the tail.
//   - At most 1 in snapshots while the state does not grow: each snapshot has as many bytes as the one before, and as
//     many bytes of runs came between. At most 2 while it grows: a snapshot is larger than the one before by the bytes
//     of log between them at most.
//   - 1 if its run has less than 1 MiB and is merged. 64 such runs in a row, or those of a sealed segment, become
//     larger ones, which may take up to 1 MiB that was merged before.
//
// So a busy log costs 2 bytes for each, and 3 while its state grows. An upload that ended early is added to that.
//
// # Lease
//
// The lease is an object that is replaced under a condition. Its holder renews it. A manager that wants it watches it for
// its whole TTL by its own clock, so no clocks of two machines are compared. A data directory has a name as holder, so a
// manager that was killed gets its lease back immediately.
//
// Each holder has a term, one more than the last, in the names of its objects and in its manifests. A holder that was away
// for too long finds another's manifest when it replaces its own, and stops. Its objects have another term, so they are
// not taken for the other's.
//
// After the lease object is lost, the next term is higher than any term in the destination. If more than the lease is lost,
// two managers can use one term. Three checks keep them apart:
//
//   - A head belongs to the manager that wrote it first.
//   - A holder looks at its lease after it read a manifest that it will replace, and after it listed what it will delete.
//   - A run names the process that wrote it.
//
// # A store that is away
//
// The manager never waits for the store. Its snapshots keep the segments that are not shipped, up to
// Options.BacklogBytes. After that, shipping continues with the next snapshot: the state is complete, but the times between
// cannot be restored to. An upload that waits for the store keeps no segment: what it does not have is in the tail.
//
// # Answers that get lost
//
// A manager recognises its own write: a run has the same content; a lease and a manifest have the name of the process and
// count its tries. So after a refused write the manager reads the object, and the write counts if the object is its own.
package ship
