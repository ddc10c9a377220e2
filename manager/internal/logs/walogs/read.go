package walogs

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// read returns a page and, when there is none, waits for one.
func (l *walLog) read(ctx context.Context, q logs.Query) (logs.Page, error) {
	if q.Limit == 0 {
		q.Limit = logs.DefaultLimit
	}
	if q.Wait > 0 {
		if l.engine.readers.Add(1) > int64(l.engine.opts.MaxReaders) {
			q.Wait = 0
		}
		defer l.engine.readers.Add(-1)
	}
	var timeout <-chan time.Time // nil: does not wait
	if q.Wait > 0 {
		timer := time.NewTimer(q.Wait)
		defer timer.Stop()
		timeout = timer.C
	}
	for {
		l.mu.Lock()
		from := q.After + 1
		if q.Beginning {
			from = l.first
		}
		first, next, last := l.first, l.state.Next(), l.wal.Last()
		var at point
		if from >= first && from < next {
			at = l.pointOf(from)
		}
		wake := l.wake
		if from == next && timeout != nil {
			l.waiting++
		}
		l.mu.Unlock()
		page := logs.Page{Cursor: from - 1}
		switch {
		case from < first:
			return page, logs.CursorGone(q.After, first)
		case from > next:
			return page, logs.CursorAhead(q.After, next-1)
		case from < next:
			entries, err := l.scan(ctx, at.seq, from, q.Limit)
			if errors.Is(err, wal.ErrGone) {
				continue // retention was faster
			}
			if err != nil {
				return page, l.mapError(err)
			}
			if n := len(entries); n > 0 {
				page.Entries, page.Cursor = entries, entries[n-1].Number
				return page, nil
			}
			if timeout == nil {
				return page, nil
			}
			// It is on its way to the disk.
			if durable, err := l.waitDurable(ctx, last, timeout); !durable || err != nil {
				return page, l.mapError(err)
			}
		case timeout == nil:
			return page, nil
		default:
			select {
			case <-wake:
				continue
			case <-timeout:
			case <-ctx.Done():
			case <-l.engine.draining:
			case <-l.gone:
				return page, logs.NoSuchLog(l.name)
			}
			l.stopWaiting(wake)
			return page, nil
		}
	}
}

// stopWaiting takes a reader out of the count that was not woken.
func (l *walLog) stopWaiting(wake chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wake == wake {
		l.waiting--
	}
}

// waitDurable waits for a record as long as a reader may, and reports whether it is durable.
func (l *walLog) waitDurable(ctx context.Context, seq uint64, timeout <-chan time.Time) (bool, error) {
	durable := make(chan struct{}, 1)
	l.wal.Notify([]wal.Waiter{{Sequence: seq, C: durable}})
	select {
	case <-durable:
		return true, l.wal.Err()
	case <-timeout:
	case <-ctx.Done():
	case <-l.engine.draining:
	}
	return false, nil
}

var errEnough = errors.New("enough")

// scan returns up to limit durable entries from number from on; seq is of a record at or
// before it.
func (l *walLog) scan(ctx context.Context, seq, from uint64, limit int) ([]logs.Entry, error) {
	var out []logs.Entry
	size := 0
	err := l.wal.Records(ctx, seq, func(_ uint64, body []byte) error {
		return eachEntry(l.engine.opts.Ring, l.name, body, func(e *logs.Entry, _ int64) error {
			if e.Number < from {
				return nil
			}
			if len(out) == limit || size >= logs.MaxPageBytes {
				return errEnough
			}
			size += e.Bytes()
			e.Payload = slices.Clone(e.Payload)
			out = append(out, *e)
			if len(out) == limit {
				return errEnough
			}
			return nil
		})
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return out, err
}

func (l *walLog) byID(ctx context.Context, id string) (logs.Entry, error) {
	l.mu.Lock()
	number, err := l.state.Lookup(id, l.now(), l.quarantine())
	first, last := l.first, l.wal.Last()
	var at point
	if err == nil && number >= first {
		at = l.pointOf(number)
	}
	l.mu.Unlock()
	if err != nil {
		return logs.Entry{}, err
	}
	if number < first {
		return logs.Entry{}, logs.EntryGone(number)
	}
	for {
		entries, err := l.scan(ctx, at.seq, number, 1)
		switch {
		case errors.Is(err, wal.ErrGone):
			return logs.Entry{}, logs.EntryGone(number)
		case err != nil:
			return logs.Entry{}, l.mapError(err)
		case len(entries) > 0:
			return entries[0], nil
		}
		if err := l.wal.WaitDurable(ctx, last); err != nil {
			return logs.Entry{}, l.mapError(err)
		}
	}
}
