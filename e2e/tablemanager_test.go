package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/managertest/deep"
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

// managerFault is given to a call about a key, or to its stream.
type managerFault struct {
	name string
	// strike gives it, instead of the reply to a call.
	strike func(s *frontStream, number uint64)
	// callOnly: the stream's other calls continue. Otherwise the stream is over, or dead.
	callOnly bool
	// atOpening: the call's stream is reset, and a stream that begins afterwards gets the fault.
	atOpening bool
	goesOn    bool // after a fault at the opening, which is given once
	// final: it tells the gate that another try is pointless.
	final bool
	hang  bool // the gate needs manager.timeout_ms to see it
	huge  bool // it is slow
}

// instead answers a call with a message.
func instead(make func(number uint64) []byte) func(*frontStream, uint64) {
	return func(s *frontStream, number uint64) { s.write(frame(make(number))) }
}

// ends ends a stream with a status.
func ends(status int) managerFault {
	return managerFault{
		name: fmt.Sprintf("status %d", status), strike: func(s *frontStream, _ uint64) { s.finish(status, "test") },
		final: status == 7 || status == 12 || status == 16,
	}
}

// opensWith ends a stream with a status before it has brought anything.
func opensWith(status int) managerFault {
	f := ends(status)
	f.name, f.atOpening = "trailers only, "+f.name, true
	return f
}

// another is an answer of a server or proxy that is no manager.
func another(status int, text string, final bool) managerFault {
	return managerFault{
		name: fmt.Sprintf("%d of another", status), strike: func(s *frontStream, _ uint64) { s.answer(status, text) },
		atOpening: true, final: final,
	}
}

// then ends the stream's connection after bytes.
func then(reset bool, b ...byte) func(*frontStream, uint64) {
	return func(s *frontStream, _ uint64) {
		if len(b) > 0 {
			s.write(b)
		}
		if tcp := s.conn.(*net.TCPConn); reset {
			_ = tcp.SetLinger(0) // fails only when it is closed
		}
		s.conn.Close()
		s.abort()
	}
}

const hugeBytes = 40 << 20

// callFaults concern one call.
var callFaults = []managerFault{
	{name: "no reply", strike: func(*frontStream, uint64) {}, callOnly: true, hang: true},
	{name: "a number that no call has", strike: instead(func(n uint64) []byte {
		return api.AppendStreamReply(nil, n+1000, 201, 0, "", (&api.ReserveReply{State: api.StateReserved, ExpiresIn: 1}).AppendRaw(nil))
	}), callOnly: true, hang: true},
	{name: "503 of the manager", strike: instead(func(n uint64) []byte { return api.AppendStreamReply(nil, n, 503, 7, "", []byte("busy")) }), callOnly: true},
	{name: "200 with a body of another kind", strike: instead(func(n uint64) []byte {
		return api.AppendStreamReply(nil, n, 200, 0, "", []byte(`{"state":"reserved"}`))
	}), callOnly: true},
	{name: "200 without a body", strike: instead(func(n uint64) []byte { return api.AppendStreamReply(nil, n, 200, 0, "", nil) }), callOnly: true},
	{name: "a state that there is not", strike: instead(func(n uint64) []byte {
		return api.AppendStreamReply(nil, n, 200, 0, "", (&api.ReserveReply{State: api.State(0xee), ExpiresIn: 1}).AppendRaw(nil))
	}), callOnly: true},
}

