package wal

import (
	"time"
)

// Stats describes an open log.
type Stats struct {
	// Last appended and Durable sequence numbers.
	Last, Durable uint64
	// QueueBytes were appended and are not durable yet.
	QueueBytes int
	// Batches, Records and Bytes made durable since Open.
	Batches, Records, Bytes uint64
	// Segments in use; Prepared ones wait for their turn. DiskBytes is what
	// all of them and the snapshot take.
	Segments, Prepared int
	DiskBytes          int64
	// LogBytes were appended, or replayed at Open, since the snapshot.
	LogBytes int64
	// SnapshotSequence is what the snapshot covers, 0 without one.
	SnapshotSequence uint64
	SnapshotBytes    int64
	SnapshotTime     time.Time
	// NoSpace tells that the last try to reserve a segment met a full disk.
	NoSpace bool
	// Undeleted files are no longer needed and could not be deleted so far.
	Undeleted int
}

// Stats returns a consistent reading.
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
		s.DiskBytes += seg.capacity
	}
	for _, seg := range l.spares {
		s.DiskBytes += seg.capacity
	}
	return s
}
