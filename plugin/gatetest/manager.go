package gatetest

import (
	"bytes"
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/managertest/simulated"
)

// Fault says what goes wrong with one call.
type Fault struct {
	// Close ends the call's stream with this gRPC status instead of a reply. All its calls without a reply share that.
	Close int
	// Lose: the call never arrives. LoseAnswer: it is carried out, but its reply never arrives.
	Lose, LoseAnswer bool
	// AfterIt: the call is carried out before Close or Status takes the place of its reply.
	AfterIt bool
	// Status answers with a problem of that status, or with Garbage, instead of carrying it out.
	Status     int
	RetryAfter int
	Code       api.Code // of that problem; empty: none
	// Garbage replaces the body of the reply.
	Garbage []byte
	// Hold carries the call out when it comes, and answers when Release is called.
	Hold bool
	// HoldCall carries the call out, and answers it, when Release is called.
	HoldCall bool
}

// Manager is a manager on a volatile store, with the test as the network. It is a
// hostsim.GRPCCluster. The real ledger answers every call. Only waiting happens here, on the test's clock.
type Manager struct {
	clock   hostsim.Clock
	manager *simulated.Manager

	handling sync.Mutex           // held while a call is handled; guards waiting
	waiting  map[string][]*waiter // by scope and key, in the order in which they came

	mu       sync.Mutex
	script   map[string][]Fault // by path, used up in order
	failures map[string]Fault   // by path, when the script is empty
	calls    []Call
	held     []*heldCall
	streams  map[*stream]bool // those that are open
	opened   int
	down     bool
	changed  chan struct{} // closed and replaced whenever something happens
}

// Call is a call that the gate has made to the manager.
type Call struct {
	Path, Key, Scope, Token, Fingerprint string
	Thread                               string
	Authority, Authorization, Shard      string
	Trace                                string // x-request-id and traceparent
	Wait, PendingTTL, UnknownTTL         time.Duration
	Durability                           api.Durability
	Result                               api.Result
	// Large: it came on a stream for large messages. Stream is the number of that stream, from 1.
	Large  bool
	Stream int
}

// NewManager returns one with an empty ledger.
func NewManager(clock hostsim.Clock) *Manager {
	m, err := simulated.InMemory(simulated.Options{Version: "test", Clock: clock.Now, MaxEntries: 100_000, CommittedTTL: 300 * time.Second})
	if err != nil {
		panic(err)
	}
	return &Manager{
		clock: clock, manager: m, waiting: make(map[string][]*waiter), script: make(map[string][]Fault),
		failures: make(map[string]Fault), changed: make(chan struct{}), streams: make(map[*stream]bool),
	}
}

// BecomeShard gives the manager a name and the list of all shards, if any, as --shard and --shards do.
func (m *Manager) BecomeShard(name string, list ...string) {
	m.handling.Lock()
	defer m.handling.Unlock()
	if err := m.manager.Become(context.Background(), name, list); err != nil {
		panic(err)
	}
}

// FailNext makes the next calls to a path go wrong, in order.
func (m *Manager) FailNext(path string, faults ...Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.script[path] = append(m.script[path], faults...)
}

// FailAll makes every further call to a path go wrong; the zero Fault ends that.
func (m *Manager) FailAll(path string, f Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failures[path] = f
}

// Release answers the calls that are held, oldest first. A call that Count
// includes is one of them, even if its answer is not ready yet.
func (m *Manager) Release() {
	m.mu.Lock()
	held := m.held
	m.held = nil
	for _, h := range held {
		h.released = true
	}
	m.mu.Unlock()
	for _, h := range held {
		// Nothing writes answer once released is set.
		if h.answer != nil {
			h.answer()
		}
	}
}

// Calls returns the calls so far.
func (m *Manager) Calls() []Call {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Call(nil), m.calls...)
}

// Count returns how many calls to a path there were.
func (m *Manager) Count(path string) int {
	n := 0
	for _, c := range m.Calls() {
		if c.Path == path {
			n++
		}
	}
	return n
}

// Changed is closed when the next call arrives.
func (m *Manager) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// State returns the state of the only entry with that key, in any scope.
func (m *Manager) State(key string) (api.State, api.Result) {
	for _, e := range m.entries() {
		if e.Key == key {
			var result api.Result
			_ = result.ParseRaw(e.Result) // it has none while it is pending
			return e.State, result
		}
	}
	return api.StateNone, api.Result{}
}

