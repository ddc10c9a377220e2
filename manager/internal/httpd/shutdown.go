package httpd

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// connWork counts what a connection has at work: requests that arrived whole and
// whose answers are not written yet. The shutdown waits for those and for
// nothing else.
type connWork struct {
	mu       sync.Mutex
	requests int
	multi    bool      // HTTP/2: several at once, written on their own
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
	if w.multi = multi; multi {
		w.requests++
	} else {
		w.requests = 1
	}
	return true
}

// end says that a request of HTTP/2 was answered, as far as its handler knows.
func (w *connWork) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests--
	w.last = time.Now()
}

// idle says that the answer to a request of HTTP/1 is written.
func (w *connWork) idle() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.multi {
		w.requests = 0
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
// begun, and what HTTP/2 has for the last frames of an answer. It decides about
// nothing that is owed.
const courtesy = time.Second

// Shutdown closes the listener, lets requests that have arrived finish and
// closes the connections that have none. When ctx ends first, all connections are
// closed; its error is returned when requests were cut off.
func (s *Server) Shutdown(ctx context.Context) error {
	s.limit.close()
	s.streams.stop()
	done := make(chan error, 1)
	// This waits for every connection that is not idle.
	go func() { done <- s.http.Shutdown(ctx) }()
	look := time.NewTimer(courtesy)
	defer look.Stop()
	for {
		select {
		case err := <-done:
			busy := false
			for _, c := range s.limit.open() {
				busy = busy || c.work.busy()
			}
			s.limit.closeConns()
			_ = s.http.Close()                          // what is left, if anything
			if !busy || errors.Is(err, net.ErrClosed) { // the listener, which is closed by now
				return nil
			}
			return err
		case <-look.C:
			for _, c := range s.limit.open() {
				if c.work.release() {
					_ = c.Close()
				}
			}
			look.Reset(20 * time.Millisecond)
		}
	}
}
