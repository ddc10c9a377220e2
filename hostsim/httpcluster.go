package hostsim

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/oncegate/oncegate/hostsim/internal/rawurl"
)

// HTTPClusterConfig describes a cluster of one host that is reached without TLS.
type HTTPClusterConfig struct {
	// Address is "host:port". Required.
	Address string
	// HTTP2 speaks HTTP/2 with the host from the first byte on, like Envoy with http2_protocol_options. Streams need it.
	HTTP2 bool
	// ConnectTimeout bounds the TCP connect, default 5 s.
	ConnectTimeout time.Duration
	// MaxConnections and MaxPending are the circuit breaker, 1 to 65536, default 1024 each: calls in progress on
	// connections, and calls waiting for a connection. A stream counts as a call until it ends. Any further call is refused
	// immediately.
	MaxConnections, MaxPending int
	// MaxResponseBytes bounds the body of a call's answer; a longer one is a reset after headers. Default 32 MiB, as in
	// Envoy.
	MaxResponseBytes int64
	// MaxMessageBytes bounds each message of a stream; a longer one ends the stream. Default 16 MiB. Envoy has no limit.
	MaxMessageBytes int64
}

// HTTPCluster is a Cluster over net/http. Like Envoy it never retries. Each stream has a connection of its own. A cluster
// closes an HTTP/2 connection whose host answers nothing for 15 s. It adds the headers that Envoy's router adds:
// x-envoy-internal and x-envoy-expected-rq-timeout-ms to requests, x-envoy-upstream-service-time to answers that came
// from outside.
type HTTPCluster struct {
	cfg       HTTPClusterConfig
	transport *http.Transport // of the calls
	slots     chan struct{}   // one per call in progress or pending
	mu        sync.Mutex
	closed    bool // set before wg is waited for
	wg        sync.WaitGroup
	ctx       context.Context
	cancel    context.CancelFunc

	// A connection of HTTP/2 without a sign of life is asked for one, because a host that vanishes closes nothing. TCP alone
	// takes minutes to notice.
	pingAfter, pingTimeout time.Duration
}

// NewHTTPCluster makes a cluster; errors name the bad field.
func NewHTTPCluster(cfg HTTPClusterConfig) (*HTTPCluster, error) {
	if _, port, err := net.SplitHostPort(cfg.Address); err != nil || port == "" {
		return nil, fmt.Errorf("hostsim: HTTPClusterConfig.Address is %q, it must be host:port", cfg.Address)
	}
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, 5*time.Second)
	cfg.MaxResponseBytes = cmp.Or(cfg.MaxResponseBytes, 32<<20)
	cfg.MaxMessageBytes = cmp.Or(cfg.MaxMessageBytes, 16<<20)
	for _, f := range []struct {
		name  string
		value *int
	}{{"MaxConnections", &cfg.MaxConnections}, {"MaxPending", &cfg.MaxPending}} {
		if *f.value == 0 {
			*f.value = 1024
		}
		if *f.value < 1 || *f.value > 65536 {
			return nil, fmt.Errorf("hostsim: HTTPClusterConfig.%s is %d, allowed are 1 to 65536", f.name, *f.value)
		}
	}
	if cfg.ConnectTimeout < 0 || cfg.MaxResponseBytes < 0 || cfg.MaxMessageBytes < 0 {
		return nil, errors.New("hostsim: HTTPClusterConfig: ConnectTimeout, MaxResponseBytes and MaxMessageBytes must not be negative")
	}
	c := &HTTPCluster{
		cfg:         cfg,
		slots:       make(chan struct{}, cfg.MaxConnections+cfg.MaxPending),
		pingAfter:   10 * time.Second,
		pingTimeout: 5 * time.Second,
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.transport = c.newTransport(c.dial)
	return c, nil
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

func (c *HTTPCluster) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: c.cfg.ConnectTimeout}).DialContext(ctx, network, address)
}

func (c *HTTPCluster) newTransport(dial dialFunc) *http.Transport {
	t := &http.Transport{
		DialContext:         dial,
		MaxConnsPerHost:     c.cfg.MaxConnections,
		MaxIdleConns:        c.cfg.MaxConnections,
		MaxIdleConnsPerHost: c.cfg.MaxConnections,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
		Protocols:           new(http.Protocols),
		HTTP2:               &http.HTTP2Config{SendPingTimeout: c.pingAfter, PingTimeout: c.pingTimeout},
	}
	t.Protocols.SetHTTP1(!c.cfg.HTTP2)
	t.Protocols.SetUnencryptedHTTP2(c.cfg.HTTP2)
	return t
}

