package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/internal/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// patience ends what hangs; nothing is measured with it.
const patience = 60 * time.Second

// guest is a filter made of functions; nil ones continue.
type guest struct {
	hostsim.DefaultGuest
	hostsim.HostCalls
	requestHeaders  func(g *guest, id uint32, end bool) hostsim.Action
	requestBody     func(g *guest, id uint32, size int, end bool) hostsim.Action
	responseHeaders func(g *guest, id uint32, end bool) hostsim.Action
	responseBody    func(g *guest, id uint32, size int, end bool) hostsim.Action
	log             func(g *guest, id uint32)
	done            func(g *guest, id uint32) bool
}

func (g guest) source() hostsim.Source {
	return hostsim.Native(func(c hostsim.HostCalls) hostsim.Guest {
		vm := g
		vm.HostCalls = c
		return &vm
	})
}

func (g *guest) OnRequestHeaders(id uint32, _ int, end bool) (hostsim.Action, error) {
	if g.requestHeaders == nil {
		return hostsim.ActionContinue, nil
	}
	return g.requestHeaders(g, id, end), nil
}

func (g *guest) OnRequestBody(id uint32, size int, end bool) (hostsim.Action, error) {
	if g.requestBody == nil {
		return hostsim.ActionContinue, nil
	}
	return g.requestBody(g, id, size, end), nil
}

func (g *guest) OnResponseHeaders(id uint32, _ int, end bool) (hostsim.Action, error) {
	if g.responseHeaders == nil {
		return hostsim.ActionContinue, nil
	}
	return g.responseHeaders(g, id, end), nil
}

func (g *guest) OnResponseBody(id uint32, size int, end bool) (hostsim.Action, error) {
	if g.responseBody == nil {
		return hostsim.ActionContinue, nil
	}
	return g.responseBody(g, id, size, end), nil
}

func (g *guest) OnLog(id uint32) error {
	if g.log != nil {
		g.log(g, id)
	}
	return nil
}

func (g *guest) OnDone(id uint32) (bool, error) { return g.done == nil || g.done(g, id), nil }

// flags reads response.flags.
func (g *guest) flags() hostsim.ResponseFlags {
	b, st := g.GetProperty("response\x00flags")
	if st != hostsim.StatusOK || len(b) != 8 {
		return 0
	}
	return hostsim.ResponseFlags(binary.LittleEndian.Uint64(b))
}

// tellFlags shows the client what the filter knows about the answer.
func tellFlags(g *guest, _ uint32, _ bool) hostsim.Action {
	details, _ := g.GetProperty("response\x00code_details")
	g.AddHeaderMapValue(hostsim.MapResponseHeaders, "x-flags", strconv.FormatUint(uint64(g.flags()), 16))
	g.AddHeaderMapValue(hostsim.MapResponseHeaders, "x-details", string(details))
	return hostsim.ActionContinue
}

// endings collects the flags of streams that have ended.
type endings chan hostsim.ResponseFlags

func (e endings) log(g *guest, _ uint32) { e <- g.flags() }

// wait returns the flags of the next stream that ends.
func (e endings) wait(t *testing.T) hostsim.ResponseFlags {
	t.Helper()
	select {
	case f := <-e:
		return f
	case <-time.After(patience):
		t.Fatal("the stream does not end")
		return 0
	}
}

// running is a gateway in this process.
type running struct {
	*gateway
	addr  string
	url   string
	drain context.CancelFunc
	cut   context.CancelFunc
	code  chan int
	logs  *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// up starts a gateway before an upstream address; change adapts the options.
func up(t testing.TB, g guest, upstream string, change func(*options)) *running {
	t.Helper()
	return upWith(t, g.source(), upstream, change)
}

// upWith starts a gateway with any filter.
func upWith(t testing.TB, filter hostsim.Source, upstream string, change func(*options)) *running {
	t.Helper()
	o := &options{
		listen: "127.0.0.1:0", admin: "127.0.0.1:0", upstream: upstream, workers: 2, bufferLimit: 64 << 10,
		vmID: "test", plugin: "test", idleTimeout: patience, connectTimeout: patience, drainTimeout: patience,
		maxClients: 100, maxConnections: 100, maxPending: 100, maxHeaderBytes: 60 << 10,
	}
	if change != nil {
		change(o)
	}
	r := &running{logs: new(lockedBuffer), code: make(chan int, 1)}
	var err error
	r.gateway, err = start(t.Context(), o, filter, slog.New(slog.NewJSONHandler(r.logs, nil)))
	if err != nil {
		t.Fatal(err)
	}
	var drain, cut context.Context
	drain, r.drain = context.WithCancel(context.Background())
	cut, r.cut = context.WithCancel(context.Background())
	r.addr = r.listener.Addr().String()
	r.url = "http://" + r.addr
	go func() { r.code <- r.serve(drain, cut) }()
	t.Cleanup(func() {
		r.drain()
		r.cut()
		select {
		case <-r.code:
		case <-time.After(patience):
			t.Error("the gateway does not end")
		}
		if traps := r.host.Traps(); len(traps) > 0 {
			t.Errorf("traps: %v", traps)
		}
		if t.Failed() {
			t.Log(r.logs.String())
		}
	})
	return r
}

// upstreamServer is an upstream of handlers; it counts connections.
type upstreamServer struct {
	*httptest.Server
	mu    sync.Mutex
	conns int
}

func newUpstream(t testing.TB, h http.HandlerFunc) *upstreamServer {
	u := &upstreamServer{}
	u.Server = httptest.NewUnstartedServer(h)
	u.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			u.mu.Lock()
			u.conns++
			u.mu.Unlock()
		}
	}
	u.Start()
	t.Cleanup(u.CloseClientConnections)
	t.Cleanup(u.Close)
	return u
}

func (u *upstreamServer) addr() string { return u.Listener.Addr().String() }

func (u *upstreamServer) connections() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.conns
}

// client has connections of its own.
func client(t *testing.T) *http.Client {
	tr := &http.Transport{DisableCompression: true, ExpectContinueTimeout: patience}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

// answer is a response that was read to its end.
type answer struct {
	*http.Response
	body string
}

func send(t *testing.T, c *http.Client, req *http.Request) answer {
	t.Helper()
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp, string(body)}
}

func request(t *testing.T, method, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func get(t *testing.T, url string) answer {
	t.Helper()
	return send(t, client(t), request(t, "GET", url, nil))
}

// dial opens a raw connection to the gateway.
func (r *running) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}
