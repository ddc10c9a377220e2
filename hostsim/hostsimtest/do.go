package hostsimtest

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/oncegate/oncegate/hostsim"
)

// Request is a whole request.
type Request struct {
	Headers hostsim.Headers // with :method, :path, :authority
	// Pieces are the body as it arrives. A last, empty piece follows, as from HTTP/1 codecs. Nil: the headers end the
	// request.
	Pieces   [][]byte
	Trailers hostsim.Headers // instead of the last empty piece
	Worker   int             // hostsim.AnyWorker: the next worker
	Options  hostsim.StreamOptions
	// Leave makes the client disconnect at a step (see Step).
	Leave Step
}

// Step is a point of a request's life at which a client may disconnect.
type Step int

// Steps, in the order in which they happen.
const (
	Never                Step = iota
	AfterRequestHeaders       // directly after the request's headers
	AfterFirstPiece           // directly after the first piece of body
	AfterRequest              // directly after the whole request
	UpstreamHasHeaders        // when upstream has the request headers
	UpstreamHasRequest        // when upstream has the whole request, before it answers
	AfterResponseHeaders      // directly after upstream's response headers
	AfterResponse             // directly after the whole response, which may still be held
	ClientHasHeaders          // when the client has the response headers
)

// Response is a whole response.
type Response struct {
	Status   int
	Headers  hostsim.Headers // without :status
	Pieces   [][]byte        // set by an Upstream: the body in the pieces that are sent
	Body     []byte          // of a response from Do; of an Upstream's response if Pieces is nil
	Trailers hostsim.Headers
	// Failure makes an Upstream fail instead of answering.
	Failure hostsim.UpstreamFailure
	// FailAfterHeaders makes the failure happen after the response headers.
	FailAfterHeaders bool
}

// Upstream answers a request as it left the filter. Do calls it on its own goroutine, so it may block.
type Upstream func(Message) Response

// ErrLeft is Do's error when the client disconnected because of Request.Leave.
var ErrLeft = errors.New("hostsimtest: the client left")

// ResetError is Do's error when the client's connection was closed without a whole
// response.
type ResetError struct{ Reason hostsim.ResetReason }

func (e *ResetError) Error() string { return "hostsimtest: response reset: " + string(e.Reason) }

// Do plays a whole request and waits until the stream is over. It calls upstream once the whole request has left the
// filter, or never if that does not happen.
func Do(ctx context.Context, h *hostsim.Host, req Request, upstream Upstream) (Response, error) {
	up, down := newSink(), newSink()
	opts := req.Options
	opts.Worker, opts.Upstream, opts.Downstream = req.Worker, up, down
	s, err := h.NewStream(opts)
	if err != nil {
		return Response{}, err
	}
	d := &doing{s: s, up: up, down: down, req: req}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		d.playUpstream(ctx, upstream)
	}()
	d.playClient(ctx)
	select {
	case <-s.Done():
	case <-ctx.Done():
		s.ClientReset()
		<-s.Done()
	}
	<-answered
	m := down.Message()
	switch {
	case ctx.Err() != nil:
		return Response{}, fmt.Errorf("the stream did not end: client has %q, upstream has %q: %w", down.Log(), up.Log(), ctx.Err())
	case m.Reset != "":
		return Response{}, &ResetError{m.Reset}
	case !m.Ended:
		return Response{}, ErrLeft
	}
	r := Response{Headers: m.Headers.Clone(), Body: m.Body, Trailers: m.Trailers}
	r.Status, _ = strconv.Atoi(m.Status())
	r.Headers.Del(":status")
	return r, nil
}

type doing struct {
	s        *hostsim.Stream
	up, down *Sink
	req      Request
}

// at disconnects the client if step is the one to leave at.
func (d *doing) at(step Step) bool {
	if d.req.Leave == step {
		d.s.ClientReset()
		return true
	}
	return false
}

func (d *doing) playClient(ctx context.Context) {
	s, req := d.s, d.req
	whole := req.Pieces == nil && req.Trailers == nil
	if req.Leave == ClientHasHeaders {
		d.down.mu.Lock()
		d.down.onChange = func(m Message) {
			if m.Headers != nil {
				s.ClientReset()
			}
		}
		d.down.mu.Unlock()
	}
	s.RequestHeaders(req.Headers.Clone(), whole)
	if d.at(AfterRequestHeaders) {
		return
	}
	for i, p := range req.Pieces {
		if s.AwaitRequest(ctx) != nil {
			return
		}
		s.RequestData(append([]byte(nil), p...), false)
		if i == 0 && d.at(AfterFirstPiece) {
			return
		}
	}
	switch {
	case req.Trailers != nil:
		s.RequestTrailers(req.Trailers.Clone())
	case !whole:
		s.RequestData(nil, true)
	}
	d.at(AfterRequest)
}

// await waits for upstream's sink. It returns false when the stream ended first.
func (d *doing) await(ctx context.Context, cond func(Message) bool) (Message, bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-d.s.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	m, err := d.up.Await(ctx, func(m Message) bool { return cond(m) || m.Reset != "" })
	return m, err == nil && m.Reset == ""
}

func (d *doing) playUpstream(ctx context.Context, upstream Upstream) {
	s := d.s
	if _, ok := d.await(ctx, func(m Message) bool { return m.Headers != nil }); !ok {
		return
	}
	if d.at(UpstreamHasHeaders) {
		return
	}
	m, ok := d.await(ctx, func(m Message) bool { return m.Ended })
	if !ok || d.at(UpstreamHasRequest) {
		return
	}
	r := upstream(m)
	if r.Failure != 0 && !r.FailAfterHeaders {
		s.UpstreamFailed(r.Failure, "")
		return
	}
	pieces := r.Pieces
	if pieces == nil && len(r.Body) > 0 {
		pieces = [][]byte{r.Body}
	}
	whole := len(pieces) == 0 && r.Trailers == nil && r.Failure == 0
	s.ResponseHeaders(append(hostsim.H(":status", strconv.Itoa(r.Status)), r.Headers...), whole)
	if d.at(AfterResponseHeaders) {
		return
	}
	for _, p := range pieces {
		if s.AwaitResponse(ctx) != nil {
			return
		}
		s.ResponseData(append([]byte(nil), p...), false)
	}
	switch {
	case r.Failure != 0:
		s.UpstreamFailed(r.Failure, "")
	case r.Trailers != nil:
		s.ResponseTrailers(r.Trailers.Clone())
	case !whole:
		s.ResponseData(nil, true)
	}
	d.at(AfterResponse)
}
