package ship

import (
	"context"

	"github.com/oncegate/oncegate/manager/internal/wal"
)

// Log is what a Shipper ships: the records of a *wal.Log, and snapshots of the state that they lead to. All methods are
// safe for concurrent use.
type Log interface {
	ID() string
	Durable() uint64
	First() uint64
	Segments() []wal.SegmentInfo
	Records(ctx context.Context, from uint64, fn func(seq uint64, body []byte) error) error
	// SnapshotSequence is the least sequence number that a snapshot opened now can have, 0 when there is none. It is called
	// often, so it must be cheap.
	SnapshotSequence() uint64
	// OpenSnapshot opens the newest snapshot; nil when there is none. It may take long, until ctx ends.
	OpenSnapshot(ctx context.Context) (Snapshot, error)
}

// Snapshot is a log's state as of a record, as records in the log's form. Its owner calls Next until it reports the end
// or fails, and then Close. That may take as long as an upload of the state takes.
type Snapshot interface {
	// Sequence is that of the last record that the state has. The record is durable.
	Sequence() uint64
	// Next returns the next record, valid until the next call. ok is false after the last one.
	Next() (record []byte, ok bool, err error)
	Close()
}
