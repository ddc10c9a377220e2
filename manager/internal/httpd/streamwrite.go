package httpd

import (
	"encoding/binary"
	"sync"
	"time"
)

// Bounds of the replies that a stream's client has not taken.
const (
	// freeUnsent is memory that each stream has while it is open. More is taken of the server's budget while it is needed.
	freeUnsent = 16 << 10
	// maxUnsent bounds the bytes. One reply may be longer.
	maxUnsent = 32 << 20
	// maxKept bounds a buffer that is used again.
	maxKept = 64 << 10
)

// outbox has the replies that wait for the goroutine that writes.
type outbox struct {
	mu     sync.Mutex
	space  *sync.Cond
	wake   chan struct{}
	frames []byte
	last   int // where the last message of frames begins
	unsent int // bytes of frames, and of what is being written
	paid   int // memory of the server's budget
	over   bool
	dead   bool // nobody takes replies
}

func (o *outbox) init() {
	o.space, o.wake, o.paid = sync.NewCond(&o.mu), make(chan struct{}, 1), freeUnsent
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// finish lets the writer end once it has written what there is.
func (o *outbox) finish() {
	o.mu.Lock()
	o.over = true
	o.mu.Unlock()
	o.signal()
}

// drop forgets the replies, and those to come.
func (o *outbox) drop(st *Stream) {
	o.mu.Lock()
	o.dead = true
	st.server.streams.unsent.Add(-int64(len(o.frames)))
	o.unsent -= len(o.frames)
	o.frames = nil
	o.mu.Unlock()
	o.space.Broadcast()
	o.signal()
}

// AppendMessage begins a message. EndMessage completes it, given the length that dst had before.
func AppendMessage(dst []byte) []byte { return append(dst, 0, 0, 0, 0, 0) }

// EndMessage writes the length of the message that began at dst[at].
func EndMessage(dst []byte, at int) []byte {
	binary.BigEndian.PutUint32(dst[at+1:], uint32(len(dst)-at-messagePrefix))
	return dst
}

// Seal sets what is appended to the last message before messages are written. It must be called before the first Send.
func (st *Stream) Seal(seal func(dst []byte) []byte) { st.seal = seal }

// Send sends messages, the last of which begins at frames[last]. It copies them. It waits while the client has too many to take, and
// does nothing once the client has left.
func (st *Stream) Send(frames []byte, last int) {
	o := &st.out
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.dead && o.unsent > 0 && o.unsent+len(frames) > maxUnsent {
		o.space.Wait()
	}
	for !o.dead && o.unsent+len(frames) > o.paid {
		more := max(o.unsent+len(frames)-o.paid, maxKept)
		o.mu.Unlock()
		ok := st.server.bodies.wait(st.ctx, more)
		o.mu.Lock()
		switch {
		case ok:
			o.paid += more
		case o.unsent == 0 && !o.dead: // none of its own comes back
			st.server.metrics.bodiesRefused.Inc()
			st.Fail(StreamUnavailable, noRoom().Detail)
			return
		}
	}
	if o.dead {
		return
	}
	o.last = len(o.frames) + last
	o.frames = append(o.frames, frames...)
	o.unsent += len(frames)
	st.server.streams.unsent.Add(int64(len(frames)))
	o.signal()
}

// write writes what is sent until the stream ends: all that is there at once.
func (st *Stream) write() {
	o := &st.out
	var spare []byte
	for range o.wake {
		o.mu.Lock()
		frames, last, over := o.frames, o.last, o.over || o.dead
		if len(frames) > 0 {
			o.frames = spare[:0]
		}
		o.mu.Unlock()
		if len(frames) > 0 {
			n := len(frames)
			if st.seal != nil {
				frames = EndMessage(st.seal(frames), last)
			}
			ok := st.put(frames)
			st.written(n)
			if !ok {
				st.left()
				return
			}
			if spare = frames; cap(spare) > maxKept {
				spare = nil
			}
		}
		if over {
			o.mu.Lock()
			done := len(o.frames) == 0
			o.mu.Unlock()
			if done {
				return
			}
		}
	}
}

// written gives back the memory of n bytes.
func (st *Stream) written(n int) {
	o := &st.out
	st.server.streams.unsent.Add(-int64(n))
	o.mu.Lock()
	o.unsent -= n
	back := 0
	if o.unsent == 0 {
		back = o.paid - freeUnsent
		o.paid = freeUnsent
	}
	o.mu.Unlock()
	o.space.Broadcast()
	st.server.bodies.give(back, false)
}

// put writes and flushes. Each piece has its own time.
func (st *Stream) put(b []byte) bool {
	defer st.writeFrom.Store(0)
	for len(b) > 0 {
		st.writeFrom.Store(time.Now().UnixNano())
		n, err := st.hw.Write(b[:min(len(b), pieceBytes)])
		if err != nil {
			return false
		}
		b = b[n:]
	}
	return st.control.Flush() == nil
}
