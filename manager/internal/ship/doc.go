// Package ship copies the records of write-ahead logs to object storage while a
// manager runs, and makes data directories of them again.
//
// # Objects
//
// Below a place (a URL) there are
//
//	lease                    who may ship here
//	catalog                  which named logs there are and were
//	LOG/manifest             what the log's objects are
//	LOG/TERM/tNNN            a run of the log's tail
//	LOG/TERM/h               how many of those there are at least
//	LOG/TERM/rNNN            a run that small ones were merged into
//	LOG/TERM/sNNN-PPP        a part of a snapshot
//
// where LOG is "ledger", or "logs/NAME/TERM-N" for one life of a named log.
//
// A run holds consecutive records of one segment, about 8 MiB at most, with the points
// in time at which they were durable. A snapshot holds the records of the log's own
// snapshot. Each object has the CRC-64/NVME of its records and the CRC-32C of its header.
// The manifest has each object's CRC-64; manifest, catalog and head begin with the SHA-256 of their JSON.
//
// # Order
//
// Only durable records are read. A run or a part is written under a name that is used
// once, and the manifest names it only then, so that whatever a manifest names is there.
// A manifest is replaced under the condition that nobody else did. What it drops is
// deleted only after that. So any crash leaves a manifest whose objects exist, and at
// most objects that nobody names; a sweep deletes those.
//
// At each interval the records that became durable are one run. The manifest grows, so it names
// the runs of the tail only now and then: it says
// with which term and number they go on, and a reader asks for one after the other
// until there is none, and then reads the manifest again, because runs that it names
// may be merged and deleted meanwhile. The head is a few bytes that are written behind each run. It
// tells a run that was lost from the end of the tail. A listing is used for what can be deleted only,
// and one that is stale does no harm.
//
//	records ─▶ tNNN ─▶ tNNN+1 ─▶ …          each interval
//	              └──▶ manifest              each 64 runs, and when a segment is sealed
//	                     └──▶ rNNN, manifest when many runs are small
//	snapshot ─▶ sNNN-000 … ─▶ manifest       when it is worth its bytes
//
// # Histories
//
// A manifest has a list of histories. One begins with a snapshot, or with the first
// record of a log, and goes on as long as the same log is shipped: a start continues it
// when the log has the same last record. A log that was restored has an id of its own, and
// a copy of a data directory that went its own way has another last record; each
// begins a new history, and the times before stay.
//
// # Named logs
//
// The catalog has an entry for each life of a named log, with the name of its objects, which is used
// once. The entry is written before the first object, says that the log was shipped once all of it
// was, when it was deleted, and that its objects go, before they do. A restore takes the lives that were shipped and
// went on at its time. A log that the manager does not have was deleted, unless the manager could not open it.
//
// A snapshot of a named log keeps records: the entries that readers may still ask for. It can be
// restored once these were shipped as well; until then the one before it is.
//
// # Lease
//
// The lease is an object that is replaced under a condition. Its holder renews it; a
// manager that wants it watches it for its whole TTL by its own clock, so no clocks of two
// machines are compared. Each holder has a term, one more than the last, which is in the names of its
// objects and in the manifests that it writes. One that was away for too long finds
// another's manifest when it replaces its own, and stops; its objects are in another
// term's names, so they are not taken for the other's. Behind a lease that was lost, the term is greater than all that the
// place shows. Two managers can still come to one term, or an old holder to the later one, when more is lost than the lease. Therefore
// a head belongs to the manager that wrote it first; a holder looks at its lease behind the read of a manifest that it will replace and
// behind a listing of what it will delete, so that nothing in them is a later holder's; and a run names the process that wrote it. A data directory has a name as
// holder, by which a manager that was killed takes its lease over at once.
//
// # A store that is away
//
// The manager never waits for the store. Its snapshots keep the segments that were not
// shipped, up to Options.BacklogBytes. Beyond that, shipping goes on with the next
// snapshot: nothing is lost of the state, only the times between cannot be restored to.
//
// # Answers that get lost
//
// Each write can be told from another's: a run that exists has the same content; a lease
// and a manifest have the name of the process and count its tries. So a write that is
// refused because it exists, or was changed, is looked at before it counts as one.
package ship
