package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/hostsim"
)

const (
	// writePiece bounds the bytes of one write, so that a slow client that still reads makes progress within the write
	// timeout.
	writePiece = 64 << 10
)

// RouteCluster is the cluster of all requests' route, by its name in xds.cluster_name.
const RouteCluster = "upstream"

var (
	errMalformedBody = errors.New("proxy: the request's body is malformed")
	errClientGone    = errors.New("proxy: the client is gone")
	past             = time.Unix(1, 0)
)

// exchange is one request and its answer.
type exchange struct {
	p      *Proxy
	w      http.ResponseWriter
	r      *http.Request
	rc     *http.ResponseController
	stream *hostsim.Stream

	// ctx ends with the client's connection or with the exchange.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// upCtx is the context of the upstream call. It ends when the stream says so, not when the client leaves, so that
	// the host decides in its own order.
	upCtx    context.Context
	upCancel context.CancelCauseFunc

	up, down *queue
	pumpDone chan struct{} // closed when the client's body is not read any more
	bodyDone atomic.Bool   // the client's body was read to its end

	mu   sync.Mutex
	over bool           // the answer has ended, successfully or not; no upstream call may start
	call sync.WaitGroup // the upstream call
}

func newExchange(p *Proxy, w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{
		p: p, w: w, r: r, rc: http.NewResponseController(w),
		up: newQueue(), down: newQueue(), pumpDone: make(chan struct{}),
	}
	x.ctx, x.cancel = context.WithCancelCause(r.Context())
	x.upCtx, x.upCancel = context.WithCancelCause(context.WithoutCancel(r.Context()))
	return x
}

// open starts the stream and feeds the headers.
func (x *exchange) open(h hostsim.Headers) error {
	// An answer may begin before the request is complete, and then both continue.
	if err := x.rc.EnableFullDuplex(); err != nil {
		return err
	}
	opts := hostsim.StreamOptions{
		Worker:     hostsim.AnyWorker,
		Downstream: &sink{q: x.down, early: func() bool { return !x.stream.RequestComplete() }},
		Upstream:   &sink{q: x.up, onHeaders: x.forward, onReset: func(hostsim.ResetReason) { x.upCancel(errUnwanted) }},
		Connection: hostsim.ConnectionInfo{SourceAddress: x.r.RemoteAddr, Protocol: x.r.Proto},
		Route:      func(hostsim.Headers) hostsim.Route { return hostsim.Route{Name: "default", Cluster: RouteCluster} },
	}
	if a, ok := x.r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		opts.Connection.DestinationAddress = a.String()
	}
	if c := connOf(x.r.Context()); c != nil {
		opts.Worker, opts.Connection.ID = c.worker, c.id
	}
	stream, err := x.p.cfg.Host.NewStream(opts)
	if err != nil {
		x.cancel(err)
		x.upCancel(err)
		return err
	}
	x.stream = stream
	if x.r.Body == nil || x.r.Body == http.NoBody {
		x.bodyDone.Store(true)
		close(x.pumpDone)
		stream.RequestHeaders(h, true)
		return nil
	}
	stream.RequestHeaders(h, false)
	go x.pump()
	return nil
}

// forward starts the upstream call. It runs on the host's event loop.
func (x *exchange) forward(h hostsim.Headers, end bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		return
	}
	call := &upstreamCall{
		u: x.p.upstream, feed: x.stream, q: x.up, ctx: x.upCtx, cancel: x.upCancel,
		awaitRoom: func(ctx context.Context) error { return x.down.awaitRoom(ctx, x.p.cfg.Window) },
	}
	x.call.Go(func() { call.run(h, end) })
}

// pump reads the client's body into the stream, only as fast as the stream accepts it.
func (x *exchange) pump() {
	defer close(x.pumpDone)
	buf := pieces.Get().(*[]byte)
	defer pieces.Put(buf)
	for {
		err := x.stream.AwaitRequest(x.ctx)
		if err == nil {
			err = x.up.awaitRoom(x.ctx, x.p.cfg.Window)
		}
		if err != nil {
			return // the client disconnected, or the exchange and the connection are over
		}
		n, err := x.r.Body.Read(*buf)
		piece := bytes.Clone((*buf)[:n])
		if err == io.EOF {
			x.bodyDone.Store(true)
			t := hostsim.HeadersOf(x.r.Trailer)
			whole := len(t) == 0
			if n > 0 || whole {
				// The last byte and the end in one event, as from one read of Envoy's codec. A reply between the two would
				// close the connection.
				x.stream.RequestData(piece, whole)
			}
			if !whole {
				x.stream.RequestTrailers(t)
			}
			return
		}
		if n > 0 {
			x.stream.RequestData(piece, false)
		}
		if err != nil {
			x.mu.Lock()
			over := x.over
			x.mu.Unlock()
			if over { // finish interrupted the read
				return
			}
			x.stream.ClientReset()
			if x.r.Context().Err() == nil && !isNetworkError(err) {
				x.cancel(errMalformedBody)
			} else {
				x.cancel(errClientGone)
			}
			return
		}
	}
}

