package e2e

import (
	"bytes"
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
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncegate/oncegate/manager/api"
)

// narrow limits a cluster to one request at a time.
func narrow(b *bootstrapv3.Bootstrap, cluster string) error {
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() == cluster {
			c.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{MaxRequests: wrapperspb.UInt32(1)}}}
			return nil
		}
	}
	return fmt.Errorf("no cluster %q", cluster)
}

// setClusterAddress gives a cluster another endpoint.
func setClusterAddress(b *bootstrapv3.Bootstrap, cluster, address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return err
	}
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() == cluster {
			a := c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress()
			a.Address, a.PortSpecifier = host, &corev3.SocketAddress_PortValue{PortValue: uint32(n)}
			return nil
		}
	}
	return fmt.Errorf("no cluster %q", cluster)
}

// managerFault replaces the manager's answer.
type managerFault struct {
	name string
	// write sends it; answer is what the manager said, if it was asked. Then the connection is closed.
	write func(c net.Conn, answer []byte)
	reset bool // the connection is closed by a reset
	hang  bool // it is not closed before the fault ends
	huge  bool // one at a time, and not everywhere
}

// text sends a header and a body.
func text(parts ...string) func(net.Conn, []byte) {
	return func(c net.Conn, _ []byte) { _, _ = io.WriteString(c, strings.Join(parts, "")) } // the other side may leave
}

const (
	managersHeader = "Oncegate-Manager: test\r\nConnection: close\r\n"
	hugeBytes      = 40 << 20
)

var managerFaultTable = []managerFault{
	{name: "reset", write: text(), reset: true},
	{name: "reset in the answer", write: text("HTTP/1.1 200 OK\r\n", managersHeader, "Content-Length: 100\r\n\r\nabc"), reset: true},
	{name: "end in the answer", write: text("HTTP/1.1 200 OK\r\n", managersHeader, "Content-Length: 100\r\n\r\nabc")},
	{name: "hang", write: text(), hang: true},
	{name: "hang in the answer", write: text("HTTP/1.1 200 OK\r\n", managersHeader, "Content-Length: 100\r\n\r\nabc"), hang: true},
	{name: "garbage", write: text("\x16\x03\x01\x02\x00\x01\xff\x00\r\n\r\n")},
	{name: "2000 headers", write: text("HTTP/1.1 200 OK\r\n", managersHeader, strings.Repeat("a: b\r\n", 2000), "Content-Length: 0\r\n\r\n")},
	{name: "503 of another", write: text("HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbusy")},
	{name: "503 of the manager", write: text("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 7\r\n", managersHeader, "Content-Length: 4\r\n\r\nbusy")},
	{name: "200 of another", write: text("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")},
	{name: "200 with a body of another kind", write: text("HTTP/1.1 200 OK\r\n", managersHeader, "Content-Length: 20\r\n\r\n", `{"state":"reserved"}`)},
	{name: "200 without a body", write: text("HTTP/1.1 200 OK\r\n", managersHeader, "Content-Length: 0\r\n\r\n")},
	{name: "a state that there is not", write: text("HTTP/1.1 200 OK\r\n", managersHeader, "\r\n",
		string((&api.ReserveReply{State: api.State(0xee), ExpiresIn: 1}).AppendRaw(nil)))},
	{name: "40 MB of another", write: huge("Connection: close\r\n"), huge: true},
	{name: "40 MB of the manager", write: huge(managersHeader), huge: true},
}

func huge(headers string) func(net.Conn, []byte) {
	return func(c net.Conn, _ []byte) {
		_, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n", headers, hugeBytes)
		block := make([]byte, 1<<20)
		for sent := 0; err == nil && sent < hugeBytes; sent += len(block) {
			_, err = c.Write(block)
		}
	}
}

// oldHTTP is no fault: the manager's answer in HTTP/1.0, which ends with the connection.
var oldHTTP = managerFault{name: "HTTP/1.0", write: func(c net.Conn, answer []byte) {
	text("HTTP/1.0 200 OK\r\n", managersHeader, "\r\n", string(answer))(c, nil)
}}

// managerFront stands before a manager and gives other answers, in HTTP/1 only, to calls about chosen keys.
type managerFront struct {
	address string
	manager string

	mu      sync.Mutex
	faults  map[string]*frontFault // by path and key
	done    map[string]int         // calls that the manager carried out, by path and key
	batches int                    // of several calls
}

