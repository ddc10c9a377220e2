package gatetest

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// Fault is what happens to one call on its way to the manager and back.
type Fault struct {
	// Refuse: there is no healthy host, or the circuit breaker is full.
	Refuse bool
	// Lose: the call never arrives; the host answers when its timeout is over.
	Lose bool
	// LoseAnswer: the call is carried out, its answer never arrives.
	LoseAnswer bool
	// Failure replaces the answer; AfterIt says that the call was carried out first.
	Failure hostsim.CallFailure
	AfterIt bool
	// Status answers with a problem of that status instead of carrying it out.
	Status     int
	RetryAfter int
	Code       api.Code // of that problem; empty: none
	// Foreign leaves out the manager's own header: something on the way answered.
	Foreign bool
	// Garbage replaces the body of the answer.
	Garbage []byte
	// Hold carries the call out at once but answers only when Release is called.
	Hold bool
	// HoldCall carries it out and answers only when Release is called.
	HoldCall bool
}

// Manager is a small in-memory ledger that speaks the raw form: the contract of
// the real one as far as the gate can tell. It is a hostsim.Cluster.
type Manager struct {
	// Elder: it does not know of batches.
	Elder bool

	clock hostsim.Clock

	mu       sync.Mutex
	identity identity
	entries  map[string]*entry
	script   map[string][]Fault // by path, used up in order
	always   map[string]Fault   // by path, when the script is empty
	calls    []Call
	batches  int
	held     []*held
	changed  chan struct{} // closed and replaced whenever something happens
}

// Call is a call that reached the manager's door.
type Call struct {
	Path, Key, Scope, Token, Fingerprint string
	Thread                               string
	Authority, Authorization, Shard      string
	Trace                                string // x-request-id and traceparent
	Wait, PendingTTL, UnknownTTL         time.Duration
	Result                               api.Result
	// Batch is the number of the batch that it came in, from 1; 0: it came by itself.
	Batch int
}

type entry struct {
	state       api.State
	token       string
	fingerprint string
	expires     time.Time
	unknown     time.Duration // how long it is unknown when it runs out while it is pending
	result      api.Result
	waiters     []func() // run without the lock
}

// NewManager returns an empty ledger.
func NewManager(clock hostsim.Clock) *Manager {
	return &Manager{
		clock: clock, entries: make(map[string]*entry), script: make(map[string][]Fault),
		always: make(map[string]Fault), changed: make(chan struct{}),
	}
}

// Next makes the next calls to a path go wrong, in order.
func (m *Manager) Next(path string, faults ...Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.script[path] = append(m.script[path], faults...)
}

// Always makes every further call to a path go wrong; the zero Fault ends that.
func (m *Manager) Always(path string, f Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.always[path] = f
}

// Release answers the calls that are held, oldest first. A call that Count
// tells of already is one of them, even when it has not come to its answer yet.
func (m *Manager) Release() {
	m.mu.Lock()
	held := m.held
	m.held = nil
	for _, h := range held {
		h.released = true
	}
	m.mu.Unlock()
	for _, h := range held {
		// Nobody writes answer once released is set.
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

// Batches returns how many of the calls so far came in batches of how many calls.
func (m *Manager) Batches() (sizes []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sizes = make([]int, m.batches)
	for _, c := range m.calls {
		if c.Batch > 0 {
			sizes[c.Batch-1]++
		}
	}
	return sizes
}

// Changed is closed when the next call arrives.
func (m *Manager) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// State returns the state of the only entry with that key, in any scope.
func (m *Manager) State(key string) (api.State, api.Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, e := range m.entries {
		if strings.HasSuffix(id, "\x00"+key) && m.live(e) {
			return e.state, e.result
		}
	}
	return api.StateNone, api.Result{}
}

// Resolve is an operator's word on the only entry with that key: it was executed with that
// status, or with 0 it is free.
func (m *Manager) Resolve(key string, status int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, e := range m.entries {
		switch {
		case !strings.HasSuffix(id, "\x00"+key):
		case status == 0:
			delete(m.entries, id)
		default:
			e.state, e.result = api.StateCommitted, api.Result{Status: status, BodyOmitted: true}
			e.expires = m.clock.Now().Add(defaultTTL)
		}
	}
}

// Forget drops everything, as if it had expired.
func (m *Manager) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.entries)
}

// Call implements hostsim.Cluster.
func (m *Manager) Call(_ context.Context, req hostsim.CallRequest, done func(hostsim.CallResponse)) error {
	c := Call{
		Path: req.Headers.Get(":path"), Thread: req.Thread, Authority: req.Headers.Get(":authority"),
		Authorization: req.Headers.Get("authorization"), Shard: req.Headers.Get(api.HeaderShard),
		Trace: req.Headers.Get("x-request-id") + " " + req.Headers.Get("traceparent"),
	}
	if c.Path == api.PathBatch {
		return m.batch(c, req.Body, done)
	}
	work := m.read(&c, req.Body)
	h := new(held)
	m.mu.Lock()
	f := m.arrive(c, h)
	m.mu.Unlock()
	if m.wrong(c.Shard) {
		work = func(answer func(hostsim.CallResponse)) { answer(coded(421, api.CodeWrongShard)) }
	}
	return m.carryOut(f, h, work, done)
}

