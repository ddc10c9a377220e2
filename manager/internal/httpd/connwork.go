package httpd

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// connWork tells what a connection has at work: requests that arrived whole and
// whose answers are not written yet. The shutdown waits for those and for
// nothing else.
type connWork struct {
	written atomic.Bool // something was, since the last request began
	waits   atomic.Bool // the answer is in the engine's buffer, see idle

	mu       sync.Mutex
	requests int
	multi    bool      // HTTP/2: several at once, written by the engine on its own
	last     time.Time // with multi: when the last one was answered
	cut      bool
}

// begin says that a request arrived whole. False: the shutdown has closed the
// connection, nobody would hear the answer and nothing must be done.
func (w *connWork) begin(multi bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		return false
	}
	if multi {
		w.requests++
		w.multi = true
		return true
	}
	w.written.Store(false)
	w.waits.Store(false)
	w.requests = 1
	return true
}

// wrote says that the engine has written what it had.
func (w *connWork) wrote() {
	w.written.Store(true)
	if w.waits.Load() {
		w.idle()
	}
}

// end says that a request of HTTP/2 was answered, as far as its handler knows.
func (w *connWork) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests--
	w.last = time.Now()
}

// idle says that the engine turns to the next request of HTTP/1. An answer that
// still waits in its buffer, for those to pipelined requests, is not written: that
// comes when the next request is complete, or when it turns out not to be.
func (w *connWork) idle() {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.multi:
	case w.written.Load():
		w.requests = 0
		w.waits.Store(false)
	default:
		w.waits.Store(true)
	}
}

// busy reports whether an answer is owed.
func (w *connWork) busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.requests > 0
}

// release reports whether the connection may be closed now, and if so sees to
// it that no request begins any more.
func (w *connWork) release() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.requests > 0 || w.multi && time.Since(w.last) < courtesy {
		return false
	}
	w.cut = true
	return true
}

// courtesy is what a client has at shutdown to complete a request that it has
// begun, and what an engine of HTTP/2 has for the last frames of an answer. It
// decides about nothing that is owed.
const courtesy = time.Second

// shutdown closes the listener and runs the engine's own shutdown, which waits
// for every connection that is not idle. Those that have no request at work are
// closed after a short while. The error is that of ctx, when it cut off
// requests.
func (l *limiter) shutdown(ctx context.Context, engine func(context.Context) error) error {
	l.close()
	done := make(chan error, 1)
	go func() { done <- engine(ctx) }()
	look := time.NewTimer(courtesy)
	defer look.Stop()
	for {
		select {
		case err := <-done:
			if err == nil || errors.Is(err, net.ErrClosed) {
				return nil // the listener, which is closed by now
			}
			busy := false
			for _, c := range l.open() {
				busy = busy || c.work.busy()
			}
			l.closeConns()
			if !busy {
				return nil
			}
			return err
		case <-look.C:
			for _, c := range l.open() {
				if c.work.release() {
					_ = c.Close()
				}
			}
			look.Reset(20 * time.Millisecond)
		}
	}
}

// requestIdle takes a change of a connection's state from an engine.
func requestIdle(c net.Conn) {
	if limited, _ := rawConn(c); limited != nil {
		limited.work.idle()
	}
}