type frontFault struct {
	managerFault
	carryOut bool // ask the manager before
	lifted   chan struct{}
	met      chan struct{} // closed when the fault is met
	once     sync.Once
}

func newManagerFront(t *testing.T, manager string) *managerFront {
	f := &managerFront{manager: manager, faults: map[string]*frontFault{}, done: map[string]int{}}
	server := serveBoth(f)
	f.address = server.Listener.Addr().String()
	t.Cleanup(func() {
		f.mu.Lock()
		faults := f.faults
		f.faults = map[string]*frontFault{}
		f.mu.Unlock()
		for _, one := range faults {
			close(one.lifted)
		}
		server.Close()
	})
	return f
}

// fail gives a fault to calls about a key, until lift is called.
func (f *managerFront) fail(path, key string, fault managerFault, carryOut bool) (one *frontFault, lift func()) {
	one = &frontFault{managerFault: fault, carryOut: carryOut, lifted: make(chan struct{}), met: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults[path+key] = one
	return one, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.faults[path+key] == one {
			delete(f.faults, path+key)
			close(one.lifted)
		}
	}
}

// carriedOut is how many calls to a path about a key the manager carried out.
func (f *managerFront) carriedOut(path, key string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.done[path+key]
}

// idsOf reads the path and key of each call.
func idsOf(path string, body []byte) (ids []string, err error) {
	if path != api.PathBatch {
		key, err := keyOf(path, body)
		return []string{path + key}, err
	}
	items, err := api.ViewRawBatch(nil, body)
	for _, item := range items {
		key, err := keyOf(item.Op.Path(), item.Message)
		if err != nil {
			return nil, err
		}
		ids = append(ids, item.Op.Path()+key)
	}
	return ids, err
}

// keyOf reads the key in a call.
func keyOf(path string, body []byte) (string, error) {
	switch path {
	case api.PathReserve, api.PathRenew, api.PathUnknown:
		var r api.ReserveRequest
		err := r.ParseRaw(body)
		return r.Key, err
	case api.PathRelease:
		var r api.ReleaseRequest
		err := r.ParseRaw(body)
		return r.Key, err
	default:
		var r api.FinishRequest
		err := r.ParseRaw(body)
		return r.Key, err
	}
}

