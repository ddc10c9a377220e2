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
	m.start(ledger.Options{UnknownTTL: api.NoUnknown})
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
					Op:  []string{"reserve", "reserve", "reserve", "commit", "commit", "reject", "release"}[rnd.IntN(7)],
					Key: fmt.Sprintf("k%d", rnd.IntN(keys)), Token: fmt.Sprintf("t%d", rnd.IntN(3)),
					Body: fmt.Sprintf("%d/%d", id, i), TTL: []int64{10, 50, 600_000}[rnd.IntN(3)],
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

// perform runs a call and turns its answer into an outcome.
func perform(ctx context.Context, l *ledger.Ledger, c Call) (Outcome, error) {
	ttl := time.Duration(c.TTL) * time.Millisecond
	var o Outcome
	var err error
	switch c.Op {
	case "reserve":
		var reply ledger.Reply
		reply, err = l.Reserve(ctx, &api.ReserveRequest{Key: c.Key, Scope: "s", Token: c.Token, PendingTTL: ttl}, nil)
		if err == nil && len(reply.Result) > 0 {
			var r api.Result
			err = r.ParseRaw(reply.Result)
			o.Body = string(r.Body)
		}
		o.State, o.Left = reply.State.String(), reply.ExpiresIn.Milliseconds()
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
	case err != nil:
		return Outcome{}, err
	}
	o.Known = true
	return o, nil
}
