package gatetest

import (
	"sync"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// defaultTTL is how long outcomes are remembered where a call does not say.
const defaultTTL = 300 * time.Second

// live tells whether an entry counts. One that was reserved and ran out without an outcome
// is unknown from then on.
func (m *Manager) live(e *entry) bool {
	if e == nil {
		return false
	}
	now := m.clock.Now()
	if e.state == api.StatePending && !now.Before(e.expires) && e.unknown > 0 {
		e.state, e.expires = api.StateUnknown, e.expires.Add(e.unknown)
	}
	return now.Before(e.expires)
}

// unknownTTL is what a call asks for.
func unknownTTL(r *api.ReserveRequest) time.Duration {
	if r.UnknownTTL == 0 {
		return defaultTTL
	}
	return r.UnknownTTL
}

func name(scope, key string) string { return scope + "\x00" + key }

func (m *Manager) reserve(r *api.ReserveRequest, answer func(hostsim.CallResponse)) {
	m.mu.Lock()
	id := name(r.Scope, r.Key)
	e := m.entries[id]
	now := m.clock.Now()
	if !m.live(e) && !m.identity.keeps(r.Scope, r.Key) {
		m.mu.Unlock()
		answer(coded(421, api.CodeKeyMoved))
		return
	}
	if !m.live(e) {
		m.entries[id] = &entry{
			state: api.StatePending, token: r.Token, fingerprint: r.Fingerprint, expires: now.Add(r.PendingTTL),
			unknown: unknownTTL(r),
		}
		m.mu.Unlock()
		answer(answered(201, &api.ReserveReply{State: api.StateReserved, ExpiresIn: r.PendingTTL}))
		return
	}
	remaining := e.expires.Sub(now)
	switch {
	case e.fingerprint != "" && r.Fingerprint != "" && e.fingerprint != r.Fingerprint:
		m.mu.Unlock()
		answer(problem(422))
	case e.state == api.StateUnknown:
		m.mu.Unlock()
		answer(coded(409, api.CodeOutcomeUnknown))
	case e.state.Terminal():
		reply := &api.ReserveReply{State: e.state, ExpiresIn: remaining, Result: e.result}
		m.mu.Unlock()
		answer(answered(200, reply))
	case e.token == r.Token:
		m.mu.Unlock()
		answer(answered(201, &api.ReserveReply{State: api.StateReserved, ExpiresIn: remaining}))
	case r.Wait > 0:
		again := *r
		again.Wait = 0
		var once sync.Once
		look := func() { once.Do(func() { m.reserve(&again, answer) }) }
		e.waiters = append(e.waiters, look)
		m.mu.Unlock()
		m.clock.AfterFunc(r.Wait, look)
		m.watch(id, e, remaining)
	default:
		m.mu.Unlock()
		answer(answered(202, &api.ReserveReply{State: api.StatePending, ExpiresIn: remaining}))
	}
}

// watch wakes the waiters of an entry that runs out; a renewal puts that off.
func (m *Manager) watch(id string, e *entry, remaining time.Duration) {
	m.clock.AfterFunc(remaining, func() {
		m.mu.Lock()
		current, over := m.entries[id] == e, !m.live(e) || e.state != api.StatePending
		remaining := e.expires.Sub(m.clock.Now())
		m.mu.Unlock()
		switch {
		case !current:
		case over:
			wake(e)
		default:
			m.watch(id, e, remaining)
		}
	})
}

func (m *Manager) renew(r *api.ReserveRequest) hostsim.CallResponse {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := name(r.Scope, r.Key)
	e := m.entries[id]
	switch {
	case !m.live(e):
		e = &entry{token: r.Token, fingerprint: r.Fingerprint}
		m.entries[id] = e
	case e.token != r.Token:
		return coded(409, api.CodeFenced)
	case e.state.Terminal():
		return coded(409, api.CodeConflict)
	}
	e.state, e.expires, e.unknown = api.StatePending, m.clock.Now().Add(r.PendingTTL), unknownTTL(r)
	return answered(200, &api.ReserveReply{State: api.StateReserved, ExpiresIn: r.PendingTTL})
}

func (m *Manager) unknown(r *api.ReserveRequest) hostsim.CallResponse {
	m.mu.Lock()
	id := name(r.Scope, r.Key)
	e := m.entries[id]
	switch {
	case r.UnknownTTL < 0:
		m.mu.Unlock()
		return coded(400, api.CodeInvalidRequest)
	case m.live(e) && e.token != r.Token:
		m.mu.Unlock()
		return coded(409, api.CodeFenced)
	case m.live(e) && e.state.Terminal():
		m.mu.Unlock()
		return coded(409, api.CodeConflict)
	}
	ttl := unknownTTL(r)
	m.entries[id] = &entry{state: api.StateUnknown, token: r.Token, fingerprint: r.Fingerprint, expires: m.clock.Now().Add(ttl)}
	m.mu.Unlock()
	wake(e)
	return answered(200, &api.ReserveReply{State: api.StateUnknown, ExpiresIn: ttl})
}

func (m *Manager) finish(r *api.FinishRequest, state api.State) hostsim.CallResponse {
	m.mu.Lock()
	id := name(r.Scope, r.Key)
	e := m.entries[id]
	if m.live(e) && e.token != r.Token {
		m.mu.Unlock()
		return problem(409)
	}
	if m.live(e) && e.state.Terminal() {
		state := e.state
		m.mu.Unlock()
		return answered(200, &api.ReserveReply{State: state})
	}
	n := &entry{state: state, token: r.Token, fingerprint: r.Fingerprint, expires: m.clock.Now().Add(r.TTL), result: r.Result}
	m.entries[id] = n
	m.mu.Unlock()
	wake(e)
	return answered(200, &api.ReserveReply{State: state})
}

func (m *Manager) release(r *api.ReleaseRequest) hostsim.CallResponse {
	m.mu.Lock()
	id := name(r.Scope, r.Key)
	e := m.entries[id]
	if m.live(e) && (e.token != r.Token || e.state.Terminal()) {
		m.mu.Unlock()
		return problem(409)
	}
	delete(m.entries, id)
	m.mu.Unlock()
	wake(e)
	return answered(200, &api.ReserveReply{State: api.StateReleased})
}

func wake(e *entry) {
	if e != nil {
		for _, f := range e.waiters {
			f()
		}
	}
}
