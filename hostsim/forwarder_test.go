package hostsim_test

import (
	"net"
	"sync"
	"testing"
)

// forwarder is the network between a cluster and its host.
type forwarder struct {
	net.Listener
	mu    sync.Mutex
	wg    sync.WaitGroup
	conns []*link
}

// link is a connection and its other half.
type link struct {
	mu     sync.Mutex
	silent bool
	ends   [2]net.Conn
}

func startForwarder(t *testing.T, to string) *forwarder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &forwarder{Listener: l}
	f.wg.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			k := &link{ends: [2]net.Conn{near, far}}
			f.mu.Lock()
			f.conns = append(f.conns, k)
			f.mu.Unlock()
			f.wg.Go(func() { k.forward(near, far) })
			f.wg.Go(func() { k.forward(far, near) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		f.mu.Lock()
		for _, k := range f.conns {
			_, _ = k.ends[0].Close(), k.ends[1].Close()
		}
		f.mu.Unlock()
		f.wg.Wait()
	})
	return f
}

// silence loses all bytes of the connections that there are, and keeps them open.
func (f *forwarder) silence() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.conns {
		k.mu.Lock()
		k.silent = true
		k.mu.Unlock()
	}
}

func (k *link) forward(from, to net.Conn) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		k.mu.Lock()
		silent := k.silent
		if !silent && n > 0 {
			_, _ = to.Write(b[:n])
		}
		k.mu.Unlock()
		if err != nil {
			if !silent {
				_ = to.Close()
			}
			return
		}
	}
}
