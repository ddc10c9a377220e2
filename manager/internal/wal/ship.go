package wal

import (
	"encoding/hex"
	"slices"
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
	return slices.Clone(l.segments)
}
