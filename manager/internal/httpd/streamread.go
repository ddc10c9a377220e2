package httpd

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// A message of gRPC has one byte that says whether it is compressed, its length in four bytes, and itself.
const messagePrefix = 5

// Bounds of what is read at once.
const (
	// readBytes is the memory for reading, as long as no message is longer.
	readBytes = 16 << 10
	// maxTogether bounds the messages that are taken together.
	maxTogether = api.MaxTogether
)

// inbox has the bytes that arrived and are no message yet. It is of the goroutine that calls Next.
type inbox struct {
	buf  []byte // as long as what arrived
	paid int    // memory of the server's budget, that of buf
}

// free gives back the memory of a stream that has ended, also that of messages which nobody freed.
func (in *inbox) free(st *Stream) {
	giveRead(st.server, in.buf, in.paid+int(st.kept.Swap(0)))
	*in = inbox{}
}

var readBuffers = sync.Pool{New: func() any { return new([readBytes]byte) }}

// giveRead gives back a buffer and its memory.
func giveRead(s *Server, buf []byte, paid int) {
	if cap(buf) == readBytes {
		readBuffers.Put((*[readBytes]byte)(buf[:readBytes]))
	}
	s.bodies.give(paid, false)
}

// Messages are messages that arrived together. Their memory is valid until each Keep, and the one that Next made, has met its Free.
type Messages struct {
	List [][]byte

	st   *Stream
	buf  []byte
	paid int
	kept atomic.Int32
}

// Keep keeps the memory for one more Free.
func (m *Messages) Keep() { m.kept.Add(1) }

// Free gives back the memory after the last one that kept it.
func (m *Messages) Free() {
	if m.kept.Add(-1) == 0 {
		m.st.kept.Add(-int64(m.paid))
		giveRead(m.st.server, m.buf, m.paid)
		m.buf, m.List = nil, nil
	}
}

// cutMessages appends to list the complete messages at the beginning of b, up to a length of most. rest is what follows. If it has the
// prefix of a message, need is how long that one is with its prefix. A message that may not be read is an error only if it is the first.
func cutMessages(list [][]byte, b []byte, most int) (_ [][]byte, rest []byte, need int, bad *StreamEnd) {
	for len(list) < most && len(b) >= messagePrefix {
		n := int64(binary.BigEndian.Uint32(b[1:]))
		switch {
		case b[0] != 0:
			bad = &StreamEnd{StreamUnimplemented, "messages must not be compressed"}
		case n > api.MaxStreamMessage:
			bad = &StreamEnd{StreamResourceExhausted, "a message has at most 17 MiB"}
		}
		if bad != nil {
			if len(list) > 0 {
				bad = nil // next time
			}
			return list, b, 0, bad
		}
		if need = messagePrefix + int(n); len(b) < need {
			return list, b, need, nil
		}
		list = append(list, b[messagePrefix:need:need])
		b, need = b[need:], 0
	}
	return list, b, 0, nil
}

// Next waits for messages, and returns all that have arrived; nil at the end of the stream.
func (st *Stream) Next() *Messages {
	in := &st.in
	m := &Messages{st: st}
	for {
		select {
		case <-st.ending:
			return nil
		default:
		}
		list, rest, need, bad := cutMessages(m.List[:0], in.buf, maxTogether)
		if m.List = list; bad != nil {
			st.Fail(bad.Code, bad.Message)
			return nil
		}
		if len(list) > 0 {
			st.readFrom.Store(0)
			m.buf, m.paid = in.buf, in.paid
			m.kept.Store(1)
			st.kept.Add(int64(m.paid))
			*in = inbox{}
			if len(rest) > 0 && !st.room(max(readBytes, len(rest)), rest) {
				m.Free()
				return nil
			}
			return m
		}
		if len(in.buf) == cap(in.buf) {
			if !st.room(max(readBytes, min(2*cap(in.buf), need)), in.buf) {
				return nil
			}
		}
		if len(in.buf) > 0 {
			st.readFrom.CompareAndSwap(0, time.Now().UnixNano())
		}
		n, err := st.body.Read(in.buf[len(in.buf):cap(in.buf)])
		in.buf = in.buf[:len(in.buf)+n]
		if n == 0 && err != nil {
			st.readFailed(err)
			return nil
		}
	}
}

func (st *Stream) readFailed(err error) {
	select {
	case <-st.ending:
		return // which has ended the read
	default:
	}
	switch {
	case !errors.Is(err, io.EOF):
		st.left()
	case len(st.in.buf) > 0:
		st.Fail(StreamInvalidArgument, "the last message is not complete")
	default:
		st.Fail(StreamOK, "")
	}
}

// room makes a buffer of n bytes that begins with what has arrived.
func (st *Stream) room(n int, arrived []byte) bool {
	in := &st.in
	if !st.pay(n - in.paid) {
		return false
	}
	old, paid := in.buf, in.paid
	if n == readBytes {
		in.buf = readBuffers.Get().(*[readBytes]byte)[:0]
	} else {
		in.buf = make([]byte, 0, n)
	}
	in.buf = append(in.buf, arrived...)
	in.paid = n
	if paid > 0 {
		giveRead(st.server, old, 0)
	}
	return true
}

// pay takes memory of the server's budget. If it has none for long, the stream ends.
func (st *Stream) pay(n int) bool {
	if st.server.bodies.wait(st.ctx, n) {
		return true
	}
	st.server.metrics.bodiesRefused.Inc()
	if context.Cause(st.ctx) != nil {
		st.left()
	} else {
		st.Fail(StreamUnavailable, noRoom().Detail)
	}
	return false
}
