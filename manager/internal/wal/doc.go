// Package wal is a segmented, checksummed, group-committed write-ahead log.
//
// # Protocol
//
// Append puts a record into the batch that is being collected, gives it the
// next sequence number and returns; it never waits. One committer goroutine
// takes the collected batch, writes it with one write, makes it durable with
// one fdatasync and only then lets the next batch go to the disk. WaitDurable
// waits for the batch of a sequence number, Notify tells when it is over. A
// caller that is alone commits its record itself, see AppendLead; what comes
// while it does is the committer's again.
//
//	Append ─▶ collecting ─▶ committing (write, fdatasync) ─▶ durable
//	              ▲                       │
//	              └── next batch ◀────────┘ (any error: failed, for good)
//
// An accepted record never fails for lack of space: Append places it in disk
// space that was reserved before, and refuses it with ErrNoSpace when there is
// none. So a store may apply a change in memory as soon as Append returned. (On
// file systems that never overwrite in place, such as btrfs, reserved space is
// no promise, and a full disk may be an error of a write.) Any error of a write
// or an fsync is final: the log fails, every waiter gets ErrFailed, and the
// fsync is not tried again, since after a failed fsync the kernel may drop the
// dirty pages and report the next one as a success. What is short for a while
// when a segment is prepared, space or open files, is waited for.
//
// # Performance
//
// A batch costs a write, an fdatasync and a handful of context switches however
// many records it has, so what counts is how many share it. After a batch the
// committer waits for the callers that it woke (see gatherer), and before it
// takes the next it yields to goroutines that can run (see Log.yield). Overwriting space
// that was filled before is cheaper to sync than space that is only reserved. Two
// buffers are kept, for the batch that collects and the one on its way. One
// aligned write with O_DIRECT and RWF_DSYNC instead of a write and an fdatasync
// took as long, and as much of the processor's time (12 KiB, ext4), so it is not
// done.
//
// # On disk
//
// A data directory holds one lock file, segments named by a running number
// and at most one snapshot that counts. A segment is a header followed by
// records, and was reserved in full when it was created; behind the last
// record it is zero. A record is
//
//	length  uint32   bytes of body, at least 1
//	crc     uint32   CRC-32C, seeded with the log's random id, of the rest
//	seq     uint64   sequence number, one more than the record before
//	ahead   uint32   records before this one in the same batch
//	body
//
// little-endian and unaligned. A record with length 0 is a mark: it has no
// sequence number of its own, says "everything before seq is durable" and is
// overwritten by the next batch. It is written when the log goes idle and when
// it is closed.
//
// # Torn tail or damage
//
// A batch is written only after everything before it was synced. So a record
// with sequence number s that is ahead a in its batch, or a mark for s, proves
// that all records before s-a had reached the disk. At open, the first place
// that does not hold the expected record is
//
//   - the end, when it is zero and nothing follows;
//   - a torn tail, when nothing behind it proves that its record had been
//     synced: what is there was never acknowledged, and is wiped;
//   - damage otherwise: acknowledged data is gone. Open refuses with a
//     *CorruptionError that names file and offset.
//
// This holds whatever subset of the sectors of an unsynced write reached the
// disk, in whatever order. What it cannot tell is damage to the very last
// batch when the machine stopped before its mark was written. The seed of the
// checksum is secret to a caller that chooses bodies, so that a body cannot carry a
// forged proof.
//
// Before a log that was opened serves anybody, its last batch is written
// again and synced: a process that died after a failed fsync may have left
// pages that the kernel shows but the disk never got. The same goes for zeros
// with which a start wiped a torn tail, so the rest of the segment is wiped
// unless the log ends with a mark, as it does after a clean stop and when it was
// idle.
//
// # Snapshots
//
// A snapshot replaces the records up to its sequence number. It is written to
// a temporary file, synced, renamed and made durable with its directory;
// then the segments that it replaces are deleted, oldest first. Interrupted
// anywhere, the next open either does not see it or finishes the deletions. A
// file that cannot be deleted keeps no other from being deleted; the next
// snapshot and the next open try it again.
//
// # Why
//
// Why are segments filled with zeros ahead of the tail, when they are reserved
// already? The first write into reserved blocks makes the file system record
// that they hold data, in its journal, with every fdatasync. Overwriting needs
// only the data: about 100 instead of 160 microseconds on ext4.
//
// Why may a caller commit? One that is alone pays for every wake-up. Over tmpfs,
// where a sync costs nothing, a call over HTTP took 18 microseconds and 29 of the
// processor's time when the committer was woken for it and then woke the caller; it
// takes 14 and 25 (on a Unix socket 13 and 18; Redis takes 11 and 10). A timer that is set anew for each batch wakes one
// more thread when it is earlier than what the runtime waits for: the mark's is left
// alone while it runs. On a machine whose processors all have other work for every moment it
// is the other way round, since two threads get a larger share than one.
// With company the committer is better: it knows for how many to wait. The price is
// that a caller whose context ends while it commits returns when the disk does. So
// nobody leads behind a batch that took 10 ms: a disk that hangs holds up one caller.
//
// Why does the preparer open the active segment a second time to fill it? A
// system tells each open file once that a write failed. If committer and
// preparer shared one, the preparer's sync could take the error, and the
// committer's would report records as durable that are lost.
//
// Why not use deleted segments again, then? It would save the zeros, but old
// records would lie behind the tail, and every tool that looks at a segment
// would have to know. Sequence numbers in records make it possible; it is not
// needed.
//
// Why does the committer wait for a moment after a batch? The callers that it
// woke come back together. Taking the first of them alone would make all
// others wait for two fsyncs, see gatherer.
//
// Why is a sequence number in each record when it follows from the place? So
// that records can be found again behind a damage, and tell what was synced.
//
// # Bounds
//
// Options bounds the size of a record, of a segment and of the queue. When the
// queue is full, or the next segment is only just being created, Append
// returns ErrBusy, and WaitRoom waits until another try makes sense. The
// length of the log is bounded by its owner, who takes a snapshot when
// Stats.LogBytes says so.
package wal
