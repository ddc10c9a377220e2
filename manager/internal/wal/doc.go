// Package wal is a segmented, checksummed, group-committed write-ahead log.
//
// # Protocol
//
// Append adds a record to the pending batch, assigns the next sequence number and returns; it never waits. One
// committer goroutine seals the pending batch, writes it with one write, makes it durable with one fdatasync, and only
// then starts with the next. WaitDurable waits for the batch of a sequence number. A caller that is alone may commit its record itself (see AppendLead). Records that arrive meanwhile
// are left to the committer.
//
//	Append ─▶ collecting ─▶ committing (write, fdatasync) ─▶ durable
//	              ▲                       │
//	              └── next batch ◀────────┘ (any error: failed, for good)
//
// An accepted record never fails for lack of space. Append places it in disk space that was reserved before, and
// returns ErrNoSpace when there is none. A store may therefore apply a change in memory as soon as Append has returned.
// (File systems that never overwrite in place, such as btrfs, do not honour the reservation. There a full disk may fail
// a write.)
//
// Any error of a write or an fsync is final. The log fails, and every waiter gets ErrFailed. The log does not repeat
// the fsync: after a failed one the kernel may drop the dirty pages and report the next one as a success. Creating a
// segment is the exception: when the disk is full, or the system is short of open files or memory, the log tries again
// later.
//
// # Performance
//
// A batch costs a write, an fdatasync and a few context switches, however many records it has. Throughput therefore
// depends on how many records share a batch. After a batch the committer waits for the callers that it woke (see
// gatherer). Before it seals the next batch it yields to goroutines that can run (see Log.yield). Segments are filled
// with zeros ahead of the tail, because overwriting is cheaper to sync than the first write into reserved space. Two
// buffers are reused: one for the pending batch and one for the batch being committed.
//
// # On disk
//
// A data directory holds a lock file, segments named by a running number, and at most one snapshot in force. A segment
// is a header followed by records. Its whole size is reserved when it is created, and it is zero after the last
// record. A record is
//
//	length  uint32   bytes of body, at least 1
//	crc     uint32   CRC-32C, seeded with the log's random id, of the rest
//	seq     uint64   sequence number, one more than the record before
//	ahead   uint32   records before this one in the same batch
//	body
//
// little-endian and unaligned. A record with length 0 is a mark. It has no sequence number of its own, says "everything
// before seq is durable", and is overwritten by the next batch. The log writes a mark when it becomes idle and when it
// is closed.
//
// # Torn tail or damage
//
// A batch is written only after everything before it was synced. So a record with sequence number s and a records ahead
// of it in its batch proves that all records before s-a reached the disk. A mark for s proves the same for all records
// before s. Open looks for the first offset without the expected record. That offset is
//
//   - the end, when it is zero and nothing follows;
//   - a torn tail, when nothing after it proves that its record was synced:
//     what is there was never acknowledged, and Open wipes it;
//   - damage otherwise: acknowledged data is lost. Open returns a
//     *CorruptionError that names the file and the offset.
//
// This holds whatever sectors of an unsynced write reached the disk, in whatever order. One case cannot be recognized:
// damage to the very last batch when the machine stopped before its mark was written. The seed of the checksum is
// secret, so a caller that chooses bodies cannot forge a proof in one.
//
// Before Open returns, it writes the last batch again and syncs it. A process that died after a failed fsync may have
// left pages that the kernel shows but the disk never got. The same holds for the zeros with which an earlier start
// wiped a torn tail. Open therefore also wipes the rest of the segment, unless the log ends with a mark, as it does
// after a clean stop and after an idle moment.
//
// # Snapshots
//
// A snapshot replaces the records up to its sequence number. It is written to a temporary file, synced, renamed, and
// made durable by syncing the directory. Then the segments that it replaces are deleted, oldest first. If this is
// interrupted, the next open either does not see the snapshot or finishes the deletions. A file that cannot be deleted
// does not keep other files from being deleted; the next snapshot and the next open try again.
//
// # Reading
//
// What copies the log elsewhere may still need records that a snapshot replaced. So Snapshot leaves the segments from a
// given record on, and Records reads their records back and checks each checksum. Open reads only the header of such a
// segment, so many do not slow it down, and Open still notices a missing one. The log remembers where the last read ended, so
// that the next one does not start at the segment's first record.
//
// # Design notes
//
// The preparer opens the active segment a second time to fill it. The system reports a failed write once to each open
// file. If committer and preparer shared one, the preparer's sync could consume the error, and the committer would
// report lost records as durable.
//
// Each record carries its sequence number, although it follows from the offset. With it, records can be found again
// after damage, and they prove what was synced.
//
// docs/RATIONALE.md has the rejected options.
//
// # Files in reading order
//
//	format.go                                 headers and records, byte by byte
//	log.go, commit.go                         appends, waits, group commits
//	segment.go, prepare.go                    segment files, reserved and filled ahead
//	files.go, scan.go, recover.go, restore.go Open
//	snapshot.go, records.go                   what replaces records, and how they are read back
//	ship.go, importer.go                      copies of the log
//	verify.go, verify_segments.go, dump.go    offline tools
//
// # Bounds
//
// Options bounds the size of a record, of a segment and of the queue. When the queue is full, or the next segment is
// still being created, Append returns ErrBusy, and WaitRoom waits until another try makes sense. The owner bounds the
// length of the log: it takes a snapshot when Stats.LogBytes is too large.
package wal
