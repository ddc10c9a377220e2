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
	// outage: which calls fail like those to a manager that is not there.
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
func (l *ledger) Call(_ context.Context, req hostsim.CallRequest, done func(hostsim.CallResponse)) error {
	l.calls.Add(1)
	path := req.Headers.Get(":path")
	if o := l.outage.Load(); o == allFail || o == finishesFail && path != api.PathReserve {
		done(hostsim.CallResponse{Failure: hostsim.CallConnectFailed})
		return nil
	}
	status, reply := l.handle(path, req.Body)
	headers := hostsim.Headers{
		{":status", status}, {api.HeaderManager, "bench"}, {api.HeaderLedger, "0123456789abcdef0123456789abcdef.1.1"}, {"content-type", api.ContentTypeRaw},
		{"date", "Fri, 02 Jan 2026 03:04:05 GMT"},
	}
	var answer []byte
	if reply != nil {
		answer = reply.AppendRaw(nil)
	}
	done(hostsim.CallResponse{Headers: headers, Body: answer})
	return nil
}

func (l *ledger) handle(path string, message []byte) (status string, reply *api.ReserveReply) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch path {
	case api.PathReserve:
		var r api.ReserveRequest
		if r.ParseRaw(message) != nil {
			return "400", nil
		}
		id := r.Scope + "\x00" + r.Key
		e := l.entries[id]
		switch {
		case e == nil:
			l.put(id, &entry{state: api.StatePending, token: r.Token, fingerprint: r.Fingerprint})
			return "201", &api.ReserveReply{State: api.StateReserved, ExpiresIn: r.PendingTTL}
		case !api.SameRequest(e.fingerprint, r.Fingerprint):
			return "422", nil
		case e.state.Terminal():
			return "200", &api.ReserveReply{State: e.state, ExpiresIn: 5 * time.Minute, Result: e.result}
		case e.state == api.StateUnknown:
			return "409", nil
		case e.token == r.Token:
			return "201", &api.ReserveReply{State: api.StateReserved, ExpiresIn: r.PendingTTL}
		}
		return "202", &api.ReserveReply{State: api.StatePending, ExpiresIn: r.PendingTTL}
	case api.PathCommit, api.PathReject:
		var r api.FinishRequest
		if r.ParseRaw(message) != nil {
			return "400", nil
		}
		id := r.Scope + "\x00" + r.Key
		e := l.entries[id]
		if e != nil && e.token != r.Token {
			return "409", nil
		}
		if e == nil {
			e = &entry{token: r.Token, fingerprint: r.Fingerprint}
			l.put(id, e)
		}
		e.state = api.StateCommitted
		if path == api.PathReject {
			e.state = api.StateRejected
		}
		r.Result.Body = []byte(strings.Clone(string(r.Result.Body)))
		e.result = r.Result
		return "200", &api.ReserveReply{State: e.state}
	case api.PathRelease:
		var r api.ReleaseRequest
		if r.ParseRaw(message) != nil {
			return "400", nil
		}
		delete(l.entries, r.Scope+"\x00"+r.Key)
		return "200", &api.ReserveReply{State: api.StateReleased}
	case api.PathRenew, api.PathUnknown:
		var r api.ReserveRequest
		if r.ParseRaw(message) != nil {
			return "400", nil
		}
		id := r.Scope + "\x00" + r.Key
		if e := l.entries[id]; e != nil && (e.token != r.Token || e.state.Terminal()) {
			return "409", nil
		}
		if path == api.PathRenew {
			return "200", &api.ReserveReply{State: api.StateReserved, ExpiresIn: r.PendingTTL}
		}
		l.put(id, &entry{state: api.StateUnknown, token: r.Token, fingerprint: r.Fingerprint})
		return "200", &api.ReserveReply{State: api.StateUnknown, ExpiresIn: r.UnknownTTL}
	}
	return "404", nil
}

// put adds an entry instead of the oldest one.
func (l *ledger) put(id string, e *entry) {
	delete(l.entries, l.order[l.next])
	l.order[l.next] = id
	l.next = (l.next + 1) % len(l.order)
	l.entries[id] = e
}
