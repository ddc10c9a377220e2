package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// Concurrent histories of one key, the clock included: moving the clock is an
// operation of the object like any other. Porcupine looks for an order of the
// calls that explains every answer.

type callInput struct {
	op    string // reserve, renew, unknown, commit, reject, release, resolve, advance
	key   string
	token string
	body  string
	ms    int64 // TTL, or how far the clock moves
	unk   int64 // TTL of a reservation that runs out; 0: none
}

type callOutput struct {
	state   api.State
	left    int64
	body    string
	refused string // fenced, conflict, unknown, not found
}

type keyState struct {
	now     int64
	state   api.State
	token   string
	body    string
	expires int64
	unk     int64
}

// lapse is what time makes of it.
func (s keyState) lapse() keyState {
	if s.state == api.StatePending && s.now >= s.expires {
		s.state, s.expires = api.StateUnknown, s.expires+s.unk
	}
	if s.now >= s.expires {
		s = keyState{now: s.now}
	}
	return s
}

var historyModel = porcupine.Model{
	Init: func() any { return keyState{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(keyState), input.(callInput), output.(callOutput)
		if in.op == "advance" {
			s.now += in.ms
			return true, s.lapse()
		}
		gone := s.state == api.StateNone
		var want callOutput
		switch in.op {
		case "reserve":
			switch {
			case gone:
				s = keyState{now: s.now, state: api.StatePending, token: in.token, expires: s.now + in.ms, unk: in.unk}
				want = callOutput{state: api.StateReserved, left: in.ms}
			case s.state == api.StateUnknown:
				want.refused = "unknown"
			case s.state.Terminal():
				want = callOutput{state: s.state, left: s.expires - s.now, body: s.body}
			case s.token == in.token:
				want = callOutput{state: api.StateReserved, left: s.expires - s.now}
			default:
				want = callOutput{state: api.StatePending, left: s.expires - s.now}
			}
		case "renew":
			switch {
			case !gone && s.token != in.token:
				want.refused = "fenced"
			case s.state.Terminal():
				want.refused = "conflict"
			default:
				until := s.now + in.ms
				if s.state == api.StatePending {
					until = max(until, s.expires)
				}
				s = keyState{now: s.now, state: api.StatePending, token: in.token, expires: until, unk: in.unk}
				want = callOutput{state: api.StateReserved, left: until - s.now}
			}
		case "unknown":
			switch {
			case !gone && s.token != in.token:
				want.refused = "fenced"
			case s.state.Terminal():
				want.refused = "conflict"
			case s.state != api.StateUnknown:
				s = keyState{now: s.now, state: api.StateUnknown, token: in.token, expires: s.now + in.ms}
				fallthrough
			default:
				want = callOutput{state: api.StateUnknown, left: s.expires - s.now}
			}
		case "resolve":
			switch {
			case gone:
				want.refused = "not found"
			case s.state != api.StateUnknown:
				want.refused = "conflict"
			default:
				s.state, s.body, s.expires = api.StateCommitted, in.body, s.now+in.ms
			}
		case "commit", "reject":
			outcome := api.StateCommitted
			if in.op == "reject" {
				outcome = api.StateRejected
			}
			switch {
			case gone, s.token == in.token && !s.state.Terminal():
				s.state, s.token, s.body, s.expires = outcome, in.token, in.body, s.now+in.ms
			case s.token != in.token:
				want.refused = "fenced"
			case s.state != outcome:
				want.refused = "conflict"
			}
		case "release":
			switch {
			case gone:
			case s.token != in.token:
				want.refused = "fenced"
			case s.state.Terminal():
				want.refused = "conflict"
			default:
				s = keyState{now: s.now}
			}
		}
		return out == want, s
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// perform runs a call on the ledger and turns its answer into an output.
func perform(ctx context.Context, l *Ledger, in callInput) (callOutput, error) {
	var out callOutput
	var err error
	ttl := time.Duration(in.ms) * time.Millisecond
	req := reserveReq(in.key, in.token)
	if req.PendingTTL, req.UnknownTTL = ttl, time.Duration(in.unk)*time.Millisecond; in.unk == 0 {
		req.UnknownTTL = api.NoUnknown
	}
	var reply Reply
	switch in.op {
	case "renew":
		reply, err = l.Renew(ctx, req)
		out.state, out.left = reply.State, reply.ExpiresIn.Milliseconds()
	case "unknown":
		req.PendingTTL, req.UnknownTTL = 0, ttl
		reply, err = l.Unknown(ctx, req)
		out.state, out.left = reply.State, reply.ExpiresIn.Milliseconds()
	case "resolve":
		_, err = l.Resolve(ctx, "s", in.key, Resolution{As: api.StateCommitted, TTL: ttl, Result: answer(201, in.body)})
	case "reserve":
		if reply, err = l.Reserve(ctx, req, nil); err == nil {
			out.state, out.left = reply.State, reply.ExpiresIn.Milliseconds()
			if len(reply.Result) > 0 {
				var r api.Result
				if err = r.ParseRaw(reply.Result); err == nil {
					out.body = string(r.Body)
				}
			}
		}
	case "commit", "reject":
		req := finishReq(in.key, in.token, in.body)
		req.TTL = ttl
		if in.op == "commit" {
			err = l.Commit(ctx, req)
		} else {
			err = l.Reject(ctx, req)
		}
	case "release":
		err = l.Release(ctx, releaseReq(in.key, in.token))
	}
	switch {
	case errors.Is(err, ErrFenced):
		out.refused, err = "fenced", nil
	case errors.Is(err, ErrConflict):
		out.refused, err = "conflict", nil
	case errors.Is(err, ErrOutcomeUnknown):
		out.refused, err = "unknown", nil
	case errors.Is(err, ErrNotFound):
		out.refused, err = "not found", nil
	}
	return out, err
}

// history records calls of several clients.
type history struct {
	mu    sync.Mutex
	start time.Time
	ops   []porcupine.Operation
}

func (h *history) do(client int, in callInput, f func() (callOutput, error)) error {
	call := time.Since(h.start).Nanoseconds()
	out, err := f()
	ret := time.Since(h.start).Nanoseconds()
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: call, Return: ret})
	return nil
}

// check looks at each key alone; moves of the clock belong to all of them.
func (h *history) check(t *testing.T, keys []string) {
	t.Helper()
	for _, key := range keys {
		var ops []porcupine.Operation
		for _, op := range h.ops {
			if in := op.Input.(callInput); in.key == key || in.op == "advance" {
				ops = append(ops, op)
			}
		}
		// A history that cannot be explained is found quickly; the limit is for
		// machines that are busy with other things.
		if res := porcupine.CheckOperationsTimeout(historyModel, ops, 2*time.Minute); res != porcupine.Ok {
			t.Errorf("key %s: %v", key, res)
			for _, op := range ops {
				t.Logf("%d [%d %d] %s", op.ClientId, op.Call, op.Return, historyModel.DescribeOperation(op.Input, op.Output))
			}
		}
	}
}

func TestHistoriesAreLinearizable(t *testing.T) {
	engines := map[string]func(t *testing.T, c *clock) store.Store{
		"memory": func(_ *testing.T, c *clock) store.Store { return mem.New(mem.Options{Clock: c.Now}) },
		"wal": func(t *testing.T, c *clock) store.Store {
			st, err := mem.Open(t.Context(), t.TempDir(), mem.Options{Clock: c.Now})
			if err != nil {
				t.Fatal(err)
			}
			return st
		},
	}
	for engine, open := range engines {
		t.Run(engine, func(t *testing.T) {
			for round := range 6 {
				c := newClock()
				st := open(t, c)
				runHistory(t, ledgerOn(t, st, Options{}), c, uint64(round))
				if err := st.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func runHistory(t *testing.T, l *Ledger, c *clock, seed uint64) {
	t.Helper()
	const clients, calls = 6, 60
	keys := []string{"a", "b", "c"}
	h := &history{start: time.Now()}
	var wg sync.WaitGroup
	for client := range clients {
		rnd := rand.New(rand.NewPCG(seed, uint64(client)))
		wg.Go(func() {
			for i := range calls {
				in := callInput{
					key: keys[rnd.IntN(len(keys))], token: name("t", rnd.IntN(4)), ms: 1 + rnd.Int64N(20),
					unk: []int64{0, 5, 30}[rnd.IntN(3)], body: fmt.Sprintf("%d/%d", client, i),
				}
				in.op = []string{
					"reserve", "reserve", "reserve", "renew", "renew", "unknown", "commit", "commit", "reject", "release", "resolve",
				}[rnd.IntN(11)]
				err := h.do(client, in, func() (callOutput, error) { return perform(t.Context(), l, in) })
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	stop := make(chan struct{})
	var side sync.WaitGroup
	side.Go(func() { // the sweeper must not be noticed by anyone
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := l.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Go(func() {
		rnd := rand.New(rand.NewPCG(seed, clients))
		for range calls {
			in := callInput{op: "advance", ms: 1 + rnd.Int64N(5)}
			err := h.do(clients, in, func() (callOutput, error) {
				c.advance(time.Duration(in.ms) * time.Millisecond)
				return callOutput{}, nil
			})
			if err != nil {
				t.Error(err)
			}
			if _, err := l.Get(t.Context(), "s", "a"); err != nil && !errors.Is(err, ErrNotFound) {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	close(stop)
	side.Wait()
	h.check(t, keys)
}

// TestCheckerFindsFaults: the histories' judge is not asleep.
func TestCheckerFindsFaults(t *testing.T) {
	op := func(client int, call, ret int64, in callInput, out callOutput) porcupine.Operation {
		return porcupine.Operation{ClientId: client, Call: call, Return: ret, Input: in, Output: out}
	}
	reserve := func(token string) callInput { return callInput{op: "reserve", key: "a", token: token, ms: 10} }
	reserved := callOutput{state: api.StateReserved, left: 10}
	twice := []porcupine.Operation{op(0, 0, 1, reserve("t1"), reserved), op(1, 0, 1, reserve("t2"), reserved)}
	if porcupine.CheckOperations(historyModel, twice) {
		t.Error("two reservations at once were accepted")
	}
	between := append(twice, op(2, 0, 1, callInput{op: "advance", ms: 10}, callOutput{}))
	if !porcupine.CheckOperations(historyModel, between) {
		t.Error("a reservation after the first ran out was not accepted")
	}
	lost := []porcupine.Operation{
		op(0, 0, 1, reserve("t1"), reserved),
		op(0, 2, 3, callInput{op: "commit", key: "a", token: "t1", body: "x", ms: 10}, callOutput{}),
		op(0, 4, 5, reserve("t1"), callOutput{state: api.StateReserved, left: 10}),
	}
	if porcupine.CheckOperations(historyModel, lost) {
		t.Error("a lost commit was accepted")
	}
	holds := func(in callInput) callInput { in.unk = 100; return in }
	free := []porcupine.Operation{
		op(0, 0, 1, holds(reserve("t1")), reserved),
		op(2, 2, 3, callInput{op: "advance", ms: 10}, callOutput{}),
		op(1, 4, 5, reserve("t2"), reserved),
	}
	if porcupine.CheckOperations(historyModel, free) {
		t.Error("a key that came free although its outcome is unknown was accepted")
	}
	overtaken := []porcupine.Operation{
		op(0, 0, 1, reserve("t1"), reserved),
		op(2, 2, 3, callInput{op: "advance", ms: 9}, callOutput{}),
		op(0, 4, 5, callInput{op: "renew", key: "a", token: "t1", ms: 10}, reserved),
		op(2, 6, 7, callInput{op: "advance", ms: 9}, callOutput{}),
		op(1, 8, 9, reserve("t2"), reserved),
	}
	if porcupine.CheckOperations(historyModel, overtaken) {
		t.Error("a reservation in spite of a renewal was accepted")
	}
}
