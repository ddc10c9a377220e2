package etcd

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"
)

// fault is what a proxy does to connections.
type fault struct {
	cut   bool          // ends them, and takes no new ones
	delay time.Duration // of all that they bring, in both directions
}

// all stands for all callers of a proxy.
const all = ""

// proxy passes connections on, with faults. Between members of etcd it knows which member a connection comes from.
type proxy struct {
	listener net.Listener
	to       string
	mu       sync.Mutex
	faults   map[string]fault
	open     map[net.Conn]string // and where they come from
	running  sync.WaitGroup
}

func startProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, to: to, faults: make(map[string]fault), open: make(map[net.Conn]string)}
	p.running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			p.running.Go(func() { p.pass(in) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.set(all, fault{cut: true})
		p.running.Wait()
	})
	return p
}

// set changes what happens to the connections from a member, given by its id in hexadecimal, or to all.
func (p *proxy) set(from string, f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults[from] = f
	for c, source := range p.open {
		if p.faults[all].cut || p.faults[source].cut {
			_ = c.Close()
		}
	}
}

// hold keeps a connection that a fault may end later. It returns false if one does now.
func (p *proxy) hold(c net.Conn, from string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.faults[all].cut || p.faults[from].cut {
		return false
	}
	p.open[c] = from
	return true
}

func (p *proxy) release(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	delete(p.open, c)
	p.mu.Unlock()
}

func (p *proxy) delay(from string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.faults[all].delay, p.faults[from].delay)
}

func (p *proxy) pass(in net.Conn) {
	defer p.release(in)
	first := make([]byte, 16<<10)
	if !p.hold(in, all) {
		return
	}
	n, err := in.Read(first)
	if err != nil {
		return
	}
	from := source(first[:n])
	if !p.hold(in, from) {
		return
	}
	out, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer p.release(out)
	if !p.hold(out, from) {
		return
	}
	if _, err := out.Write(first[:n]); err != nil {
		return
	}
	back := make(chan struct{})
	go func() {
		p.copy(in, out, from)
		_, _ = in.Close(), out.Close()
		close(back)
	}()
	p.copy(out, in, from)
	_, _ = in.Close(), out.Close()
	<-back
}

func (p *proxy) copy(to, from net.Conn, source string) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if d := p.delay(source); d > 0 {
			time.Sleep(d) // this is the fault
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// source is the member that begins a connection with this request; "" where it does not say.
func source(request []byte) string {
	for line := range bytes.Lines(request) {
		if id, ok := bytes.CutPrefix(line, []byte("X-Server-From: ")); ok {
			return string(bytes.TrimSpace(id))
		}
	}
	return ""
}
