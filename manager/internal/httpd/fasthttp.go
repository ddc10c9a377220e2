package httpd

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"strconv"

	"github.com/valyala/fasthttp"

	"github.com/oncegate/oncegate/manager/api"
)

// fastHTTP is the engine on valyala/fasthttp: HTTP/1.1 with few allocations.
type fastHTTP struct {
	server  *Server
	limit   limiter
	fast    *fasthttp.Server
	version []byte
}

func newFastHTTP(s *Server) Engine {
	e := &fastHTTP{server: s, limit: newLimiter(s), version: []byte(s.opts.Version)}
	e.fast = &fasthttp.Server{
		Handler:            e.handle,
		ErrorHandler:       e.handleError,
		HeaderReceived:     e.admitBody,
		ReadTimeout:        s.opts.ReadTimeout,
		WriteTimeout:       s.opts.WriteTimeout,
		IdleTimeout:        s.opts.IdleTimeout,
		ReadBufferSize:     s.opts.MaxHeaderBytes,
		MaxRequestBodySize: s.opts.MaxBodyBytes,
		// Connections are counted by the limiter, and their goroutines end a
		// little later than they do: fasthttp's own limit must not be met first.
		Concurrency:                  2 * s.opts.MaxConnections,
		DisablePreParseMultipartForm: true,
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		CloseOnShutdown:              true,
		ConnState: func(c net.Conn, state fasthttp.ConnState) {
			if state == fasthttp.StateIdle {
				requestIdle(c)
			}
		},
		Logger: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	return e
}

func (e *fastHTTP) Serve(ln net.Listener, cfg *tls.Config) error {
	limited, err := e.limit.listen(ln, cfg)
	if err != nil {
		return nil // shut down already
	}
	return e.fast.Serve(limited)
}

func (e *fastHTTP) Shutdown(ctx context.Context) error {
	return e.limit.shutdown(ctx, e.fast.ShutdownWithContext)
}

func (e *fastHTTP) handle(c *fasthttp.RequestCtx) {
	if limited, _ := rawConn(c.Conn()); limited != nil && !limited.work.begin(false) {
		return // closed by the shutdown
	}
	x := exchanges.Get().(*exchange)
	defer x.free()
	uri := c.Request.URI()
	x.req = Request{
		Method: known(c.Method()), Path: e.server.routes.path(uri.PathOriginal()), Query: string(uri.QueryString()),
		Body: c.Request.Body(), begun: c.Time(), source: (*fastSource)(c),
	}
	e.server.serve(&x.req, &x.resp)
	e.write(c, &x.resp)
}

// admitBody leaves no room for the large body of a stranger; handleError then
// says why, except that fasthttp forgets the head of a request with too large
// chunks: that is 413 like any other. The connection is out of reach here, so
// this looks at tokens only: a client that needs a certificate and has none is
// refused by serve.
func (e *fastHTTP) admitBody(h *fasthttp.RequestHeader) (c fasthttp.RequestConfig) {
	auth, length := e.server.opts.Auth, fastBodyLength(h)
	if auth.early(length) {
		if _, p := auth.checkToken(string(h.Peek("authorization"))); p != nil {
			c.MaxRequestBodySize = freeBody
		}
	}
	return c
}

// fastBodyLength is how long the body is announced to be, negative when it is
// not. Fasthttp says -2 when there is none.
func fastBodyLength(h *fasthttp.RequestHeader) int {
	if n := h.ContentLength(); n != -2 {
		return n
	}
	return 0
}

// handleError answers what could not be read as a request.
func (e *fastHTTP) handleError(c *fasthttp.RequestCtx, err error) {
	var w Response
	if auth := e.server.opts.Auth; errors.Is(err, fasthttp.ErrBodyTooLarge) && auth.early(fastBodyLength(&c.Request.Header)) {
		if _, p := auth.check(&Request{source: (*fastSource)(c)}); p != nil {
			e.server.unauthorized(&w, p)
			e.write(c, &w)
			return
		}
	}
	var small *fasthttp.ErrSmallBuffer
	var timeout net.Error
	p := malformed()
	switch {
	case errors.As(err, &small):
		p = headersTooLarge(e.server.opts.MaxHeaderBytes)
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		p = bodyTooLarge(e.server.opts.MaxBodyBytes)
	case errors.As(err, &timeout) && timeout.Timeout():
		p = requestTimeout()
	}
	w.Problem(p)
	e.write(c, &w)
}

func (e *fastHTTP) write(c *fasthttp.RequestCtx, w *Response) {
	c.Response.SetStatusCode(w.Status)
	h := &c.Response.Header
	h.SetCanonical(headerManagerKey, e.version)
	if w.ContentType != "" {
		h.SetContentType(w.ContentType)
	}
	if w.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(w.RetryAfter))
	}
	for _, f := range w.Headers() {
		h.Add(f.Name, f.Value)
	}
	c.Response.SetBody(w.Body)
}

// headerManagerKey is api.HeaderManager as fasthttp writes it.
var headerManagerKey = []byte(headerManagerCanonical)

// known is string(b), without an allocation for what nearly every request says.
func known(b []byte) string {
	switch string(b) {
	case "POST":
		return "POST"
	case "GET":
		return "GET"
	case api.ContentTypeRaw:
		return api.ContentTypeRaw
	case api.ContentTypeJSON:
		return api.ContentTypeJSON
	}
	return string(b)
}

// fastSource is a request of fasthttp.
type fastSource fasthttp.RequestCtx

func (s *fastSource) ctx() *fasthttp.RequestCtx { return (*fasthttp.RequestCtx)(s) }

func (s *fastSource) header(name string) string {
	if name == "content-type" {
		return known(s.ctx().Request.Header.ContentType())
	}
	return known(s.ctx().Request.Header.Peek(name))
}

func (s *fastSource) count(name string) int { return len(s.ctx().Request.Header.PeekAll(name)) }

func (s *fastSource) remote() string { return remoteName(s.ctx().RemoteAddr().String()) }

func (s *fastSource) verified() bool {
	state := s.ctx().TLSConnectionState()
	return state != nil && len(state.VerifiedChains) > 0
}

func (s *fastSource) watch(parent context.Context) (context.Context, func()) {
	return watchConn(parent, s.ctx().Conn())
}

func (s *fastSource) left() bool { return connLeft(s.ctx().Conn()) }

// rawConn unwraps a connection down to the one that has a file descriptor, and
// returns the limitConn around it as well, if there is one.
func rawConn(c net.Conn) (limited *limitConn, raw net.Conn) {
	for {
		switch outer := c.(type) {
		case *limitConn:
			limited, c = outer, outer.Conn
		case interface{ NetConn() net.Conn }: // *tls.Conn is one
			c = outer.NetConn()
		default:
			return limited, c
		}
	}
}
