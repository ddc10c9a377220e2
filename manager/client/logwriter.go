package client

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"sync"
	"unicode/utf8"
)

// WriteMessage is what an IdempotentWriter appends.
type WriteMessage struct {
	Payload    []byte
	Properties map[string]string // UTF-8
	// IdempotencyID is the entry's id: the same one is appended once, however often it is
	// written. It is 1 to 255 bytes of UTF-8. When it is empty the id is the MD5 of the payload in hexadecimal digits, so
	// that equal payloads are one entry.
	IdempotencyID string
}

// WriteResult is what became of a message.
type WriteResult struct {
	// LogMessageID is where the entry is. It is zero for a duplicate whose place the log does not
	// know any more.
	LogMessageID LogMessageID
	// ID is the entry's id, Duplicate reports that it was there already.
	ID        string
	Duplicate bool
	// Err is why nothing is known to be written. An *Error that is not Temporary is the manager's
	// refusal: the message is in the log only if an earlier attempt, whose answer was lost, wrote it.
	// After any other error, the end of a context for example, it may be there: write it again with
	// the same IdempotencyID to know.
	Err error
}

// WriterOptions configure an IdempotentWriter. The zero value of a field means its default.
type WriterOptions struct {
	// Writer, when set, opens an epoch of the writer with this name: from then on messages of
	// its earlier epochs are refused with the code api.CodeFenced.
	Writer string
	// MaxBatch and MaxBatchBytes bound what is sent together; defaults 256, at most 1024, and
	// 512 KiB.
	MaxBatch, MaxBatchBytes int
	// MaxQueue bounds the messages that wait to be sent; default 4096. WriteAsync waits for room.
	MaxQueue int
}

// ErrWriterClosed is the error of messages that are written after Close, which are not sent, and of those without a result
// when the context of Close ends. The latter may have been sent and may be in the log.
var ErrWriterClosed = errors.New("client: the writer is closed")

// IdempotentWriter appends to a log, each message once. It sends messages in the order in which
// they were written, those that wait together in one batch, and one batch after the other:
// a batch is repeated until the manager has answered it, nobody waits for it any more, or the
// context of Close ends. Options.MaxAttempts and MaxRetryAfter do not bound this. It is safe for
// concurrent use.
type IdempotentWriter struct {
	log   *Log
	opts  WriterOptions
	epoch uint64
	queue chan *write
	stop  context.CancelCauseFunc
	ctx   context.Context
	ended chan struct{}
	err   error // what Close returns, set before ended is closed

	mu     sync.RWMutex // of closed and the sends to queue
	closed bool
}

// write is a message on its way.
type write struct {
	ctx        context.Context
	id         string
	payload    []byte
	properties map[string]string
	done       chan WriteResult // one result
}

func (o *write) bytes() int {
	n := len(o.id) + len(o.payload)
	for name, value := range o.properties {
		n += len(name) + len(value)
	}
	return n
}

// check refuses what JSON cannot hold. It would arrive changed, and two ids as one.
func (o *write) check() error {
	if !utf8.ValidString(o.id) {
		return fmt.Errorf("client: IdempotencyID %.64q: must be UTF-8; write bytes as hexadecimal digits, for example", o.id)
	}
	for name, value := range o.properties {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return fmt.Errorf("client: Properties[%.64q]: %.64q: name and value must be UTF-8", name, value)
		}
	}
	return nil
}

// OpenIdempotentWriter returns a writer that runs until Close. ctx bounds only the opening.
func (l *Log) OpenIdempotentWriter(ctx context.Context, o WriterOptions) (*IdempotentWriter, error) {
	for _, f := range []struct {
		name      string
		v         *int
		def, most int
	}{{"MaxBatch", &o.MaxBatch, 256, 1024}, {"MaxBatchBytes", &o.MaxBatchBytes, 512 << 10, 1 << 20}, {"MaxQueue", &o.MaxQueue, 4096, 1 << 20}} {
		if *f.v == 0 {
			*f.v = f.def
		}
		if *f.v < 1 || *f.v > f.most {
			return nil, fmt.Errorf("client: %s %d: must be 1 to %d", f.name, *f.v, f.most)
		}
	}
	log := &Log{l.client.persistent(), l.name}
	w := &IdempotentWriter{log: log, opts: o, queue: make(chan *write, o.MaxQueue), ended: make(chan struct{})}
	if o.Writer != "" {
		var err error
		if w.epoch, err = l.openEpoch(ctx, o.Writer); err != nil {
			return nil, err
		}
	}
	w.ctx, w.stop = context.WithCancelCause(context.Background())
	go w.run()
	return w, nil
}

// Epoch is the writer's epoch, 0 without WriterOptions.Writer.
func (w *IdempotentWriter) Epoch() uint64 { return w.epoch }