// streamFaults end the stream of a call, and others with it.
var streamFaults = []managerFault{
	{name: "connection reset", strike: then(true)},
	{name: "connection reset in a message", strike: then(true, 0, 0, 0, 0, 100, 8)},
	{name: "connection closed in a message", strike: then(false, 0, 0, 0, 0, 100, 8)},
	{name: "stream reset", strike: func(s *frontStream, _ uint64) { s.abort() }},
	{name: "half a message", strike: func(s *frontStream, _ uint64) {
		s.write([]byte{0, 0, 0, 0, 100, 8})
		s.finish(0, "")
	}},
	{name: "garbage instead of a frame", strike: func(s *frontStream, _ uint64) { s.write([]byte("garbage that is no frame")) }},
	{name: "garbage instead of HTTP/2", strike: func(s *frontStream, _ uint64) {
		_, _ = s.conn.Write([]byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")) // the proxy may have gone
	}},
	{name: "a message that cannot be read", strike: instead(func(uint64) []byte { return []byte{0xff, 0xff, 0xff} })},
	{name: "a message without a number", strike: instead(func(uint64) []byte { return api.AppendStreamReply(nil, 0, 200, 0, "", nil) })},
	ends(0), ends(3), ends(7), ends(8), ends(12), ends(13), ends(14), ends(16),
	opensWith(7), opensWith(8), opensWith(12), opensWith(14), opensWith(16),
	another(503, "no healthy upstream", false), another(502, "bad gateway", false), another(200, "<html>welcome</html>", false),
	another(404, "nothing here", true), another(403, "not you", true), another(401, "who are you", true),
	{name: "GOAWAY", strike: func(s *frontStream, _ uint64) {
		s.mu.Lock()
		s.w.Header().Set("Connection", "close") // which makes one of it
		s.mu.Unlock()
	}, atOpening: true, goesOn: true},
	{name: "40 MB", huge: true, strike: func(s *frontStream, _ uint64) {
		s.write(binary.BigEndian.AppendUint32([]byte{0}, hugeBytes))
		for block, sent := make([]byte, 1<<20), 0; sent < hugeBytes; sent += len(block) {
			s.write(block)
		}
	}},
	{name: "a stream that stands still", strike: func(*frontStream, uint64) {}, hang: true},
}

// faultyCalls are the kinds of calls that get faults, with upstream's status that leads to them.
var faultyCalls = []struct {
	op     api.Op
	status int
}{{api.OpReserve, 201}, {api.OpCommit, 201}, {api.OpReject, 404}, {api.OpRelease, 429}}

// managerFaults gives each fault to each kind of call, carried out or not, for once or until it is lifted.
func managerFaults(t *testing.T, r *tableRig) {
	var wg sync.WaitGroup
	for _, fault := range callFaults {
		r.eachFault(t, fault, func(name string, run func(t *testing.T)) {
			wg.Go(func() { t.Run(name, run) }) // side by side: some take the time of a call
		})
	}
	wg.Wait()
	for _, fault := range streamFaults {
		r.eachFault(t, fault, func(name string, run func(t *testing.T)) { t.Run(name, run) })
	}
}

// eachFault has run run a fault in each case.
func (r *tableRig) eachFault(t *testing.T, fault managerFault, run func(name string, f func(t *testing.T))) {
	type variant struct{ carryOut, once bool }
	for _, c := range faultyCalls {
		variants := []variant{{false, false}, {false, true}, {true, false}, {true, true}}
		switch {
		case (fault.huge || fault.hang && !fault.callOnly) && c.op != api.OpReserve && c.op != api.OpCommit:
			continue // they are slow
		case fault.huge || fault.hang && !fault.callOnly || fault.goesOn:
			variants = []variant{{c.op == api.OpCommit, true}}
		case fault.callOnly && !fault.hang:
			variants = []variant{{false, false}, {true, false}}
		case !deep.On():
			// The first of each kind are in all runs.
			variants = []variant{{c.op == api.OpReject, true}, {c.op == api.OpCommit, false}}
			if c.op == api.OpReject || c.op == api.OpRelease {
				variants = variants[:1]
			}
		}
		for _, v := range variants {
			if v.carryOut && c.op == api.OpReserve && fault.name == "503 of the manager" {
				continue // a manager that says so has done nothing
			}
			name := fmt.Sprintf("%s at %v, carried out: %v, once: %v", fault.name, c.op, v.carryOut, v.once)
			run(name, func(t *testing.T) { r.fail(t, fault, c.op, c.status, v.carryOut, v.once) })
		}
	}
}

// fail gives a fault to a call about a key. A stream's fault that passes is not seen by the client. A request whose reservation
// fails does not run. A request whose outcome does not reach the manager is answered nevertheless. The ledger learns of both
// when the manager works again.
func (r *tableRig) fail(t *testing.T, fault managerFault, op api.Op, status int, carryOut, once bool) {
	p := r.proxies[0]
	key := newKey()
	c := pay(key, "X-Status", strconv.Itoa(status))
	front, lift := r.front.fail(op, key, fault, carryOut, once)
	defer lift()
	passes := once && !fault.callOnly && !fault.final && !fault.hang
	if op == api.OpReserve && !passes {
		a := wantProblem(t, p, c, 503, "manager-unavailable")
		if got := a.headers.Get("Retry-After"); got == "" || (got == "7") != (fault.name == "503 of the manager") {
			t.Errorf("Retry-After %q", got)
		}
		r.wantRuns(t, c, 0)
		lift()
		wantReplay(t, p, c, eventuallyPaid(t, "the manager works again, the key does not", p, key))
		r.wantRuns(t, c, 1)
		return
	}
	first := wantFirst(t, p, c, status)
	<-front.met
	r.wantRuns(t, c, 1)
	if op == api.OpRelease {
		lift()
		wantReplay(t, p, pay(key), eventuallyPaid(t, "the key is not free", p, key))
		r.wantRuns(t, c, 2)
		return
	}
	wantReplay(t, p, c, first)
	lift()
	eventually(t, "the ledger does not hear of the outcome", func() error {
		if n := r.front.carriedOut(op, key); n == 0 || carryOut && n == 1 {
			return fmt.Errorf("%d calls", n)
		}
		return nil
	})
	wantReplay(t, p, c, first)
	r.wantRuns(t, c, 1)
}

// managerOverflows has room for one stream to the manager, and two workers. Requests of the other worker wait for a while, and
// do not run before a retry comes to the worker with the stream.
func managerOverflows(t *testing.T, r *tableRig) {
	p := r.proxies[0]
	served := 0
	var refused []call
	eventually(t, "one worker has the only stream", func() error {
		c := pay(newKey(), "Connection", "close")
		a := send(t, p, c)
		switch {
		case a.status == 201:
			served++
			r.wantRuns(t, c, 1)
			wantReplay(t, p, c, a)
		case a.status == 503 && a.headers.Get("Idempotency-Status") == "manager-unavailable":
			refused = append(refused, c)
			r.wantRuns(t, c, 0)
			if a.headers.Get("Retry-After") == "" {
				t.Errorf("no Retry-After: %v", a)
			}
		default:
			t.Errorf("%v", a)
		}
		if served == 0 || len(refused) == 0 {
			return fmt.Errorf("%d requests are served, %d are refused", served, len(refused))
		}
		return nil
	})
	for _, c := range refused {
		var first answer
		eventually(t, "no retry is served", func() error {
			if first = send(t, p, c); first.status != 201 {
				return fmt.Errorf("%v", first)
			}
			return nil
		})
		wantReplay(t, p, c, first)
		r.wantRuns(t, c, 1)
	}
	r.front.cut() // another worker may have the stream next
}
