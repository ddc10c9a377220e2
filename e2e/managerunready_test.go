package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// wire is the way of one manager to its store.
type wire struct {
	address string
	mu      sync.Mutex
	isCut   bool
	conns   []net.Conn
}

// newWire leads connections to a socket.
func newWire(t *testing.T, socket string) *wire {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{address: ln.Addr().String()}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", socket)
			if err != nil || !w.keep(near, far) {
				near.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
				all.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		ln.Close()
		w.cut()
		all.Wait()
	})
	return w
}

// keep remembers a connection; false: there may be none.
func (w *wire) keep(near, far net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isCut {
		far.Close()
		return false
	}
	w.conns = append(w.conns, near, far)
	return true
}

// cut ends all connections, and later ones at once.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = true
	for _, c := range w.conns {
		c.Close()
	}
	w.conns = nil
}

// mend lets connections through again.
func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = false
}

// readiness is the status of a manager's /readyz.
func readiness(address string) (int, error) {
	resp, err := http.Get("http://" + address + "/readyz")
	if err != nil {
		return 0, err
	}
	resp.Body.Close()
	return resp.StatusCode, nil
}

// awaitReadiness waits until a manager says whether it serves.
func awaitReadiness(t *testing.T, address string, want int) {
	t.Helper()
	eventually(t, "/readyz", func() error {
		if status, err := readiness(address); err != nil || status != want {
			return fmt.Errorf("%d, %v", status, err)
		}
		return nil
	})
}

// alsoManager adds an endpoint to the managers' cluster.
func alsoManager(address string) func(*bootstrapv3.Bootstrap) error {
	return func(b *bootstrapv3.Bootstrap) error {
		return editCluster(b, "oncegate_manager", func(c *clusterv3.Cluster) {
			group := c.GetLoadAssignment().GetEndpoints()[0]
			second := proto.CloneOf(group.GetLbEndpoints()[0])
			_, port, _ := strings.Cut(address, ":")
			n, _ := strconv.ParseUint(port, 10, 16)
			second.GetEndpoint().GetAddress().GetSocketAddress().PortSpecifier = &corev3.SocketAddress_PortValue{PortValue: uint32(n)}
			group.LbEndpoints = append(group.LbEndpoints, second)
		})
	}
}

// Two managers share a store and a cluster. One of them loses its way to the store, and later the other one does: gates leave the
// manager that says that it does not serve, although its process and their connections are well. Then no client gets an error. Nothing
// runs twice.
func TestGatesLeaveAManagerThatDoesNotServe(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		store := servers.Redis(t)
		s := &stack{dir: t.TempDir(), target: target, mode: mode, workers: 4,
			plugin: map[string]any{"pending_wait_timeout": 60, "pending_ttl_seconds": 600, "committed_ttl_seconds": 3600}}
		s.stopAtEnd(t)
		s.startPayments(t)
		var wires []*wire
		var managers []string
		for range 2 {
			w := newWire(t, store.Socket)
			m, err := startProcess("oncegate", target.program("oncegate"), "serve", "--store", "redis", "--store-dsn", "redis://"+w.address, "--listen", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			s.started = append(s.started, m)
			address, err := m.addr("api")
			if err != nil {
				t.Fatal(err)
			}
			awaitReadiness(t, address, 200)
			wires, managers = append(wires, w), append(managers, address)
		}
		s.managerAddr, s.bootstrap = managers[0], alsoManager(managers[1])
		s.startProxy(t)
		var loads []*crowdOfKeys
		for i, w := range wires {
			during := s.load(t, s.ask(t))
			during.await(t, 100)
			w.cut()
			during.await(t, during.answered()+100)
			during.end() // all are answered once the gates have left the manager
			awaitReadiness(t, managers[i], 503)
			after := s.load(t, s.askOnce(t))
			after.await(t, 300)
			after.end()
			w.mend()
			awaitReadiness(t, managers[i], 200)
			loads = append(loads, during, after)
		}
		// Requests that never reached the store leave no releases. Thousands of them would push out the few that matter.
		if n, err := s.proxies[0].metric("oncegate_gate_outcomes_abandoned_total"); n != 0 || err != nil {
			t.Errorf("%d calls were abandoned; %v", n, err)
		}
		for _, c := range loads {
			c.wantOnce(t, s)
		}
	})
}
