package httpd

import (
	"context"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// budget bounds the memory of the bodies of all requests, from their arrival until they are answered. Half of it may be
// taken by small ones, which are read before their credentials are checked. What a small body takes first always
// has room while each connection has one request, so that slow callers with larger ones do not keep it out.
type budget struct {
	max   int64 // bytes of all bodies
	extra int64 // more for the first pieces of small ones

	mu      sync.Mutex
	used    int64
	small   int64 // of used
	waiting []*bodyWait
	// patience is how long one waits.
	patience time.Duration
}

// bodyWait is a large body that waits for memory.
type bodyWait struct {
	n     int64
	ready chan struct{} // closed when it has it
}

// firstPiece is the memory that a small body takes at its announcement, about as much as its
// connection has for reading. firstChunks is the same for a body of unknown length.
const (
	firstPiece  = 4 << 10
	firstChunks = 64 << 10
)

// bodyPatience is how long a large body waits for memory.
const bodyPatience = time.Second

// take takes memory now, if there is as much. first says that it is the first piece of a small body.
func (b *budget) take(n int, small, first bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	extra := int64(0)
	if first {
		extra = b.extra
	}
	if b.used+int64(n) > b.max+extra || small && b.small+int64(n) > b.max/2+extra {
		return false
	}
	b.used += int64(n)
	if small {
		b.small += int64(n)
	}
	return true
}

// wait takes memory for a large body, before others that come later. It gives up when ctx ends or its patience does.
func (b *budget) wait(ctx context.Context, n int) bool {
	b.mu.Lock()
	if len(b.waiting) == 0 && b.used+int64(n) <= b.max {
		b.used += int64(n)
		b.mu.Unlock()
		return true
	}
	w := &bodyWait{n: int64(n), ready: make(chan struct{})}
	b.waiting = append(b.waiting, w)
	patience := time.NewTimer(b.patience)
	b.mu.Unlock()
	defer patience.Stop()
	select {
	case <-w.ready:
		return true
	case <-patience.C:
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.waiting, w)
	if i >= 0 {
		b.waiting = slices.Delete(b.waiting, i, i+1)
		b.grant() // a smaller one after it may fit
	}
	return i < 0 // it was given the memory in this moment
}

// give gives memory back.
func (b *budget) give(n int, small bool) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= int64(n)
	if small {
		b.small -= int64(n)
	}
	b.grant()
}

// grant gives memory to those that wait, in their order.
func (b *budget) grant() {
	for len(b.waiting) > 0 && b.used+b.waiting[0].n <= b.max {
		b.used += b.waiting[0].n
		close(b.waiting[0].ready)
		b.waiting = slices.Delete(b.waiting, 0, 1)
	}
}

func (b *budget) bytes() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// bodyRoom is the memory that a request's body has of the budget.
type bodyRoom struct {
	bytes int
	small bool
}

// largeBody reports whether a request must be authorized, and count as one at
// work, before its body is read: a large body takes its memory when it is announced,
// and only callers that may send one, as many as there is room for.
func largeBody(hr *http.Request) bool { return hr.ContentLength < 0 || hr.ContentLength > freeBody }

// freeBody bounds a body that is read before the check of the
// request's credentials and of how many requests are at work.
const freeBody = 64 << 10

// readBody reads the body of a request. Its memory is in x.room, whatever it returns.
func (s *Server) readBody(hw http.ResponseWriter, hr *http.Request, x *exchange) ([]byte, *api.Problem) {
	buf := x.body[:0]
	size, limit := int(min(hr.ContentLength, int64(s.opts.MaxBodyBytes)+1)), s.opts.MaxBodyBytes
	if size > limit {
		return buf, bodyTooLarge(limit)
	}
	body, first := hr.Body, firstPiece
	x.room.small = !largeBody(hr)
	switch {
	case size < 0:
		size, first, body = limit, firstChunks, http.MaxBytesReader(hw, body, int64(limit))
	case !x.room.small:
		first = size
	}
	for {
		if len(buf) == x.room.bytes && len(buf) < size {
			// It takes memory as it arrives, since an announcement costs its sender nothing.
			if !s.moreRoom(hr.Context(), &x.room, min(max(x.room.bytes, first), size-x.room.bytes)) {
				s.metrics.shed.Inc()
				s.metrics.bodiesRefused.Inc()
				return buf, noRoom()
			}
		}
		buf = slices.Grow(buf, max(x.room.bytes-len(buf), 1)) // one more byte, to see the end
		n, err := body.Read(buf[len(buf):max(x.room.bytes, len(buf)+1)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			return buf, nil
		}
		if err != nil {
			return buf, unreadableBody(err, limit)
		}
	}
}

// moreRoom takes memory for a body. Only one that has none yet waits: those that have some would wait for each other.
func (s *Server) moreRoom(ctx context.Context, room *bodyRoom, n int) bool {
	ok := false
	if room.bytes == 0 && !room.small {
		ok = s.bodies.wait(ctx, n)
	} else {
		ok = s.bodies.take(n, room.small, room.bytes == 0)
	}
	if ok {
		room.bytes += n
	}
	return ok
}

func noRoom() *api.Problem {
	return overloaded("the bodies of other requests take the memory that there is for them")
}