func (m *Manager) entries() []simulated.Entry {
	list, err := m.manager.List(context.Background())
	if err != nil {
		panic(err)
	}
	return list
}

// Free deletes the only entry with that key, as an operator would.
func (m *Manager) Free(key string) { m.drop(func(e *simulated.Entry) bool { return e.Key == key }) }

// Forget drops everything, as if it had expired.
func (m *Manager) Forget() { m.drop(func(*simulated.Entry) bool { return true }) }

func (m *Manager) drop(which func(*simulated.Entry) bool) {
	for _, e := range m.entries() {
		if which(&e) {
			_ = m.manager.Delete(context.Background(), e.Scope, e.Key) // or it has just expired
			m.wake(name(e.Scope, e.Key))
		}
	}
}

// read fills a call's fields from its message, and returns a copy of the message without the wait.
func (c *Call) read(message []byte) []byte {
	switch c.Path {
	case api.PathReserve, api.PathRenew, api.PathUnknown:
		var r api.ReserveRequest
		if r.ParseRaw(message) == nil {
			c.Key, c.Scope, c.Token, c.Fingerprint = r.Key, r.Scope, r.Token, r.Fingerprint
			c.Wait, c.PendingTTL, c.UnknownTTL, c.Durability = r.Wait, r.PendingTTL, r.UnknownTTL, r.Durability
			r.Wait = 0
			return r.AppendRaw(nil)
		}
	case api.PathCommit, api.PathReject:
		var r api.FinishRequest
		if message = bytes.Clone(message); r.ParseRaw(message) == nil {
			c.Key, c.Scope, c.Token, c.Fingerprint, c.Durability, c.Result = r.Key, r.Scope, r.Token, r.Fingerprint, r.Durability, r.Result
		}
	case api.PathRelease, api.PathLookUp:
		var r api.ReleaseRequest
		if r.ParseRaw(message) == nil {
			c.Key, c.Scope, c.Token, c.Durability = r.Key, r.Scope, r.Token, r.Durability
		}
	}
	return bytes.Clone(message)
}

// arrive counts a call and returns its fault. A test that has seen the count can release
// the call.
func (m *Manager) arrive(c Call, h *heldCall) Fault {
	m.calls = append(m.calls, c)
	close(m.changed)
	m.changed = make(chan struct{})
	f := m.fault(c.Path)
	if f.Hold || f.HoldCall {
		m.held = append(m.held, h)
	}
	return f
}

func (m *Manager) fault(path string) Fault {
	if s := m.script[path]; len(s) > 0 {
		m.script[path] = s[1:]
		return s[0]
	}
	return m.failures[path]
}

// work carries out a call.
type work func(answer func(simulated.Answer))

func (m *Manager) carryOut(f Fault, h *heldCall, work work, done func(simulated.Answer), end func(status int)) {
	nothing := func(simulated.Answer) {}
	spoil := func(a simulated.Answer) {
		if f.Garbage != nil {
			a.Body = f.Garbage
		}
		done(a)
	}
	if f.LoseAnswer || f.AfterIt {
		work(nothing)
	}
	switch {
	case f.Lose, f.LoseAnswer:
	case f.Close != 0:
		end(f.Close)
	case f.Status != 0:
		a := simulated.Answer{Status: f.Status, RetryAfter: f.RetryAfter, Body: problem(f.Status, cmp.Or(f.Code, "test"))}
		if f.Hold {
			m.hold(h, func() { spoil(a) })
			return
		}
		spoil(a)
	case f.HoldCall:
		m.hold(h, func() { work(spoil) })
	case f.Hold:
		work(func(a simulated.Answer) { m.hold(h, func() { spoil(a) }) })
	default:
		work(spoil)
	}
}

// held is a call that waits for Release.
type heldCall struct {
	released bool
	answer   func()
}

// hold keeps an answer until the call is released.
func (m *Manager) hold(h *heldCall, answer func()) {
	m.mu.Lock()
	if !h.released {
		h.answer = answer
		m.mu.Unlock()
		return
	}
	m.mu.Unlock()
	answer()
}

func problem(status int, code api.Code) []byte {
	p := api.Problem{Status: status, Code: code, Title: "test"}
	return p.AppendJSON(nil)
}
