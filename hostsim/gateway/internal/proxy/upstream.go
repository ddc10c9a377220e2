package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/internal/rawurl"
)

// upstreamIdle is how long an unused connection to upstream is kept. It is shorter than the limit of common servers
// (except Node, 5 s: nginx 75 s, Apache 5 to 60 s, Go unlimited). For a connection that has carried no request yet, Go counts
// ReadHeaderTimeout. A request on a connection that is just being closed cannot be sent again and has an unknown outcome.
const upstreamIdle = 30 * time.Second

// Causes of a cancelled upstream request.
var (
	errRouteTimeout = errors.New("proxy: route timeout")
	errUnwanted     = errors.New("proxy: the answer is no longer wanted")
)

// feed is the part of a stream that receives upstream's answer.
type feed interface {
	UpstreamSelected(address string)
	ResponseHeaders(h hostsim.Headers, endStream bool)
	ResponseData(b []byte, endStream bool)
	ResponseTrailers(h hostsim.Headers)
	UpstreamFailed(f hostsim.UpstreamFailure, detail string)
	AwaitResponse(ctx context.Context) error
}

// upstream sends requests to one address, each at most once.
type upstream struct {
	addr      string
	timeout   time.Duration // from the request's end to the answer's end; 0: none
	transport *http.Transport
	slots     chan struct{} // one for each request in progress or pending
	results   func(result string)
}

func newUpstream(addr string, connectTimeout, timeout time.Duration, maxActive, maxPending, maxHeaderBytes int, results func(string)) *upstream {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &upstream{
		addr:    addr,
		timeout: timeout,
		slots:   make(chan struct{}, maxActive+maxPending),
		results: results,
		transport: &http.Transport{
			DialContext:            (&net.Dialer{Timeout: connectTimeout}).DialContext,
			Protocols:              protocols,
			DisableCompression:     true,
			MaxConnsPerHost:        maxActive,
			MaxIdleConns:           maxActive,
			MaxIdleConnsPerHost:    maxActive,
			IdleConnTimeout:        upstreamIdle,
			MaxResponseHeaderBytes: int64(maxHeaderBytes),
		},
	}
}

func (u *upstream) close() { u.transport.CloseIdleConnections() }

// upstreamCall is one request's way to upstream and its answer's way back.
type upstreamCall struct {
	u      *upstream
	feed   feed
	q      *queue // the request's body
	ctx    context.Context
	cancel context.CancelCauseFunc
	// awaitRoom waits until the client has read enough of the answer.
	awaitRoom func(context.Context) error
}

// run makes the whole call. It returns when the answer has been fed, the failure reported, or the call cancelled
// because its answer is not needed.
func (c *upstreamCall) run(h hostsim.Headers, end bool) {
	defer c.cancel(errUnwanted)
	select {
	case c.u.slots <- struct{}{}:
		defer func() { <-c.u.slots }()
	default:
		c.fail(hostsim.ErrCircuitBreaker)
		return
	}

	body := &requestBody{ctx: c.ctx, q: c.q, ended: end}
	if c.u.timeout > 0 {
		timer := &routeTimer{d: c.u.timeout, expire: func() { c.cancel(errRouteTimeout) }}
		defer timer.stop()
		body.onEnd = timer.start
		if end {
			timer.start()
		}
	}
	ctx := httptrace.WithClientTrace(c.ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			c.feed.UpstreamSelected(info.Conn.RemoteAddr().String())
		},
	})
	req, err := newRequest(ctx, c.u.addr, h, end, body)
	if err != nil {
		c.fail(err)
		return
	}
	sent := time.Now()
	resp, err := c.u.transport.RoundTrip(req)
	if err != nil {
		c.fail(err)
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		c.fail(errors.New("upstream switched protocols without being asked"))
		return
	}
	noBody := resp.Body == http.NoBody
	c.feed.ResponseHeaders(responseHeaders(resp, time.Since(sent).Milliseconds()), noBody)
	if !noBody {
		if err := c.copyBody(resp); err != nil {
			c.fail(err)
			return
		}
	}
	c.u.results("answered")
}

// copyBody feeds the answer's body and trailers.
func (c *upstreamCall) copyBody(resp *http.Response) error {
	buf := pieces.Get().(*[]byte)
	defer pieces.Put(buf)
	for {
		if err := c.feed.AwaitResponse(c.ctx); err != nil {
			return err
		}
		if err := c.awaitRoom(c.ctx); err != nil {
			return err
		}
		n, err := resp.Body.Read(*buf)
		if n > 0 {
			c.feed.ResponseData(bytes.Clone((*buf)[:n]), false)
		}
		switch {
		case err == io.EOF:
			if t := hostsim.HeadersOf(resp.Trailer); len(t) > 0 {
				c.feed.ResponseTrailers(t)
			} else {
				c.feed.ResponseData(nil, true)
			}
			return nil
		case err != nil:
			return err
		}
	}
}

