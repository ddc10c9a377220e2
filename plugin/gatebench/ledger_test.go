package gatebench

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// remembered bounds the ledger's entries; the oldest is dropped first. It is far
// larger than the number of entries that are ever pending together.
const remembered = 1 << 14

// ledger is the part of the manager that the gate sees. It is in memory and answers without delay.
type ledger struct {
	calls atomic.Int64
	// outage: which calls fail, with 503.
	outage atomic.Int32

	mu      sync.Mutex
	entries map[string]*entry
	order   []string // a ring
	next    int
}

// What outage may be.
const (
	allAnswered = iota
	finishesFail
	allFail
)

type entry struct {
	state              api.State
	token, fingerprint string
	result             api.Result
}

func newLedger() *ledger {
	return &ledger{entries: make(map[string]*entry), order: make([]string, remembered)}
}

// Call implements hostsim.Cluster.
func (*ledger) Call(context.Context, hostsim.CallRequest, func(hostsim.CallResponse)) error {
	return hostsim.ErrNoHealthyHost
}

// OpenStream implements hostsim.GRPCCluster.
func (l *ledger) OpenStream(_ context.Context, _ hostsim.StreamRequest, events hostsim.StreamEvents) (hostsim.GRPCStream, error) {
	return &gateStream{l: l, events: events}, nil
}

// gateStream is the stream of a worker.
type gateStream struct {
	l      *ledger
	events hostsim.StreamEvents
}

// Reset implements hostsim.GRPCStream.
func (*gateStream) Reset() {}

// Send implements hostsim.GRPCStream.
func (s *gateStream) Send(message []byte, _ bool) {
	var c api.StreamCall
	if c.View(message) != nil {
		panic("gatebench: the gate sent what is no call")
	}
	status, reply := 200, (*api.ReserveReply)(nil)
	if c.Op != api.OpPing {
		s.l.calls.Add(1)
		if o := s.l.outage.Load(); o == allFail || o == finishesFail && c.Op != api.OpReserve {
			status = 503
		} else {
			status, reply = s.l.handle(c.Op, c.Message)
		}
	}
	var body []byte
	if reply != nil {
		body = reply.AppendRaw(nil)
	}
	s.events.Message(api.AppendStreamReply(nil, c.Number, status, 0, "0123456789abcdef0123456789abcdef.1.1", body))
}

func (l *ledger) handle(op api.Op, message []byte) (status int, reply *api.ReserveReply) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch op {
	case api.OpReserve:
		var r api.ReserveRequest
		if r.ParseRaw(message) != nil {
			return 400, nil
		}
		id := r.Scope + "\x00" + r.Key
		e := l.entries[id]
		switch {
		case e == nil:
			l.put(id, &entry{state: api.StatePending, token: r.Token, fingerprint: r.Fingerprint})
			return 201, &api.ReserveReply{State: api.StateReserved, ExpiresIn: r.PendingTTL}
		case !api.SameRequest(e.fingerprint, r.Fingerprint):
			return 422, nil
		case e.state.Terminal():
			return 200, &api.ReserveReply{State: e.state, ExpiresIn: 5 * time.Minute, Result: e.result}
		case e.state == api.StateUnknown:
			return 409, nil
		case e.token == r.Token:
			return 201, &api.ReserveReply{State: api.StateReserved, ExpiresIn: r.PendingTTL}
		}
		return 202, &api.ReserveReply{State: api.StatePending, ExpiresIn: r.PendingTTL}
	case api.OpCommit, api.OpReject:
		var r api.FinishRequest
		if r.ParseRaw(message) != nil {
			return 400, nil
		}
		id := r.Scope + "\x00" + r.Key
		e := l.entries[id]
		if e != nil && e.token != r.Token {
			return 409, nil
		}
		if e == nil {
			e = &entry{token: r.Token, fingerprint: r.Fingerprint}
			l.put(id, e)
		}
		e.state = api.StateCommitted
		if op == api.OpReject {
			e.state = api.StateRejected
		}
		r.Result.Body = []byte(strings.Clone(string(r.Result.Body)))
		e.result = r.Result
		return 200, &api.ReserveReply{State: e.state}
	case api.OpRelease:
		var r api.ReleaseRequest
		if r.ParseRaw(message) != nil {
			return 400, nil
		}
		delete(l.entries, r.Scope+"\x00"+r.Key)
		return 200, &api.ReserveReply{State: api.StateReleased}
	case api.OpRenew, api.OpUnknown:
		var r api.ReserveRequest
		if r.ParseRaw(message) != nil {
			return 400, nil
		}
		id := r.Scope + "\x00" + r.Key
		if e := l.entries[id]; e != nil && (e.token != r.Token || e.state.Terminal()) {
			return 409, nil
		}
		if op == api.OpRenew {
			return 200, &api.ReserveReply{State: api.StateReserved, ExpiresIn: r.PendingTTL}
		}
		l.put(id, &entry{state: api.StateUnknown, token: r.Token, fingerprint: r.Fingerprint})
		return 200, &api.ReserveReply{State: api.StateUnknown, ExpiresIn: r.UnknownTTL}
	}
	return 404, nil
}

// put adds an entry instead of the oldest one.
func (l *ledger) put(id string, e *entry) {
	delete(l.entries, l.order[l.next])
	l.order[l.next] = id
	l.next = (l.next + 1) % len(l.order)
	l.entries[id] = e
}