// work carries a call out.
type work func(answer func(hostsim.CallResponse))

// read completes a call with what its message says.
func (m *Manager) read(c *Call, message []byte) work {
	switch c.Path {
	case api.PathReserve, api.PathRenew, api.PathUnknown:
		var r api.ReserveRequest
		if r.ParseRaw(message) != nil {
			break
		}
		c.Key, c.Scope, c.Token, c.Fingerprint = r.Key, r.Scope, r.Token, r.Fingerprint
		c.Wait, c.PendingTTL, c.UnknownTTL = r.Wait, r.PendingTTL, r.UnknownTTL
		switch c.Path {
		case api.PathReserve:
			return func(answer func(hostsim.CallResponse)) { m.reserve(&r, answer) }
		case api.PathRenew:
			return func(answer func(hostsim.CallResponse)) { answer(m.renew(&r)) }
		}
		return func(answer func(hostsim.CallResponse)) { answer(m.unknown(&r)) }
	case api.PathCommit, api.PathReject:
		var r api.FinishRequest
		if r.ParseRaw(message) != nil {
			break
		}
		r.Result.Body = append([]byte(nil), r.Result.Body...)
		c.Key, c.Scope, c.Token, c.Fingerprint, c.Result = r.Key, r.Scope, r.Token, r.Fingerprint, r.Result
		state := api.StateCommitted
		if c.Path == api.PathReject {
			state = api.StateRejected
		}
		return func(answer func(hostsim.CallResponse)) { answer(m.finish(&r, state)) }
	case api.PathRelease:
		var r api.ReleaseRequest
		if r.ParseRaw(message) != nil {
			break
		}
		c.Key, c.Scope, c.Token = r.Key, r.Scope, r.Token
		return func(answer func(hostsim.CallResponse)) { answer(m.release(&r)) }
	}
	return func(answer func(hostsim.CallResponse)) { answer(problem(400)) }
}

// arrive counts a call and returns what goes wrong with it. A test that has seen the count
// can release it.
func (m *Manager) arrive(c Call, h *held) Fault {
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
	return m.always[path]
}

func (m *Manager) carryOut(f Fault, h *held, work work, done func(hostsim.CallResponse)) error {
	nothing := func(hostsim.CallResponse) {}
	switch {
	case f.Refuse:
		return errors.New("no healthy host")
	case f.Lose:
		return nil
	case f.LoseAnswer:
		work(nothing)
		return nil
	case f.Failure != hostsim.CallOK:
		if f.AfterIt {
			work(nothing)
		}
		done(hostsim.CallResponse{Failure: f.Failure})
		return nil
	case f.Status != 0:
		a := coded(f.Status, cmp.Or(f.Code, "test"))
		if f.RetryAfter > 0 {
			a.Headers.Add("retry-after", strconv.Itoa(f.RetryAfter))
		}
		if f.Foreign {
			a.Headers.Del(api.HeaderManager)
		}
		if f.Hold {
			m.hold(h, func() { done(a) })
			return nil
		}
		done(a)
		return nil
	}
	answer := func(r hostsim.CallResponse) {
		if f.Foreign {
			r.Headers.Del(api.HeaderManager)
		}
		if f.Garbage != nil {
			r.Body = f.Garbage
		}
		done(r)
	}
	switch {
	case f.HoldCall:
		m.hold(h, func() { work(answer) })
	case f.Hold:
		work(func(r hostsim.CallResponse) { m.hold(h, func() { answer(r) }) })
	default:
		work(answer)
	}
	return nil
}

// held is a call that waits for Release.
type held struct {
	released bool
	answer   func()
}

// hold keeps an answer until the call is released.
func (m *Manager) hold(h *held, answer func()) {
	m.mu.Lock()
	if !h.released {
		h.answer = answer
		m.mu.Unlock()
		return
	}
	m.mu.Unlock()
	answer()
}

func problem(status int) hostsim.CallResponse { return coded(status, "test") }

func coded(status int, code api.Code) hostsim.CallResponse {
	p := api.Problem{Status: status, Code: code, Title: "test"}
	return hostsim.CallResponse{
		Headers: hostsim.H(":status", strconv.Itoa(status), api.HeaderManager, "test", "content-type", api.ContentTypeProblem),
		Body:    p.AppendJSON(nil),
	}
}

func answered(status int, r *api.ReserveReply) hostsim.CallResponse {
	return hostsim.CallResponse{
		Headers: hostsim.H(":status", strconv.Itoa(status), api.HeaderManager, "test", "content-type", api.ContentTypeRaw),
		Body:    r.AppendRaw(nil),
	}
}
