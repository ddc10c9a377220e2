package ship

import (
	"context"

	"github.com/oncegate/oncegate/manager/internal/wal"
)

// Log is what a Shipper ships: the records of a *wal.Log, and snapshots of the state that they lead to. All methods are
// safe for concurrent use. WAL makes one of a log whose own snapshots hold the state.
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
	// Keep is the sequence number from which on the log is readable besides, 1 to Sequence+1.
	Keep() uint64
	// Next returns the next record, valid until the next call. ok is false after the last one.
	Next() (record []byte, ok bool, err error)
	Close()
}

// WAL makes a Log of a log whose snapshots hold the state.
func WAL(log *wal.Log) Log { return plainLog{log} }

type plainLog struct{ *wal.Log }

func (l plainLog) SnapshotSequence() uint64 { return l.Stats().SnapshotSequence }

func (l plainLog) OpenSnapshot(context.Context) (Snapshot, error) {
	r, err := l.Log.OpenSnapshot()
	if r == nil || err != nil {
		return nil, err // no typed nil
	}
	return plainSnapshot{r}, nil
}

type plainSnapshot struct{ *wal.SnapshotReader }

func (s plainSnapshot) Sequence() uint64 { return s.SnapshotReader.Sequence }
func (s plainSnapshot) Keep() uint64     { return s.SnapshotReader.Keep }