// fail tells the stream why there is no answer.
func (c *upstreamCall) fail(err error) {
	f, detail, result := classify(context.Cause(c.ctx), err)
	c.u.results(result)
	if f != 0 {
		c.feed.UpstreamFailed(f, detail)
	}
}

// classify converts an error to the failure that Envoy's router would report. Zero means that nobody waits for the
// answer.
func classify(cause, err error) (f hostsim.UpstreamFailure, detail, result string) {
	if errors.Is(err, hostsim.ErrCircuitBreaker) {
		return hostsim.UpstreamOverflow, "", "overflow"
	}
	switch {
	case errors.Is(cause, errRouteTimeout):
		return hostsim.UpstreamTimedOut, "", "timed_out"
	case cause != nil, errors.Is(err, hostsim.ErrStreamOver):
		return 0, "", "cancelled"
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" { // nothing was sent
		var dns *net.DNSError
		if errors.As(err, &dns) {
			return hostsim.UpstreamNoHealthy, "", "no_healthy"
		}
		return hostsim.UpstreamConnectFailed, detailOf(err), "connect_failed"
	}
	return hostsim.UpstreamDisconnected, detailOf(err), "disconnected"
}

// detailOf is what a client may see of a network error: no addresses.
func detailOf(err error) string {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "timeout"
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return ""
}

// newRequest builds the outgoing request. Its body is never nil, even for a request without one, because http.Transport
// may send a request with a nil body twice.
func newRequest(ctx context.Context, addr string, h hostsim.Headers, end bool, body *requestBody) (*http.Request, error) {
	req := &http.Request{
		Method:     h.Get(":method"),
		Host:       h.Get(":authority"),
		Proto:      "HTTP/1.1",
		ProtoMajor: 1,
		ProtoMinor: 1,
		Header:     make(http.Header, len(h)),
		Body:       body,
		URL:        rawurl.Of(addr, h.Get(":path")),

		ContentLength: -1,
	}
	req.Header["User-Agent"] = nil // without the entry, net/http would name itself
	for _, p := range h {
		switch name := p[0]; {
		case strings.HasPrefix(name, ":"), hopByHop(name), name == "host", name == "content-length", name == "trailer":
		case name == "user-agent":
			req.Header["User-Agent"] = append(req.Header["User-Agent"], p[1])
		default: // in lower case, as Envoy sends them
			req.Header[name] = append(req.Header[name], p[1])
		}
	}
	length, sized := h.Lookup("content-length")
	switch {
	case end:
		// No chunked frame for an empty body; a length that the client gave is kept.
		req.TransferEncoding = []string{"identity"}
		req.ContentLength = 0
		if sized {
			if length != "0" {
				return nil, fmt.Errorf("content-length is %q but the request has no body", length)
			}
			req.Header["content-length"] = []string{"0"}
		}
	case sized:
		n, err := strconv.ParseInt(length, 10, 63)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("content-length %q is not a number of bytes", length)
		}
		if n == 0 { // an empty body that ends immediately
			req.TransferEncoding = []string{"identity"}
			req.Header["content-length"] = []string{"0"}
		}
		req.ContentLength = n
	default:
		req.TransferEncoding = []string{"chunked"}
		req.Trailer = make(http.Header)
		body.trailer = req.Trailer
	}
	return req.WithContext(ctx), nil
}

// requestBody reads the request's body from the stream's queue. The Transport
// reads it in a goroutine of its own, which ends at the latest with ctx.
type requestBody struct {
	ctx     context.Context
	q       *queue
	rest    []byte
	ended   bool
	onEnd   func()
	trailer http.Header // nil: trailers are dropped
}

// Read implements io.Reader.
func (b *requestBody) Read(p []byte) (int, error) {
	for len(b.rest) == 0 {
		if b.ended {
			return 0, io.EOF
		}
		e, err := b.q.take(b.ctx)
		if err != nil {
			return 0, err
		}
		switch e.kind {
		case eventData:
			b.rest = e.data
		case eventTrailers:
			for _, h := range e.headers {
				if b.trailer != nil {
					b.trailer.Add(h[0], h[1])
				}
			}
		case eventReset:
			return 0, errUnwanted
		}
		if e.end {
			b.ended = true
			if b.onEnd != nil {
				b.onEnd()
			}
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// Close implements io.Closer; reading ends with the context.
func (b *requestBody) Close() error { return nil }

// routeTimer starts at the end of the request, like Envoy's route timeout.
type routeTimer struct {
	d      time.Duration
	expire func()
	mu     sync.Mutex
	t      *time.Timer
	over   bool
}

func (r *routeTimer) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over && r.t == nil {
		r.t = time.AfterFunc(r.d, r.expire)
	}
}

func (r *routeTimer) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.t != nil {
		r.t.Stop()
	}
}

// pieces are the buffers that bodies are read through.
var pieces = sync.Pool{New: func() any {
	b := make([]byte, 32<<10)
	return &b
}}
