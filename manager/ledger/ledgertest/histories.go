package ledgertest

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
	"github.com/oncegate/oncegate/manager/ledger"
	"github.com/oncegate/oncegate/manager/store"
)

// testHistories: concurrent calls over all managers have an order that explains
// every answer.
func testHistories(t *testing.T, m *managers) {
	m.start(ledger.Options{})
	const clients, calls, keys = 8, 40, 4
	var mu sync.Mutex
	history := make(map[string][]porcupine.Operation)
	start := time.Now()
	var wg sync.WaitGroup
	for id := range clients {
		rnd := rand.New(rand.NewPCG(uint64(id), uint64(time.Now().UnixNano())))
		wg.Go(func() {
			for i := range calls {
				c := Call{
					Op:  Ops[rnd.IntN(len(Ops))],
					Key: fmt.Sprintf("k%d", rnd.IntN(keys)), Token: fmt.Sprintf("t%d", rnd.IntN(3)),
					Body: fmt.Sprintf("%d/%d", id, i), TTL: []int64{10, 50, 600_000}[rnd.IntN(3)],
					Unknown: []int64{0, 20, 600_000}[rnd.IntN(3)],
				}
				began := time.Now()
				o, err := perform(t.Context(), m.at(rnd.IntN(len(m.ledgers))), c)
				ended := time.Now()
				if err != nil {
					// Nothing was written, or nobody knows: both are in the model.
					if !errors.Is(err, store.ErrConflict) {
						t.Errorf("%+v: %v", c, err)
					}
					o = Outcome{}
				}
				c.Begin, c.End = began.UnixMilli(), ended.UnixMilli()+1
				mu.Lock()
				history[c.Key] = append(history[c.Key], porcupine.Operation{
					ClientId: id, Input: c, Output: o, Call: began.Sub(start).Nanoseconds(), Return: ended.Sub(start).Nanoseconds(),
				})
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for key, ops := range history {
		if res := porcupine.CheckOperationsTimeout(Model, ops, patience); res != porcupine.Ok {
			t.Errorf("key %s: %v", key, res)
			for _, op := range ops {
				t.Logf("%d [%d %d] %s", op.ClientId, op.Call, op.Return, Model.DescribeOperation(op.Input, op.Output))
			}
		}
	}
}

// Ops are the operations of Model, as often as a history should have them.
var Ops = []string{
	"reserve", "reserve", "reserve", "reserve", "renew", "renew", "unknown", "commit", "commit", "reject", "release", "resolve",
}

// Reservation is the request of a reserve, renew or unknown.
func (c Call) Reservation() *api.ReserveRequest {
	req := &api.ReserveRequest{
		Key: c.Key, Token: c.Token, PendingTTL: time.Duration(c.TTL) * time.Millisecond, UnknownTTL: api.NoUnknown,
	}
	if c.Unknown > 0 {
		req.UnknownTTL = time.Duration(c.Unknown) * time.Millisecond
	}
	if c.Op == "unknown" {
		req.PendingTTL, req.UnknownTTL = 0, req.PendingTTL
	}
	return req
}

// perform runs a call and turns its answer into an outcome.
func perform(ctx context.Context, l *ledger.Ledger, c Call) (Outcome, error) {
	ttl := time.Duration(c.TTL) * time.Millisecond
	var o Outcome
	var err error
	var reply ledger.Reply
	req := c.Reservation()
	req.Scope = "s"
	switch c.Op {
	case "reserve":
		reply, err = l.Reserve(ctx, req, nil)
		if err == nil && len(reply.Result) > 0 {
			var r api.Result
			err = r.ParseRaw(reply.Result)
			o.Body = string(r.Body)
		}
	case "renew":
		reply, err = l.Renew(ctx, req)
	case "unknown":
		reply, err = l.Unknown(ctx, req)
	case "resolve":
		_, err = l.Resolve(ctx, "s", c.Key, ledger.Resolution{As: api.StateCommitted, TTL: ttl, Result: answer(c.Body)})
	case "release":
		err = l.Release(ctx, &api.ReleaseRequest{Key: c.Key, Scope: "s", Token: c.Token})
	default:
		req := finish(c.Key, c.Token, c.Body)
		req.TTL = ttl
		if c.Op == "commit" {
			err = l.Commit(ctx, req)
		} else {
			err = l.Reject(ctx, req)
		}
	}
	switch {
	case errors.Is(err, ledger.ErrFenced):
		return Outcome{Known: true, Refused: "fenced"}, nil
	case errors.Is(err, ledger.ErrConflict):
		return Outcome{Known: true, Refused: "conflict"}, nil
	case errors.Is(err, ledger.ErrOutcomeUnknown):
		return Outcome{Known: true, Refused: "outcome-unknown"}, nil
	case errors.Is(err, ledger.ErrNotFound):
		return Outcome{Known: true, Refused: "not-found"}, nil
	case err != nil:
		return Outcome{}, err
	}
	if reply.State != api.StateNone {
		o.State, o.Left = reply.State.String(), reply.ExpiresIn.Milliseconds()
	}
	o.Known = true
	return o, nil
}
