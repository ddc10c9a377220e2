package proxy

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/hostsim"
)

// Config describes a Proxy. All fields but RouteTimeout are required. Numbers and times are positive; RouteTimeout may be 0.
type Config struct {
	// Host runs the streams. The caller closes it after the Proxy.
	Host *hostsim.Host
	// Upstream is "host:port".
	Upstream string
	// ConnectTimeout bounds the TCP connect to upstream.
	ConnectTimeout time.Duration
	// RouteTimeout bounds the time from the end of the request to the end of the
	// answer; 0 means no bound.
	RouteTimeout time.Duration
	// MaxConnections and MaxPending are upstream's circuit breaker: running requests, and requests that wait for one of
	// those to end. A request beyond both gets 503.
	MaxConnections, MaxPending int
	// MaxHeaderBytes bounds upstream's response headers.
	MaxHeaderBytes int
	// Window bounds the bytes of body queued per stream and direction between the
	// host and a slow socket.
	Window int
	// Observe is called for every request that ended and for every upstream call.
	Observe Observer
	// Logger receives errors inside the proxy.
	Logger *slog.Logger
}

// Observer counts. Its methods are called from many goroutines.
type Observer interface {
	// RequestDone: a request was answered with status, or cut (status 0).
	RequestDone(status int)
	// UpstreamDone: an upstream call ended as answered, connect_failed, no_healthy,
	// disconnected, timed_out, overflow or cancelled.
	UpstreamDone(result string)
}

// Proxy is the http.Handler.
type Proxy struct {
	cfg      Config
	upstream *upstream
	active   sync.WaitGroup
	inFlight atomic.Int64
}

// New makes a Proxy.
func New(cfg Config) *Proxy {
	return &Proxy{
		cfg: cfg,
		upstream: newUpstream(cfg.Upstream, cfg.ConnectTimeout, cfg.RouteTimeout,
			cfg.MaxConnections, cfg.MaxPending, cfg.MaxHeaderBytes, cfg.Observe.UpstreamDone),
	}
}

// InFlight is the number of requests being served.
func (p *Proxy) InFlight() int { return int(p.inFlight.Load()) }

// Wait returns when no request is being served, or with ctx's error.
func (p *Proxy) Wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		p.active.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close drops the idle connections to upstream.
func (p *Proxy) Close() { p.upstream.close() }

// ServeHTTP handles one exchange.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.active.Add(1)
	p.inFlight.Add(1)
	status := 0
	defer func() {
		p.cfg.Observe.RequestDone(status)
		p.inFlight.Add(-1)
		p.active.Done()
	}()
	h, no := requestHeaders(r)
	if no != nil {
		status = no.status
		refuse(w, no)
		return
	}
	x := newExchange(p, w, r)
	if err := x.open(h); err != nil {
		// The worker has too many streams, or the host is closing.
		status = http.StatusServiceUnavailable
		refuse(w, &refusal{status, err.Error()})
		return
	}
	status = x.run()
	if status == 0 {
		panic(http.ErrAbortHandler) // closes the connection without finishing the answer
	}
}

// refuse answers without a stream and closes the connection.
func refuse(w http.ResponseWriter, no *refusal) {
	h := w.Header()
	h.Set("Connection", "close")
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Server", "oncegate-gateway")
	w.WriteHeader(no.status)
	_, _ = w.Write([]byte(no.text + "\n")) // a client that has left needs no answer
}
