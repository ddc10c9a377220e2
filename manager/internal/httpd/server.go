package httpd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/oncegate/oncegate/manager/api"
)

// Options configure a Server; the zero value of a field means its default.
type Options struct {
	// Version is sent with every answer in the header oncegate-manager. Must
	// not be empty.
	Version string
	// Logger receives what goes wrong; default slog.Default().
	Logger *slog.Logger
	// Audit receives what operators and administrators change; default Logger.
	Audit *slog.Logger
	// Auth decides who may call; nil admits everyone.
	Auth *Auth
	// Guard sees every authorized request for a route that needs credentials, before
	// its handler does. It may set headers of the answer; when it returns true it
	// has answered, and the handler does not run. Nil admits all.
	Guard func(*Request, *Response) bool
	// Answered sees every answer to a request that the guard saw, once it is complete. It may set headers.
	Answered func(*Response)
	// Problem returns the answer to a handler's error, and whether the error was
	// logged already. Nil: a Problemer is answered as it says, every other
	// error is an internal one.
	Problem func(error) (p api.Problem, logged bool)
	// Unready, when set, says why all calls fail for now. While it returns a reason, /readyz answers 503 with it, and no stream
	// is open.
	Unready func() string
	// Tracer makes a span of each request, health apart; nil makes none.
	Tracer trace.Tracer
	// MaxBodyBytes bounds a request's body; default 2 MiB.
	MaxBodyBytes int
	// MaxBodyMemory bounds the bytes of the bodies of all requests that arrive or are at work, and at least MaxBodyBytes;
	// more wait for a second at most, and are then answered 503. Small bodies take at most half, and 4 KiB for each of
	// MaxConnections beside it. Default 512 MiB, or twice MaxBodyBytes if that is more.
	MaxBodyMemory int64
	// MaxHeaderBytes bounds a request's headers, with the request line; default 16 KiB.
	MaxHeaderBytes int
	// MaxInFlight bounds the requests at work, held ones apart; beyond it they
	// are answered 503. A request whose body is large, or of unknown length, is at
	// work while its body arrives. Default 4096.
	MaxInFlight int
	// MaxConnections bounds the open connections; beyond it new ones are
	// answered 503 and closed. Default 16384.
	MaxConnections int
	// ReadTimeout is what a client has to send one request, WriteTimeout to take each 64 KiB of its answer, IdleTimeout
	// between two requests and before the first one.
	// Defaults 10 s, 10 s, 2 min.
	ReadTimeout, WriteTimeout, IdleTimeout time.Duration
	// WorkTimeout bounds the work of one request, waiting on purpose apart.
	// It is kept to within a second. Default 10 s.
	WorkTimeout time.Duration
}

// WithDefaults returns a copy with defaults filled in.
func (o Options) WithDefaults() Options {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Audit = cmp.Or(o.Audit, o.Logger)
	o.MaxBodyBytes = cmp.Or(o.MaxBodyBytes, 2<<20)
	o.MaxBodyMemory = cmp.Or(o.MaxBodyMemory, max(512<<20, 2*int64(o.MaxBodyBytes)))
	o.MaxHeaderBytes = cmp.Or(o.MaxHeaderBytes, 16<<10)
	o.MaxInFlight = cmp.Or(o.MaxInFlight, 4096)
	o.MaxConnections = cmp.Or(o.MaxConnections, 16384)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, 10*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 10*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 2*time.Minute)
	o.WorkTimeout = cmp.Or(o.WorkTimeout, 10*time.Second)
	return o
}

func (o Options) validate() error {
	switch {
	case o.Version == "":
		return errors.New("httpd: Version must not be empty")
	case o.MaxBodyBytes < 1 || o.MaxHeaderBytes < 1024 || o.MaxInFlight < 1 || o.MaxConnections < 1:
		return errors.New("httpd: limits must be positive, MaxHeaderBytes at least 1024")
	case o.MaxBodyMemory < int64(o.MaxBodyBytes):
		return errors.New("httpd: MaxBodyMemory must be at least MaxBodyBytes")
	case o.ReadTimeout < 0 || o.WriteTimeout < 0 || o.IdleTimeout < 0 || o.WorkTimeout < 0:
		return errors.New("httpd: timeouts must be positive")
	}
	return nil
}

// Server answers requests, those of a listener and those that come by Do. It is
// safe for concurrent use.
type Server struct {
	opts    Options
	log     *slog.Logger
	routes  *router
	metrics *metrics
	load    load
	bodies  budget
	streams streams
	limit   limiter
	http    *http.Server
	version []string // the header oncegate-manager

	base      context.Context // ends when the server is stopped by force
	stop      context.CancelFunc
	deadlines deadlines
	ready     atomic.Pointer[string] // why not; nil when ready
}

// New returns a server with the given groups of routes. It is not ready until
// SetReady is called.
func New(opts Options, groups ...[]Route) (*Server, error) {
	opts = opts.WithDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	s := &Server{opts: opts, log: opts.Logger, metrics: newMetrics(), version: []string{opts.Version}}
	s.limit = limiter{
		max: opts.MaxConnections, refusal: refusal(opts.Version), refused: s.metrics.refused, log: s.log, done: make(chan struct{}),
		idle: opts.IdleTimeout, head: opts.ReadTimeout, headBytes: opts.MaxHeaderBytes,
	}
	s.streams.max, s.streams.stopping = int64(opts.MaxConnections), make(chan struct{})
	s.http = s.newHTTP()
	s.base, s.stop = context.WithCancel(context.Background())
	s.deadlines = deadlines{base: s.base, timeout: opts.WorkTimeout}
	s.load.max = int64(opts.MaxInFlight)
	s.bodies = budget{max: opts.MaxBodyMemory, extra: int64(opts.MaxConnections) * firstPiece, patience: bodyPatience}
	starting := "starting"
	s.ready.Store(&starting)
	var err error
	if s.routes, err = newRouter(s.metrics, append(groups, s.healthRoutes())...); err != nil {
		return nil, err
	}
	return s, nil
}