// isNetworkError distinguishes a lost or silent connection from a body with bad framing.
func isNetworkError(err error) bool {
	var ne net.Error
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &ne) || errors.Is(err, net.ErrClosed)
}

// run writes the answer. It returns the status once the answer is complete, or 0 when it was cut and the connection
// must be closed.
func (x *exchange) run() (status int) {
	finished := false
	defer func() {
		if !finished {
			status = 0
		}
		x.finish()
	}()
	for {
		e, err := x.down.take(x.ctx)
		if err != nil {
			x.stream.ClientReset()
			if errors.Is(err, errMalformedBody) && status == 0 {
				refuse(x.w, &refusal{http.StatusBadRequest, "the request's body is malformed"})
				status, finished = http.StatusBadRequest, true
			}
			return status
		}
		switch e.kind {
		case eventReset:
			return status
		case eventHeaders:
			if status, err = x.writeHeaders(e); err != nil {
				x.p.cfg.Logger.Error("bad response headers", "error", err)
				x.stream.ClientReset()
				return status
			}
		case eventData:
			if err := x.writeData(e.data); err != nil {
				x.stream.ClientReset()
				return status
			}
		case eventTrailers:
			for _, p := range e.headers {
				x.w.Header().Add(http.TrailerPrefix+http.CanonicalHeaderKey(p[0]), p[1])
			}
		}
		if e.end {
			finished = true
			return status
		}
		if err := x.flushIfIdle(); err != nil {
			x.stream.ClientReset()
			return status
		}
	}
}

// finish stops what the exchange started and waits for it.
func (x *exchange) finish() {
	x.mu.Lock()
	x.over = true
	x.mu.Unlock()
	if !x.bodyDone.Load() {
		// The body is incomplete and the connection will not be used again (writeHeaders said so, or the answer was
		// cut), so setting the deadline is safe.
		if c := connOf(x.r.Context()); c != nil {
			c.linger.Store(true)
		}
		_ = x.rc.SetReadDeadline(past) // fails only when the connection is closed already
	}
	x.cancel(errUnwanted)
	<-x.pumpDone
	// By now the answer has ended or the stream has been reset, so nobody needs what upstream still sends.
	x.upCancel(errUnwanted)
	x.call.Wait()
}

// writeHeaders starts the answer.
func (x *exchange) writeHeaders(e event) (int, error) {
	h := e.headers
	status, err := strconv.Atoi(h.Get(":status"))
	if err != nil || status < 200 || status > 999 {
		return 0, errors.New("proxy: :status is " + strconv.Quote(h.Get(":status")) + ", must be 200 to 999")
	}
	dst := x.w.Header()
	writeResponseHeaders(dst, h)
	sized := dst["Content-Length"] != nil
	if !e.end && !sized && x.hasBody(status) {
		dst["Transfer-Encoding"] = []string{"chunked"}
	}
	if e.early {
		dst["Connection"] = []string{"close"}
	}
	x.w.WriteHeader(status)
	return status, nil
}

func (x *exchange) hasBody(status int) bool {
	return x.r.Method != http.MethodHead && status != http.StatusNoContent && status != http.StatusNotModified
}

// writeData writes a piece of body.
func (x *exchange) writeData(b []byte) error {
	if x.r.Method == http.MethodHead {
		return nil
	}
	for len(b) > 0 {
		n := min(len(b), writePiece)
		if _, err := x.w.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// flushIfIdle sends what has been written when there is nothing more to write.
func (x *exchange) flushIfIdle() error {
	x.down.mu.Lock()
	idle := len(x.down.events) == 0
	x.down.mu.Unlock()
	if !idle {
		return nil
	}
	return x.rc.Flush()
}
