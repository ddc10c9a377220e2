package httpd

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// netHTTP is the engine on net/http. It speaks HTTP/1.1 and, with TLS or prior
// knowledge, HTTP/2.
type netHTTP struct {
	server *Server
	limit  limiter
	http   *http.Server
}

func newNetHTTP(s *Server) Engine {
	e := &netHTTP{server: s, limit: newLimiter(s)}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	e.http = &http.Server{
		Handler:           e,
		Protocols:         protocols,
		ReadHeaderTimeout: s.opts.ReadTimeout,
		ReadTimeout:       s.opts.ReadTimeout,
		IdleTimeout:       s.opts.IdleTimeout,
		MaxHeaderBytes:    s.opts.MaxHeaderBytes,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			limited, _ := rawConn(c)
			return context.WithValue(ctx, limitConnKey{}, limited)
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			if state == http.StateIdle {
				requestIdle(c)
			}
		},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	return e
}

func (e *netHTTP) Serve(ln net.Listener, cfg *tls.Config) error {
	if cfg != nil {
		cfg = cfg.Clone()
		cfg.NextProtos = []string{"h2", "http/1.1"}
	}
	limited, err := e.limit.listen(ln, cfg)
	if err != nil {
		return nil // shut down already
	}
	if err := e.http.Serve(limited); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func (e *netHTTP) Shutdown(ctx context.Context) error {
	err := e.limit.shutdown(ctx, e.http.Shutdown)
	_ = e.http.Close() // what is left, if anything
	return err
}

// exchange is what one request needs; it is reused.
type exchange struct {
	req  Request
	resp Response
	body []byte
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// maxPooled keeps one large request from making every exchange large.
const maxPooled = 64 << 10

func (x *exchange) free() {
	if cap(x.body) > maxPooled {
		x.body = nil
	}
	if cap(x.resp.Body) > maxPooled {
		x.resp.Body = nil
	}
	x.req = Request{}
	x.resp.reset()
	exchanges.Put(x)
}

// limitConnKey is where a request's context has its connection.
type limitConnKey struct{}

// ServeHTTP implements http.Handler.
func (e *netHTTP) ServeHTTP(hw http.ResponseWriter, hr *http.Request) {
	x := exchanges.Get().(*exchange)
	defer x.free()
	src := &netSource{r: hr}
	x.req = Request{Method: hr.Method, Path: hr.URL.EscapedPath(), Query: hr.URL.RawQuery, source: src}
	if x.req.Path == "" {
		x.req.Path = "/"
	}
	var p *api.Problem
	if auth := e.server.opts.Auth; auth.early(bodyLength(hr)) {
		_, p = auth.check(&x.req)
	}
	if p != nil {
		hw.Header().Set("Connection", "close")
		e.server.unauthorized(&x.resp, p)
	} else if x.body, p = e.readBody(hw, hr, x.body[:0]); p != nil {
		hw.Header().Set("Connection", "close")
		x.resp.Problem(p)
	}
	if c, _ := hr.Context().Value(limitConnKey{}).(*limitConn); c != nil {
		multi := hr.ProtoMajor > 1
		if !c.work.begin(multi) {
			panic(http.ErrAbortHandler) // closed by the shutdown
		}
		if multi {
			defer c.work.end()
		}
	}
	if p == nil {
		x.req.Body = x.body
		e.server.serve(&x.req, &x.resp)
	}
	e.write(hw, hr, &x.resp)
}

// bodyLength is how long the body is announced to be, negative when it is not.
func bodyLength(hr *http.Request) int { return int(min(hr.ContentLength, math.MaxInt32)) }

func (e *netHTTP) readBody(hw http.ResponseWriter, hr *http.Request, buf []byte) ([]byte, *api.Problem) {
	limit := e.server.opts.MaxBodyBytes
	if hr.ContentLength > int64(limit) {
		return buf, bodyTooLarge(limit)
	}
	body := http.MaxBytesReader(hw, hr.Body, int64(limit))
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		var tooLarge *http.MaxBytesError
		var timeout net.Error
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return buf, nil
		case errors.As(err, &tooLarge):
			return buf, bodyTooLarge(limit)
		case errors.As(err, &timeout) && timeout.Timeout():
			return buf, requestTimeout()
		default:
			return buf, malformed()
		}
	}
}

func (e *netHTTP) write(hw http.ResponseWriter, hr *http.Request, w *Response) {
	_ = http.NewResponseController(hw).SetWriteDeadline(time.Now().Add(e.server.opts.WriteTimeout))
	h := hw.Header()
	h[headerManagerCanonical] = []string{e.server.opts.Version}
	if w.ContentType != "" {
		h["Content-Type"] = []string{w.ContentType}
	}
	h["Content-Length"] = []string{strconv.Itoa(len(w.Body))}
	if w.RetryAfter > 0 {
		h["Retry-After"] = []string{strconv.Itoa(w.RetryAfter)}
	}
	for _, f := range w.Headers() {
		h.Add(f.Name, f.Value)
	}
	hw.WriteHeader(w.Status)
	if hr.Method != http.MethodHead {
		_, _ = hw.Write(w.Body)
	}
}

// headerManagerCanonical is api.HeaderManager as net/http keys its maps.
var headerManagerCanonical = http.CanonicalHeaderKey(api.HeaderManager)

type netSource struct{ r *http.Request }

func (s *netSource) header(name string) string { return s.r.Header.Get(name) }
func (s *netSource) count(name string) int     { return len(s.r.Header.Values(name)) }
func (s *netSource) remote() string            { return remoteName(s.r.RemoteAddr) }
func (s *netSource) verified() bool            { return s.r.TLS != nil && len(s.r.TLS.VerifiedChains) > 0 }

func (s *netSource) watch(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	unwatch := context.AfterFunc(s.r.Context(), cancel)
	return ctx, func() { unwatch(); cancel() }
}

func (s *netSource) left() bool { return s.r.Context().Err() != nil }