// SetReady makes /readyz answer 200, or 503 with the reason when there is one.
// A server that is not ready still answers the requests that reach it.
func (s *Server) SetReady(reason string) {
	if reason == "" {
		s.ready.Store(nil)
		return
	}
	s.ready.Store(&reason)
}

// NotReady returns why the server is not ready: the reason that SetReady was given last, else that of Options.Unready.
func (s *Server) NotReady() string {
	if why := s.ready.Load(); why != nil {
		return *why
	}
	if s.opts.Unready != nil {
		return s.opts.Unready()
	}
	return ""
}

// Refuse makes every request from now on be answered 503, health apart, and ends all streams: there is no store, and nothing true
// can be said.
func (s *Server) Refuse(reason string) {
	s.SetReady(reason)
	s.load.refuse.Store(&reason)
}

// Abort cancels the work of all requests. It is for the end, after a shutdown had
// its time to finish.
func (s *Server) Abort() { s.stop() }

// serve runs one request through all steps; it never panics.
func (s *Server) serve(r *Request, w *Response) {
	start := time.Now()
	r.server = s
	m := s.metrics.unmatched
	// Nothing may come before this.
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("handler panicked", "method", r.Method, "path", r.Path, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			w.reset()
			w.Problem(internal())
		}
		m.observe(w.Status, time.Since(start), r.span)
		r.endSpan(w.Status)
	}()
	if !strings.HasPrefix(r.Path, "/") {
		// A request target without a path, or one that is none, like "*".
		w.Problem(malformed())
		return
	}
	e, allow := s.routes.find(r)
	if e != nil {
		m = e.metrics
		s.startSpan(e, r)
	}
	if e == nil || !e.Exempt {
		if !s.load.enter() {
			s.metrics.shed.Inc()
			w.Problem(s.load.problem())
			return
		}
		defer s.load.leave()
	}
	if e == nil || !e.open() {
		if s.authorize(e, r, w) != nil {
			return
		}
	}
	if e != nil {
		r.ctx = r.traced(s.deadlines.context(start))
	}
	guarded := e != nil && !e.open()
	if guarded && s.opts.Answered != nil {
		defer s.opts.Answered(w)
	}
	if guarded && s.opts.Guard != nil && s.opts.Guard(r, w) {
		return
	}
	switch {
	case e != nil:
		if err := e.answer(r, w); err != nil {
			r.Error(w, err)
		}
	case allow != nil:
		w.SetHeader("allow", strings.Join(allow, ", "))
		w.Problem(methodNotAllowed(r.Method, allow))
	default:
		w.Problem(notFound(r.Path))
	}
}

// authorize finds out what the caller may do. When it returns a problem, it has answered with that. e is nil for a route
// that is not there.
func (s *Server) authorize(e *endpoint, r *Request, w *Response) (p *api.Problem) {
	if r.source.crossSite() {
		s.metrics.forbidden.Inc()
		p = foreignPage()
	} else if r.caller, p = s.opts.Auth.check(r); p != nil {
		s.metrics.unauthorized.Inc()
		w.SetHeader("www-authenticate", "Bearer")
	} else if e != nil && !e.open() && !r.May(e.Roles) {
		s.metrics.forbidden.Inc()
		p = forbidden(e.Roles)
	}
	if p != nil {
		w.Problem(p)
	}
	return p
}

// load counts requests at work and held.
type load struct {
	max    int64
	refuse atomic.Pointer[string] // why every request is refused
	busy   atomic.Int64
	held   atomic.Int64
}

func (l *load) enter() bool {
	if l.busy.Add(1) > l.max || l.refuse.Load() != nil {
		l.busy.Add(-1)
		return false
	}
	return true
}

func (l *load) leave() { l.busy.Add(-1) }

func (l *load) hold() { l.busy.Add(-1); l.held.Add(1) }

// unhold may exceed the bound for a moment: what was admitted is not refused
// later.
func (l *load) unhold() { l.held.Add(-1); l.busy.Add(1) }

func (l *load) problem() *api.Problem {
	if why := l.refuse.Load(); why != nil {
		return &api.Problem{
			Status: 503, Code: api.CodeUnavailable, Title: "Unavailable", RetryAfterSeconds: RetryLater,
			Detail: *why + "; nothing was changed",
		}
	}
	return overloaded("too many requests are at work")
}

// deadlines hands out contexts that end timeout after they were asked for, to
// within a second: requests that begin in the same second share one, so that a
// bound costs a request nothing.
type deadlines struct {
	base    context.Context
	timeout time.Duration
	current atomic.Pointer[deadline]
	mu      sync.Mutex
}

type deadline struct {
	ctx    context.Context
	cancel context.CancelFunc
	until  time.Time // when the next one is due
}

func (d *deadlines) context(now time.Time) context.Context {
	c := d.current.Load()
	if c != nil && now.Before(c.until) {
		return c.ctx
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c = d.current.Load()
	if c != nil && now.Before(c.until) {
		return c.ctx
	}
	next := &deadline{until: now.Add(time.Second)}
	// Nobody but the timer or the base ends it: requests of this second may be
	// at work until then.
	next.ctx, next.cancel = context.WithTimeout(d.base, d.timeout+time.Second)
	d.current.Store(next)
	return next.ctx
}
