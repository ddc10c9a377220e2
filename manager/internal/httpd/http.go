package httpd

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// newHTTP returns the server of net/http that carries s: HTTP/1.1 and, with TLS or
// prior knowledge, HTTP/2.
func (s *Server) newHTTP() *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           http.HandlerFunc(s.serveHTTP),
		Protocols:         protocols,
		ReadHeaderTimeout: s.opts.ReadTimeout,
		ReadTimeout:       s.opts.ReadTimeout,
		IdleTimeout:       s.opts.IdleTimeout,
		MaxHeaderBytes:    s.opts.MaxHeaderBytes,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, limitConnKey{}, limited(c))
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			if c := limited(c); c != nil && state == http.StateIdle {
				c.work.idle()
			}
		},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// Serve accepts connections, with TLS if cfg is not nil, until Shutdown; it
// then returns nil. It may be called once.
func (s *Server) Serve(ln net.Listener, cfg *tls.Config) error {
	if cfg != nil {
		cfg = cfg.Clone()
		cfg.NextProtos = []string{"h2", "http/1.1"}
	}
	counted, err := s.limit.listen(ln, cfg)
	if err != nil {
		return nil // shut down already
	}
	if err := s.http.Serve(counted); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// exchange is what one request needs; it is reused.
type exchange struct {
	req    Request
	resp   Response
	source netSource
	body   []byte
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
	x.req, x.source = Request{}, netSource{}
	x.resp.reset()
	exchanges.Put(x)
}

// limitConnKey is where a request's context has its connection.
type limitConnKey struct{}

// serveHTTP answers a request of net/http.
func (s *Server) serveHTTP(hw http.ResponseWriter, hr *http.Request) {
	x := exchanges.Get().(*exchange)
	defer x.free()
	x.source.r = hr
	x.req = Request{Method: hr.Method, Path: hr.URL.EscapedPath(), Query: hr.URL.RawQuery, source: &x.source}
	if x.req.Path == "" {
		x.req.Path = "/"
	}
	multi := hr.ProtoMajor > 1
	c, _ := hr.Context().Value(limitConnKey{}).(*limitConn)
	x.source.conn = c
	p := s.receive(hw, hr, x)
	if p == nil && c != nil && !multi && c.framing.refused() {
		p = malformed()
		x.resp.Problem(p)
	}
	if p != nil {
		hw.Header()["Connection"] = []string{"close"}
	}
	if c != nil {
		if !c.work.begin(multi) {
			panic(http.ErrAbortHandler) // closed by the shutdown
		}
		if multi {
			defer c.work.end()
		}
	}
	if p == nil {
		x.req.Body = x.body
		s.serve(&x.req, &x.resp)
	}
	until := time.Now().Add(s.opts.WriteTimeout)
	if multi || c == nil {
		_ = http.NewResponseController(hw).SetWriteDeadline(until)
	} else {
		_ = c.SetWriteDeadline(until)
	}
	s.write(hw, hr, &x.resp)
}

// receive reads the body. When it returns a problem, that is the answer.
func (s *Server) receive(hw http.ResponseWriter, hr *http.Request, x *exchange) (p *api.Problem) {
	if largeBody(hr) {
		if _, p = s.opts.Auth.check(&x.req); p != nil {
			s.unauthorized(&x.resp, p)
			return p
		}
		if !s.load.enter() {
			s.metrics.shed.Inc()
			p = s.load.problem()
			x.resp.Problem(p)
			return p
		}
		defer s.load.leave() // serve enters again
	}
	if x.body, p = s.readBody(hw, hr, x.body[:0]); p != nil {
		x.resp.Problem(p)
	}
	return p
}

// freeBody is how large a body may be that is read before anybody looks at the
// credentials that came with it, and at how many requests are at work.
const freeBody = 64 << 10

// largeBody reports whether a request must be authorized, and count as one at
// work, before its body is read: a body takes its memory when it is announced,
// and only callers that may send one, as many as there is room for.
func largeBody(hr *http.Request) bool { return hr.ContentLength < 0 || hr.ContentLength > freeBody }

func (s *Server) readBody(hw http.ResponseWriter, hr *http.Request, buf []byte) ([]byte, *api.Problem) {
	if hr.ContentLength == 0 {
		return buf, nil
	}
	limit := s.opts.MaxBodyBytes
	if hr.ContentLength > int64(limit) {
		return buf, bodyTooLarge(limit)
	}
	if !largeBody(hr) {
		return s.readSmallBody(hr.Body, int(hr.ContentLength), buf)
	}
	body := hr.Body
	if hr.ContentLength < 0 {
		body = http.MaxBytesReader(hw, body, int64(limit))
	}
	buf = slices.Grow(buf, max(int(hr.ContentLength), bytes.MinRead))
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			return buf, nil
		}
		if err != nil {
			return buf, unreadableBody(err, limit)
		}
	}
}

