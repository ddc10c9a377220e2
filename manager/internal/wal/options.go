package wal

import (
	"cmp"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/wal/vfs"
)

// Defaults and limits of Options.
const (
	DefaultSegmentBytes   = 64 << 20
	DefaultMaxRecordBytes = 40 << 20
	DefaultMaxQueueBytes  = 64 << 20
	DefaultFillAhead      = 8 << 20
	DefaultSpaceRetry     = time.Second

	minSegmentBytes = 4 << 10
	maxSegmentBytes = 1 << 30
)

// Options of Open. The zero value of a field means its default.
type Options struct {
	// SegmentBytes is the size of a new segment, 4 KiB to 1 GiB; default
	// 64 MiB. Existing segments keep theirs.
	SegmentBytes int64
	// MaxRecordBytes bounds the body of a record; default 40 MiB. Record and
	// headers must fit into a segment.
	MaxRecordBytes int
	// MaxQueueBytes bounds the bytes of records that are appended but not durable; default 64 MiB. An empty queue
	// accepts any single record.
	MaxQueueBytes int
	// FillAhead is how many bytes ahead of the tail the log keeps filled with zeros, because overwriting is cheaper to
	// sync than writing into space that is only reserved; default 8 MiB. A negative value turns this off, for file
	// systems that never overwrite in place.
	FillAhead int64
	// SpaceRetry is how long the log waits after a failed reservation before it tries again; default 1 s.
	SpaceRetry time.Duration

	// Begin, when set, is called once before any Restore and Replay, with the log's ID and the sequence number of its
	// snapshot, 0 without one. An error stops Open and is returned unchanged.
	Begin func(id string, snapshot uint64) error
	// Restore receives the records of the snapshot, in the order in which they were written, before any Replay. The
	// slice is valid during the call. An error stops Open and is returned unchanged. Nil ignores them.
	Restore func(record []byte) error
	// Replay receives the records after the snapshot in the order of their sequence numbers. The slice is valid during
	// the call. An error stops Open and is returned unchanged. Nil ignores them.
	Replay func(seq uint64, body []byte) error
	// Synced, when set, is called before a Replay that begins a batch: everything before that record is on the disk. The
	// last batch of a log that was not closed may be readable and yet not be on the disk before Open returns. An error stops
	// Open and is returned unchanged.
	Synced func() error
	// Gather, when set, is called before each batch is taken from the queue, without a lock. A simulation waits in it until
	// nothing else runs, so that everything appended at one instant of its time is one batch.
	Gather func()
	// OnBatch, when set, is called after each batch became durable, on the goroutine that committed it. It must not
	// block.
	OnBatch func(Batch)
	// OnSpace, when set, is called with the error when the disk has no space for the next segment, and with nil when it
	// has space again. It must not call the log.
	OnSpace func(err error)
	// OnUndeleted, when set, is called once for each file that the log no longer needs but cannot delete, with the
	// reason. The next snapshot and the next Open try again. It must not call the log.
	OnUndeleted func(path string, err error)

	// FS is where the log lives; default vfs.OS().
	FS vfs.FS
}

// Batch describes one group commit to Options.OnBatch.
type Batch struct {
	// Records and Bytes (including headers) that were written together.
	Records int
	Bytes   int
	// Write and Sync are how long the write and the fdatasync took.
	Write, Sync time.Duration
}

// WithDefaults returns a copy in which zero fields have their defaults.
func (o Options) WithDefaults() Options {
	o.SegmentBytes = cmp.Or(o.SegmentBytes, DefaultSegmentBytes)
	if o.MaxRecordBytes == 0 {
		o.MaxRecordBytes = DefaultMaxRecordBytes
		if limit := o.SegmentBytes - segmentHeaderSize - recordHeaderSize; int64(o.MaxRecordBytes) > limit {
			o.MaxRecordBytes = int(max(limit, 0))
		}
	}
	o.MaxQueueBytes = cmp.Or(o.MaxQueueBytes, DefaultMaxQueueBytes)
	o.FillAhead = cmp.Or(o.FillAhead, DefaultFillAhead)
	o.SpaceRetry = cmp.Or(o.SpaceRetry, DefaultSpaceRetry)
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	return o
}

func (o Options) validate() error {
	if o.SegmentBytes < minSegmentBytes || o.SegmentBytes > maxSegmentBytes {
		return fmt.Errorf("wal: SegmentBytes is %d, allowed are %d to %d", o.SegmentBytes, minSegmentBytes, maxSegmentBytes)
	}
	if limit := o.SegmentBytes - segmentHeaderSize - recordHeaderSize; o.MaxRecordBytes < 1 || int64(o.MaxRecordBytes) > limit {
		return fmt.Errorf("wal: MaxRecordBytes is %d, allowed are 1 to %d with segments of %d bytes", o.MaxRecordBytes, limit, o.SegmentBytes)
	}
	if o.MaxQueueBytes < 1 {
		return fmt.Errorf("wal: MaxQueueBytes is %d, it must be positive", o.MaxQueueBytes)
	}
	if o.SpaceRetry < 0 {
		return fmt.Errorf("wal: SpaceRetry is %v, it must be positive", o.SpaceRetry)
	}
	return nil
}
