package wal

import (
	"bytes"
	"context"
	"runtime"
)

// WithFormatVersion is a segment or snapshot with another version in an
// otherwise correct header.
func WithFormatVersion(file []byte, version uint32) []byte {
	out := bytes.Clone(file)
	le.PutUint32(out[8:], version)
	le.PutUint32(out[12:], headerCRC(out))
	return out
}

// WaitPrepared waits until the preparer has nothing to do, so that it touches no
// file before the next Append. It is for logs without FillAhead.
func (l *Log) WaitPrepared(ctx context.Context) error {
	for {
		if _, busy := l.nextWork(); !busy {
			return nil
		}
		l.mu.Lock()
		if l.roomFreed == nil {
			l.roomFreed = make(chan struct{})
		}
		room := l.roomFreed
		l.mu.Unlock()
		if _, busy := l.nextWork(); !busy {
			return nil
		}
		select {
		case <-room:
		case <-l.failed:
			return l.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// WaitIdle waits until the committer sleeps with nothing to do.
func (l *Log) WaitIdle(ctx context.Context) error {
	for {
		l.mu.Lock()
		idle := l.idle
		l.mu.Unlock()
		if idle || ctx.Err() != nil {
			return ctx.Err()
		}
		runtime.Gosched()
	}
}

// LeadLimit is leadLimit.
const LeadLimit = leadLimit

// Mark is a mark.
func Mark() []byte { return appendRecord(nil, 0, 1, 0, nil) }
