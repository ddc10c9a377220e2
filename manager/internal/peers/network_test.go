package peers

import (
	"context"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// TestForgottenConnection: a network that forgets a connection without a word, as a firewall does, costs seconds. All
// HTTP/2 calls share one connection, and a call that is given up does not close it.
func TestForgottenConnection(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto)
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	// The way to the server: what is on a forgotten connection goes nowhere.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var forget atomic.Bool
	var ways sync.WaitGroup
	ways.Go(func() {
		for first := true; ; first = false {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", srv.Listener.Addr().String())
			if err != nil {
				in.Close()
				continue
			}
			carry := func(to, from net.Conn) {
				b := make([]byte, 4096)
				for {
					n, err := from.Read(b)
					if err != nil {
						in.Close()
						out.Close()
						return
					}
					if !first || !forget.Load() {
						_, _ = to.Write(b[:n])
					}
				}
			}
			ways.Go(func() { carry(out, in) })
			ways.Go(func() { carry(in, out) })
		}
	})
	defer ways.Wait()
	defer ln.Close()
	n, err := NewNetwork(Config{Origin: "dc1", Peers: []Peer{{"dc2", "https://" + ln.Addr().String()}}, CA: ca})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	call := func(limit time.Duration) string {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		r, _ := http.NewRequestWithContext(ctx, "GET", n.URL("dc2"), nil)
		resp, err := n.Do("dc2", r)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return string(b)
	}
	if got := call(time.Minute); got != "HTTP/2.0" {
		t.Fatal(got)
	}
	forget.Store(true)
	eventually(t, "another connection is used", func() bool { return call(time.Second) == "HTTP/2.0" })
}

// lists notes what was said to it.
type lists struct{ met sync.Map }

func (*lists) Said() string       { return "dc2=dc1,dc2" }
func (l *lists) Meet(said string) { l.met.Store(said, true) }
func (l *lists) has(said string) bool {
	_, ok := l.met.Load(said)
	return ok
}

// TestListsAreExchanged: with the changes, both sides learn which data centres the other one knows. A manager that
// starts knows what a peer said last, though it cannot reach it.
func TestListsAreExchanged(t *testing.T) {
	a, b := newSite(t, "dc1", ledger.Options{}), newSite(t, "dc2", ledger.Options{})
	var heard atomic.Value
	say := func(w http.ResponseWriter, r *http.Request) bool {
		if said := r.Header.Get(api.HeaderDataCentres); said != "" {
			heard.Store(said)
		}
		w.Header().Set(api.HeaderDataCentres, "dc1=dc1,dc2,dc3")
		return false
	}
	a.spoil.Store(&say)
	met := new(lists)
	stop := followWith(t, b, a, met)
	eventually(t, "the puller meets the list", func() bool { return met.has("dc1=dc1,dc2,dc3") })
	eventually(t, "the peer hears the puller's", func() bool { return heard.Load() == "dc2=dc1,dc2" })
	a.run(t, "k")
	eventually(t, "it is there", func() bool { return b.has(t, "dc1") == 1 })
	stop()
	down := func(w http.ResponseWriter, r *http.Request) bool {
		w.WriteHeader(503)
		return true
	}
	a.spoil.Store(&down)
	met = new(lists)
	defer followWith(t, b, a, met)()
	eventually(t, "it remembers the list", func() bool { return met.has("dc1=dc1,dc2,dc3") })
}
