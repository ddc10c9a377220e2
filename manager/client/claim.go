package client

import (
	"context"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"time"
)

// leaveTime is how long a claim waits for its answer after the worker was stopped.
const leaveTime = 2 * time.Second

// claim asks for jobs until stop ends, and takes the answer that is on its way then: a request that is cancelled loses the
// jobs that the manager has just leased to it. It announces that it leaves, and the manager answers immediately,
// with the jobs that are leased or with none. After leaveTime without an answer, the request is cancelled, and the manager
// puts back what it leases to it. The claim ends with work at the latest.
func (w *Worker) claim(stop, work context.Context, limit int) ([]Job, error) {
	ctx, cancel := context.WithCancel(work)
	defer cancel()
	var l leaver
	unwatch := context.AfterFunc(stop, func() {
		l.leave()
		_ = pause(ctx, leaveTime)
		cancel()
	})
	defer unwatch()
	return w.claims.Claim(httptrace.WithClientTrace(ctx, l.trace()), ClaimRequest{
		Worker: w.opts.Name, Functions: w.functions, Limit: limit,
		Lease: w.opts.Lease, Wait: w.opts.Wait,
	})
}

// separate returns a client like c with connections of its own, as far as c's are made by a transport of net/http. What
// happens to them does not affect other calls.
func (c *Client) separate() *Client {
	own, h := *c, *c.opts.HTTP
	if h.Transport == nil {
		h.Transport = http.DefaultTransport
	}
	if t, ok := h.Transport.(*http.Transport); ok {
		h.Transport = t.Clone()
		own.opts.HTTP = &h
	}
	return &own
}

// persistent returns a client like c that repeats calls until their contexts end.
func (c *Client) persistent() *Client {
	p := *c
	p.opts.MaxAttempts, p.opts.MaxRetryAfter = 0, 0
	return &p
}

// leaver ends the wait of one request and lets its answer arrive: it closes the sending half of the request's connection.
// A connection of HTTP/2 carries other requests too, so it leaves that alone.
type leaver struct {
	mu   sync.Mutex
	conn net.Conn // while it carries the request alone
	sent bool
	left bool
}

func (l *leaver) trace() *httptrace.ClientTrace {
	set := func(change func()) {
		l.mu.Lock()
		defer l.mu.Unlock()
		change()
		l.close()
	}
	return &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) { set(func() { l.conn, l.sent = i.Conn, false }) },
		WroteHeaderField: func(name string, _ []string) {
			if strings.HasPrefix(name, ":") { // HTTP/2
				set(func() { l.conn = nil })
			}
		},
		WroteRequest: func(httptrace.WroteRequestInfo) { set(func() { l.sent = true }) },
		// After the answer, the connection carries other requests.
		GotFirstResponseByte: func() { set(func() { l.conn = nil }) },
	}
}

func (l *leaver) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = true
	l.close()
}

// close must be called with the lock.
func (l *leaver) close() {
	if half, ok := l.conn.(interface{ CloseWrite() error }); ok && l.left && l.sent {
		_ = half.CloseWrite()
		l.conn = nil
	}
}
