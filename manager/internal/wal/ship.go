package wal

import (
	"encoding/hex"
	"time"
)

// What a copy of the log needs besides Records.

// ID names the log: 32 hexadecimal digits, drawn when it was created.
func (l *Log) ID() string { return l.id.String() }

func (id logID) String() string { return hex.EncodeToString(id[:]) }

// SegmentInfo describes a segment in use or kept.
type SegmentInfo struct {
	// Number is the number in the file's name, First the sequence number of the first
	// record, Capacity the size in bytes.
	Number, First uint64
	Capacity      int64
}

// Segments lists the segments, oldest first; the last one is active. What they hold
// need not be durable.
func (l *Log) Segments() []SegmentInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	infos := make([]SegmentInfo, len(l.segments))
	for i, s := range l.segments {
		infos[i] = SegmentInfo{s.number, s.first, s.capacity}
	}
	return infos
}

// SnapshotReader reads the records of a snapshot, also after the log replaced and
// deleted it.
type SnapshotReader struct {
	// Sequence is the last sequence number that the snapshot covers, Keep the one
	// from which records stay readable besides it, Time when it was begun.
	Sequence, Keep uint64
	Time           time.Time
	r              *snapshotReader
}

// OpenSnapshot opens the snapshot in force; nil without one.
func (l *Log) OpenSnapshot() (*SnapshotReader, error) {
	for {
		l.mu.Lock()
		info := l.snapshot
		l.mu.Unlock()
		if info.path == "" {
			return nil, nil
		}
		r, err := openSnapshot(l.fs, info.path)
		if err == nil {
			return &SnapshotReader{r.header.seq, r.header.keep, r.header.at, r}, nil
		}
		l.mu.Lock()
		replaced := l.snapshot.path != info.path
		l.mu.Unlock()
		if !replaced {
			return nil, err
		}
	}
}

// Next returns the next record, valid until the next call, or false after the last
// one. It fails with a *CorruptionError when the snapshot is damaged.
func (s *SnapshotReader) Next() (body []byte, ok bool, err error) { return s.r.next() }

// Close releases the file.
func (s *SnapshotReader) Close() { s.r.close() }
