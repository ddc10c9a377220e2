package httpd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
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
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReceiveBufferPerStream:     streamWindow,
			MaxReceiveBufferPerConnection: 8 * streamWindow,
			SendPingTimeout:               pingAfter,
			WriteByteTimeout:              s.opts.WriteTimeout,
		},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// Settings of HTTP/2.
const (
	// maxStreams bounds the requests and streams of one connection.
	maxStreams = 1024
	// streamWindow bounds what is buffered of a request or stream. A connection has eight times as much, so that one that is not read does
	// not hold up the others.
	streamWindow = 256 << 10
	// pingAfter is how long a connection may be silent before it has to answer a ping.
	pingAfter = 15 * time.Second
)

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
	source source
	body   []byte
	room   bodyRoom
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
	x.req, x.source, x.room = Request{}, source{}, bodyRoom{}
	x.resp.reset()
	exchanges.Put(x)
}

// limitConnKey is where a request's context has its connection.
type limitConnKey struct{}

// serveHTTP answers a request of net/http.
func (s *Server) serveHTTP(hw http.ResponseWriter, hr *http.Request) {
	start := time.Now()
	x := exchanges.Get().(*exchange)
	defer func() {
		s.bodies.give(x.room.bytes, x.room.small)
		x.free()
	}()
	x.source.r = hr
	x.req = Request{Method: hr.Method, Path: hr.URL.EscapedPath(), Query: hr.URL.RawQuery, source: &x.source}
	x.req.Path = cmp.Or(x.req.Path, "/")
	multi := hr.ProtoMajor > 1
	c, _ := hr.Context().Value(limitConnKey{}).(*limitConn)
	if c != nil && c.secure != nil {
		x.source.secure = c.secure
	}
	if asksForStream(hr) {
		if e, _ := s.routes.find(&x.req); e != nil && e.Stream != nil {
			if c != nil {
				if !c.work.begin(true) {
					panic(http.ErrAbortHandler) // closed by the shutdown
				}
				defer c.work.end()
			}
			s.serveStream(hw, hr, x, e)
			return
		}
	}
	p := s.receive(hw, hr, x)
	if p == nil && c != nil && (c.framing.refused() || c.framing.tooLong()) {
		if p = malformed(); c.framing.tooLong() {
			p = headTooLong(s.opts.MaxHeaderBytes)
		}
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
	} else {
		m := s.metrics.unmatched
		if e, _ := s.routes.find(&x.req); e != nil {
			m = e.metrics
		}
		m.observe(p.Status, time.Since(start), nil)
	}
	if multi {
		c = nil // it carries other streams, too
	}
	if n, err := s.write(hw, hr, &x.resp, c); err != nil && x.resp.Undelivered != nil {
		log := s.log.With("method", hr.Method, "path", x.req.Path, "client", x.req.Remote(), "taken_bytes", n, "bytes", len(x.resp.Body), "error", err.Error())
		if err := x.resp.Undelivered(); err != nil {
			log.Error("a client took only a part of an answer, and what the answer handed out could not be taken back", "because", err.Error())
		} else {
			log.Warn("a client took only a part of an answer, and what the answer handed out was taken back")
		}
	}
}

// receive reads the body, if the route wants it. When it returns a problem, that is the answer.
func (s *Server) receive(hw http.ResponseWriter, hr *http.Request, x *exchange) (p *api.Problem) {
	x.body = x.body[:0]
	if hr.ContentLength == 0 {
		return nil
	}
	e, _ := s.routes.find(&x.req)
	if e != nil && (e.open() || e.Stream != nil) {
		return nil // net/http drops a short body, and closes the connection after a long one
	}
	if largeBody(hr) {
		if p = s.authorize(e, &x.req, &x.resp); p != nil {
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
	if x.body, p = s.readBody(hw, hr, x); p != nil {
		x.resp.Problem(p)
	}
	return p
}

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

// pieceBytes is how much of an answer a client has to take within Options.WriteTimeout.
const pieceBytes = 64 << 10

// maxCounted is a size of answers whose length net/http announces by itself.
const maxCounted = 2048

// write sends the answer, and returns how much of the body the connection took. Only where the answer may be undelivered,
// the error says whether it took all. The deadline, of c or else of the stream, moves on while the client takes the answer.
func (s *Server) write(hw http.ResponseWriter, hr *http.Request, w *Response, c *limitConn) (taken int, err error) {
	start := time.Now()
	s.extend(hw, w, c, start)
	h := hw.Header()
	h[headerManagerCanonical] = s.version
	if ct, ok := contentTypes[w.ContentType]; ok {
		h["Content-Type"] = ct
	} else if w.ContentType != "" {
		h["Content-Type"] = []string{w.ContentType}
	}
	if len(w.Body) > maxCounted || hr.Method == http.MethodHead || w.Undelivered != nil {
		h["Content-Length"] = []string{strconv.Itoa(len(w.Body))}
	}
	if w.RetryAfter > 0 {
		h["Retry-After"] = []string{strconv.Itoa(w.RetryAfter)}
	}
	for _, f := range w.Headers() {
		h.Add(f.Name, f.Value)
	}
	hw.WriteHeader(w.Status)
	if hr.Method == http.MethodHead {
		return 0, nil
	}
	for taken < len(w.Body) {
		if taken > 0 {
			s.extend(hw, w, c, start)
		}
		n, err := hw.Write(w.Body[taken:min(len(w.Body), taken+pieceBytes)])
		taken += n
		if err != nil {
			return taken, err
		}
	}
	if w.Undelivered != nil {
		err = http.NewResponseController(hw).Flush()
	}
	return taken, err
}

// extend gives the client the time for another piece of an answer that began at start.
func (s *Server) extend(hw http.ResponseWriter, w *Response, c *limitConn, start time.Time) {
	until := time.Now().Add(s.opts.WriteTimeout)
	if last := start.Add(w.Within); w.Within > 0 && last.Before(until) {
		until = last
	}
	if c != nil {
		_ = c.SetWriteDeadline(until)
	} else {
		_ = http.NewResponseController(hw).SetWriteDeadline(until)
	}
}

// headerManagerCanonical is api.HeaderManager as net/http keys its maps.
var headerManagerCanonical = http.CanonicalHeaderKey(api.HeaderManager)

// source is what a request comes from.
type source struct {
	r      *http.Request                                      // of a Direct without a URL
	secure interface{ ConnectionState() tls.ConnectionState } // nil without TLS
}

// header returns the first value of a header, "" when absent.
func (s *source) header(name string) string {
	if name == "traceparent" { // for which Get allocates
		if v := s.r.Header["Traceparent"]; len(v) > 0 {
			return v[0]
		}
		return ""
	}
	return s.r.Header.Get(name)
}

// certificate is the one that the client proved, of the CA that the listener demands; nil without one.
func (s *source) certificate() *x509.Certificate {
	if s.secure == nil {
		return nil
	}
	state := s.secure.ConnectionState()
	if len(state.VerifiedChains) == 0 {
		return nil
	}
	return state.PeerCertificates[0]
}

func (s *source) scheme() string {
	if s.secure == nil {
		return "http"
	}
	return "https"
}

// client is a context that ends when the client leaves.
func (s *source) client() context.Context { return s.r.Context() }