// writes are those of calls of Write that have ended.
var writes = sync.Pool{New: func() any { return &write{done: make(chan WriteResult, 1)} }}

// Write appends a message and waits for the result, at most as long as ctx lasts.
func (w *IdempotentWriter) Write(ctx context.Context, m WriteMessage) WriteResult {
	one := writes.Get().(*write)
	one.ctx, one.id, one.payload, one.properties = ctx, m.id(), m.Payload, m.Properties
	if ctx.Done() != nil { // when it ends, the caller uses its memory again while the message may still be sent
		one.payload, one.properties = bytes.Clone(m.Payload), maps.Clone(m.Properties)
	}
	w.enqueue(one)
	var r WriteResult
	select {
	case r = <-one.done:
	case <-ctx.Done():
		select { // it may have come at the same moment
		case r = <-one.done:
		default:
			return WriteResult{ID: one.id, Err: ctx.Err()}
		}
	}
	*one = write{done: one.done}
	writes.Put(one)
	return r
}

// WriteAsync queues a message and returns where its one result will come. It waits only for room
// in the queue. A message whose context ends before it is sent is not sent. The message must not
// be changed until the result is there.
func (w *IdempotentWriter) WriteAsync(ctx context.Context, m WriteMessage) <-chan WriteResult {
	one := &write{ctx, m.id(), m.Payload, m.Properties, make(chan WriteResult, 1)}
	w.enqueue(one)
	return one.done
}

func (w *IdempotentWriter) enqueue(one *write) {
	if err := one.check(); err != nil {
		one.fail(err)
		return
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.closed {
		one.fail(ErrWriterClosed)
		return
	}
	select {
	case w.queue <- one:
	case <-one.ctx.Done():
		one.fail(one.ctx.Err())
	case <-w.ctx.Done():
		one.fail(ErrWriterClosed)
	}
}

func (m *WriteMessage) id() string {
	if m.IdempotencyID != "" {
		return m.IdempotencyID
	}
	sum := md5.Sum(m.Payload)
	return hex.EncodeToString(sum[:])
}

func (o *write) fail(err error) { o.done <- WriteResult{ID: o.id, Err: err} }

// Close sends what is queued and waits for the results. When ctx ends first, what has no result
// by then gets ErrWriterClosed, and Close returns ctx's error. Another Close returns the same.
func (w *IdempotentWriter) Close(ctx context.Context) error {
	stopEarly := context.AfterFunc(ctx, func() { w.stop(ctx.Err()) })
	defer stopEarly()
	w.mu.Lock()
	first := !w.closed
	w.closed = true
	w.mu.Unlock()
	if first {
		close(w.queue)
	}
	<-w.ended
	return w.err
}

// run sends batches until the queue is closed and empty.
func (w *IdempotentWriter) run() {
	defer close(w.ended)
	var batch []*write
	var next *write // did not fit into the last batch
	for {
		one := next
		if next = nil; one == nil {
			var ok bool
			if one, ok = <-w.queue; !ok {
				w.err = context.Cause(w.ctx)
				return
			}
		}
		batch, next = w.collect(append(batch[:0], one))
		w.send(batch)
		clear(batch)
	}
}

// collect adds what waits to a batch of one message, and returns as well the message that did not fit.
func (w *IdempotentWriter) collect(batch []*write) (_ []*write, next *write) {
	writer := len(w.opts.Writer)
	for bytes := writer + batch[0].bytes(); len(batch) < w.opts.MaxBatch; {
		select {
		case one, ok := <-w.queue:
			if !ok {
				return batch, nil
			}
			if bytes += writer + one.bytes(); bytes > w.opts.MaxBatchBytes {
				return batch, one
			}
			batch = append(batch, one)
		default:
			return batch, nil
		}
	}
	return batch, nil
}

// send sends a batch until it is answered, nobody waits for it any more, or the writer is closed.
func (w *IdempotentWriter) send(batch []*write) {
	live := batch[:0]
	for _, one := range batch {
		if err := one.ctx.Err(); err != nil {
			one.fail(err)
		} else {
			live = append(live, one)
		}
	}
	if len(live) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(w.ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for _, one := range live {
			select {
			case <-one.ctx.Done():
			case <-ctx.Done():
				return
			}
		}
		cancel() // nobody waits for the batch any more
	}()
	results, err := w.append(ctx, live)
	cancel()
	<-watched // no message is read once it has a result

	if refused(err) && len(live) > 1 { // because of one of them: the others must not suffer
		for _, one := range live {
			w.send([]*write{one})
		}
		return
	}
	for i, one := range live {
		switch {
		case err == nil:
			one.done <- results[i]
		case w.ctx.Err() != nil:
			one.fail(ErrWriterClosed)
		case one.ctx.Err() != nil:
			one.fail(one.ctx.Err())
		default:
			one.fail(err)
		}
	}
}
