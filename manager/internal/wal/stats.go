package wal

import (
	"time"
)

// Stats describes an open log.
type Stats struct {
	// Last is the last appended sequence number, Durable the last durable one.
	Last, Durable uint64
	// QueueBytes are appended and not yet durable.
	QueueBytes int
	// Batches, Records and Bytes made durable since Open.
	Batches, Records, Bytes uint64
	// Segments in use, and Prepared ones that are not yet used. DiskBytes is the size of all of them and of the
	// snapshot.
	Segments, Prepared int
	DiskBytes          int64
	// LogBytes were appended since the snapshot, or replayed at Open.
	LogBytes int64
	// SnapshotSequence is the last record that the snapshot covers, 0 without a snapshot.
	SnapshotSequence uint64
	SnapshotBytes    int64
	SnapshotTime     time.Time
	// NoSpace is true when the last try to reserve a segment met a full disk.
	NoSpace bool
	// Undeleted is the number of files that are no longer needed but could not be deleted yet.
	Undeleted int
}

// Stats returns a consistent snapshot of the counters.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Stats{
		Last: l.last.Load(), Durable: l.durable.Load(), QueueBytes: l.queued,
		Batches: l.stats.batches, Records: l.stats.records, Bytes: l.stats.bytes,
		Segments: len(l.segments), Prepared: len(l.spares), LogBytes: l.stats.logBytes,
		SnapshotSequence: l.snapshot.seq, SnapshotBytes: l.snapshot.bytes, SnapshotTime: l.snapshot.at,
		DiskBytes: l.snapshot.bytes, NoSpace: l.noSpace != nil, Undeleted: len(l.undeleted),
	}
	for _, seg := range l.segments {
		s.DiskBytes += seg.Capacity
	}
	for _, seg := range l.spares {
		s.DiskBytes += seg.capacity
	}
	return s
}