// Call implements Cluster.
func (c *HTTPCluster) Call(ctx context.Context, req CallRequest, done func(CallResponse)) error {
	return c.begin(func() func() {
		ctx, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(c.ctx, cancel)
		r := c.roundTrip(ctx, req)
		stop()
		cancel()
		return func() { done(r) }
	})
}

// begin runs a call or stream on a goroutine, unless there are too many. What run returns says how it ended, once there is
// room for the next one.
func (c *HTTPCluster) begin(run func() (ended func())) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrNoHealthyHost
	}
	select {
	case c.slots <- struct{}{}:
	default:
		return ErrCircuitBreaker
	}
	c.wg.Go(func() {
		ended := run()
		<-c.slots
		ended()
	})
	return nil
}

// Close cancels the calls and streams in progress and closes all connections. It waits for both.
func (c *HTTPCluster) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.wg.Wait()
	c.transport.CloseIdleConnections()
}

// unreplayable hides from net/http what kind of body a request has, or that it has none, because net/http repeats
// requests whose body it could send again.
type unreplayable struct{ io.Reader }

func (unreplayable) Close() error { return nil }

func (c *HTTPCluster) roundTrip(ctx context.Context, req CallRequest) CallResponse {
	path := req.Headers.Get(":path")
	if !validPath(path) {
		return CallResponse{Failure: CallReset, Detail: "bad :path"}
	}
	hr := c.request(req.Headers.Get(":method"), path, req.Headers)
	hr.Host = req.Headers.Get(":authority")
	hr.Body, hr.ContentLength = unreplayable{bytes.NewReader(req.Body)}, int64(len(req.Body))
	if req.Timeout > 0 {
		hr.Header.Set("X-Envoy-Expected-Rq-Timeout-Ms", strconv.FormatInt(req.Timeout.Milliseconds(), 10))
	}
	if len(req.Trailers) > 0 {
		hr.Trailer = make(http.Header)
		for _, p := range req.Trailers {
			hr.Trailer.Add(p[0], p[1])
		}
		hr.ContentLength = -1 // trailers need chunks
	}
	began := time.Now()
	resp, err := c.transport.RoundTrip(hr.WithContext(ctx))
	took := time.Since(began)
	if err != nil {
		if detail := connectFailure(err); detail != "" {
			return CallResponse{Failure: CallConnectFailed, Detail: detail}
		}
		return CallResponse{Failure: CallReset}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, c.cfg.MaxResponseBytes+1))
	if err != nil || int64(len(body)) > c.cfg.MaxResponseBytes {
		return CallResponse{Failure: CallResetMidAnswer}
	}
	resp.Header.Set("X-Envoy-Upstream-Service-Time", strconv.FormatInt(took.Milliseconds(), 10))
	out := CallResponse{Headers: answerHeaders(resp), Body: body}
	if len(resp.Trailer) > 0 {
		out.Trailers = HeadersOf(resp.Trailer)
	}
	return out
}

// validPath refuses a target that is not a path, and control characters, which net/http would send over HTTP/2.
func validPath(path string) bool {
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	return (path == "*" || strings.HasPrefix(path, "/")) && !strings.ContainsFunc(path, control)
}

// request makes a request with headers as Envoy's router passes them on.
func (c *HTTPCluster) request(method, path string, headers Headers) *http.Request {
	r := &http.Request{Method: method, URL: rawurl.Of(c.cfg.Address, path), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header, len(headers)+3)}
	for _, p := range headers {
		switch {
		case p[0] == "" || p[0][0] == ':' || p[0] == "content-length" || p[0] == "host" || p[0] == "transfer-encoding" || p[0] == "connection":
		default:
			r.Header.Add(p[0], p[1])
		}
	}
	r.Header.Set("X-Envoy-Internal", "true")
	if _, ok := r.Header["User-Agent"]; !ok {
		r.Header["User-Agent"] = []string{""} // no header, instead of Go's own
	}
	return r
}

// connectFailure is the detail of an error if there was no connection, and "" otherwise.
func connectFailure(err error) string {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return "delayed connect error: " + op.Err.Error()
	}
	return ""
}

func answerHeaders(resp *http.Response) Headers {
	return append(Headers{{":status", strconv.Itoa(resp.StatusCode)}}, HeadersOf(resp.Header)...)
}