func (f *managerFront) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	ids, err := idsOf(r.URL.Path, body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	var fault *frontFault
	for _, id := range ids {
		if fault = f.faults[id]; fault != nil {
			break
		}
	}
	if len(ids) > 1 {
		f.batches++
		if fault == nil {
			fault = f.faults[api.PathBatch]
		}
	}
	f.mu.Unlock()
	var answer []byte
	if fault == nil || fault.carryOut {
		req, err := http.NewRequestWithContext(r.Context(), r.Method, "http://"+f.manager+r.URL.Path, bytes.NewReader(body))
		if err != nil {
			panic(err)
		}
		req.Header = r.Header.Clone()
		resp, err := client.Do(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		if answer, err = io.ReadAll(resp.Body); err != nil {
			return
		}
		f.mu.Lock()
		for i, status := range statusesOf(r.URL.Path, resp.StatusCode, answer) {
			if status < 300 {
				f.done[ids[i]]++
			}
		}
		f.mu.Unlock()
		if fault == nil {
			for name, values := range resp.Header {
				w.Header()[name] = values
			}
			w.WriteHeader(resp.StatusCode)
			_, _ = w.Write(answer) // the proxy may have gone
			return
		}
	}
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	fault.once.Do(func() { close(fault.met) })
	fault.write(conn, answer)
	if fault.hang {
		<-fault.lifted
	}
	if fault.reset {
		_ = conn.(*net.TCPConn).SetLinger(0) // fails only when it is closed
	}
}

// statusesOf are those of the answers.
func statusesOf(path string, status int, answer []byte) (statuses []int) {
	if path != api.PathBatch {
		return []int{status}
	}
	if status == http.StatusOK {
		list, _ := api.ViewRawAnswers(nil, answer) // none
		for _, a := range list {
			statuses = append(statuses, a.Status)
		}
	}
	return statuses
}

// managerFaults gives each fault to each kind of call, carried out or not. A request whose
// reservation fails does not run. A request whose outcome does not reach the manager is answered
// nevertheless. The ledger learns of both when the manager works again.
func managerFaults(t *testing.T, r *tableRig) {
	p := r.proxies[0]
	var wg sync.WaitGroup
	var hugeTurn sync.Mutex
	for _, fault := range managerFaultTable {
		for _, carryOut := range []bool{false, true} {
			for path, status := range map[string]string{api.PathReserve: "201", api.PathCommit: "201", api.PathReject: "404", api.PathRelease: "429"} {
				if carryOut && path == api.PathReserve && fault.name == "503 of the manager" {
					continue // a manager that says so has done nothing
				}
				if fault.huge && (carryOut || path == api.PathReject || path == api.PathRelease) {
					continue // they are slow
				}
				// Side by side: some take the time of a call.
				wg.Go(func() {
					t.Run(fmt.Sprintf("%s at %s, carried out: %v", fault.name, path, carryOut), func(t *testing.T) {
						if fault.huge {
							hugeTurn.Lock()
							defer hugeTurn.Unlock()
						}
						key := newKey()
						c := pay(key, "X-Status", status)
						front, lift := r.front.fail(path, key, fault, carryOut)
						defer lift()
						if path == api.PathReserve {
							a := wantProblem(t, p, c, 503, "manager-unavailable")
							if got := a.headers.Get("Retry-After"); got == "" || (got == "7") != (fault.name == "503 of the manager") {
								t.Errorf("Retry-After %q", got)
							}
							r.wantRuns(t, c, 0)
							lift()
							wantReplay(t, p, c, wantFirst(t, p, c, 201))
							r.wantRuns(t, c, 1)
							return
						}
						first := wantFirst(t, p, c, atoi(t, status))
						<-front.met
						r.wantRuns(t, c, 1)
						if path == api.PathRelease {
							lift()
							wantReplay(t, p, pay(key), wantFirst(t, p, pay(key), 201))
							r.wantRuns(t, c, 2)
							return
						}
						wantReplay(t, p, c, first)
						lift()
						eventually(t, "the ledger does not hear of the outcome", func() error {
							if n := r.front.carriedOut(path, key); n == 0 || carryOut && n == 1 {
								return fmt.Errorf("%d calls", n)
							}
							return nil
						})
						wantReplay(t, p, c, first)
						r.wantRuns(t, c, 1)
					})
				})
			}
		}
	}
	wg.Wait()
	for path, status := range map[string]string{api.PathReserve: "201", api.PathCommit: "201", api.PathReject: "404", api.PathRelease: "429"} {
		t.Run("HTTP/1.0 at "+path, func(t *testing.T) {
			key := newKey()
			c := pay(key, "X-Status", status)
			_, lift := r.front.fail(path, key, oldHTTP, true)
			defer lift()
			first := wantFirst(t, p, c, atoi(t, status))
			if path == api.PathRelease {
				first = wantFirst(t, p, pay(key), 201)
				c = pay(key)
			}
			wantReplay(t, p, c, first)
			if n := r.front.carriedOut(path, key); n != 1 {
				t.Errorf("%d calls", n)
			}
		})
	}
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// managerOverflows has Envoy refuse calls while another one is under way.
func managerOverflows(t *testing.T, r *tableRig) {
	p := r.proxies[0]
	running, blocked := pay(newKey(), "X-Hold", "yes"), pay(newKey())
	runs := r.sendAside(t, running)
	r.awaitRun(t, running)
	front, lift := r.front.fail(api.PathReserve, *blocked.key, managerFault{write: text(), hang: true}, false)
	defer lift()
	blocks := r.sendAside(t, blocked)
	<-front.met

	// Now no key can be reserved, and no outcome can be delivered.
	refused := pay(newKey())
	wantProblem(t, p, refused, 503, "manager-unavailable")
	r.wantRuns(t, refused, 0)
	r.upstream.release()
	first := <-runs
	if first.status != 201 {
		t.Errorf("%v", first)
	}
	wantReplay(t, p, running, first)
	if n := r.front.carriedOut(api.PathCommit, *running.key); n != 0 {
		t.Errorf("%d commits went through", n)
	}
	lift()
	if a := <-blocks; a.status != 503 {
		t.Errorf("%v", a)
	}
	eventually(t, "the ledger does not hear of the outcome", func() error {
		if n := r.front.carriedOut(api.PathCommit, *running.key); n == 0 {
			return fmt.Errorf("no commit")
		}
		return nil
	})
	for _, c := range []call{refused, blocked} {
		first := eventuallyPaid(t, "the breaker stays open", p, *c.key)
		wantReplay(t, p, c, first)
		r.wantRuns(t, c, 1)
	}
	r.wantRuns(t, running, 1)
}
