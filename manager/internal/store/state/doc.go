// Package state keeps the records of the engine wal on disk, in an LSM store (Pebble). It is what the log is replayed
// into: it always has a prefix of the log, up to Sequence, and a start replays only the rest.
//
// # Writes
//
// Write adds all changes of a range of log records in one sorted table, with the new sequence number and the counts in
// the same table. Pebble takes in ("ingests") a table as a whole or not at all, so a crash leaves the state of before or
// after. Pebble's own log and its memory tables are not used.
//
// # Absent keys
//
// Most keys that a ledger looks up are new. To know that without a read, MayHave asks a set of fingerprints: 32 bits of
// a hash for each record, of which 16 are stored, so about 2 bytes of memory for each record. At 20 million records, one
// of 200 absent keys needs a read after all. Each Write stores what it added and removed, and Open reads these lists and
// no records.
//
// # Damage
//
// Each block on disk has a checksum. A record in a damaged block is a *store.UnreadableError; other records are not
// affected. A scan of an index passes over a damaged part. A compaction fails at it, so the levels above grow until a Repair.
// A Reader says which parts of a state are damaged, without a process that serves it.
//
// Repair removes damaged parts. A record that it cannot read must not seem new afterwards. Its key is unknown, but the
// state still has its fingerprint, so a Repair stores the damaged ranges of keys with the fingerprints that no readable
// record has, and Get refuses keys that match both.
package state