// readSmallBody reads a body of so many bytes. It takes memory as the body arrives, since an
// announcement costs its sender nothing.
func (s *Server) readSmallBody(body io.Reader, size int, buf []byte) ([]byte, *api.Problem) {
	room := 0
	defer func() { s.arriving.give(room) }()
	for {
		if len(buf) == room && room < size {
			more := min(max(room, firstPiece), size-room)
			if !s.arriving.take(more, room == 0) {
				s.metrics.shed.Inc()
				return buf, s.load.problem()
			}
			room += more
		}
		buf = slices.Grow(buf, max(room-len(buf), 1)) // one more byte, to see the end
		n, err := body.Read(buf[len(buf):max(room, len(buf)+1)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			return buf, nil
		}
		if err != nil {
			return buf, unreadableBody(err, size)
		}
	}
}

// firstPiece is the memory that a small body takes at its announcement, about as much as its
// connection has for reading.
const firstPiece = 4 << 10

// arriving bounds the memory of small bodies that have not arrived in full. What a body takes first
// always has room while each connection has one request, so that slow callers with larger ones
// do not keep it out.
type arriving struct {
	first, more int64 // most bytes of all bodies when one takes its first piece, and when one takes more
	bytes       atomic.Int64
}

func (a *arriving) take(n int, first bool) bool {
	most := a.more
	if first {
		most = a.first
	}
	if a.bytes.Add(int64(n)) > most {
		a.bytes.Add(-int64(n))
		return false
	}
	return true
}

func (a *arriving) give(n int) { a.bytes.Add(-int64(n)) }

// unreadableBody is how a body is answered that could not be read.
func unreadableBody(err error, limit int) *api.Problem {
	var tooLarge *http.MaxBytesError
	var timeout net.Error
	switch {
	case errors.As(err, &tooLarge):
		return bodyTooLarge(limit)
	case errors.As(err, &timeout) && timeout.Timeout():
		return requestTimeout()
	}
	return malformed()
}

// Values of headers that net/http takes as they are, made once.
var contentTypes = map[string][]string{
	api.ContentTypeJSON: {api.ContentTypeJSON}, api.ContentTypeRaw: {api.ContentTypeRaw}, api.ContentTypeProblem: {api.ContentTypeProblem},
}

// maxCounted is a size of answers whose length net/http announces by itself.
const maxCounted = 2048

func (s *Server) write(hw http.ResponseWriter, hr *http.Request, w *Response) {
	h := hw.Header()
	h[headerManagerCanonical] = s.version
	if ct, ok := contentTypes[w.ContentType]; ok {
		h["Content-Type"] = ct
	} else if w.ContentType != "" {
		h["Content-Type"] = []string{w.ContentType}
	}
	if len(w.Body) > maxCounted || hr.Method == http.MethodHead {
		h["Content-Length"] = []string{strconv.Itoa(len(w.Body))}
	}
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

type netSource struct {
	r    *http.Request
	conn *limitConn // nil in tests that bring their own
}

func (s *netSource) header(name string) string { return s.r.Header.Get(name) }
func (s *netSource) count(name string) int     { return len(s.r.Header.Values(name)) }
func (s *netSource) remote() string            { return remoteName(s.r.RemoteAddr) }

func (s *netSource) certificate() *x509.Certificate {
	if s.conn == nil || s.conn.secure == nil {
		return nil
	}
	state := s.conn.secure.ConnectionState()
	if len(state.VerifiedChains) == 0 {
		return nil
	}
	return state.PeerCertificates[0]
}

func (s *netSource) watch(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	unwatch := context.AfterFunc(s.r.Context(), cancel)
	return ctx, func() { unwatch(); cancel() }
}

func (s *netSource) left() bool { return s.r.Context().Err() != nil }
