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
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// testHistories: concurrent calls over all managers have an order that explains
// every answer.
func testHistories(t *testing.T, m *managers) {
	m.start(ledger.Options{})
	const clients, calls, keys = 8, 25, 4
	var mu sync.Mutex
	history := make(map[string][]porcupine.Operation)
	start := time.Now()
	var wg sync.WaitGroup
	for id := range clients {
		rnd := rand.New(rand.NewPCG(uint64(id), uint64(time.Now().UnixNano())))
		wg.Go(func() {
			for i := range calls {
				batch := make([]Call, 1+rnd.IntN(2)*rnd.IntN(6))
				for j := range batch {
					batch[j] = Call{
						Op:  Ops[rnd.IntN(len(Ops))],
						Key: fmt.Sprintf("k%d", rnd.IntN(keys)), Token: fmt.Sprintf("t%d", rnd.IntN(3)),
						Body: fmt.Sprintf("%d/%d/%d", id, i, j), TTL: []int64{10, 50, 600_000}[rnd.IntN(3)],
						Unknown: []int64{0, 20, 600_000}[rnd.IntN(3)],
					}
					if batch[j].Op == "resolve" && len(batch) > 1 {
						batch[j].Op = "reserve" // a batch has no resolve
					}
				}
				l := m.at(rnd.IntN(len(m.ledgers)))
				began := time.Now()
				var outcomes []Outcome
				var errs []error
				if len(batch) == 1 {
					o, err := perform(t.Context(), l, batch[0])
					outcomes, errs = []Outcome{o}, []error{err}
				} else {
					outcomes, errs = performBatch(t.Context(), l, batch)
				}
				ended := time.Now()
				for j, c := range batch {
					if errs[j] != nil {
						// Nothing was written, or nobody knows: both are in the model.
						if !errors.Is(errs[j], store.ErrConflict) {
							t.Errorf("%+v: %v", c, errs[j])
						}
						outcomes[j] = Outcome{}
					}
					c.Begin, c.End = began.Add(-m.slack).UnixMilli(), ended.Add(m.slack).UnixMilli()+1
					mu.Lock()
					history[c.Key] = append(history[c.Key], porcupine.Operation{
						ClientId: id, Input: c, Output: outcomes[j], Call: began.Sub(start).Nanoseconds(), Return: ended.Sub(start).Nanoseconds(),
					})
					mu.Unlock()
				}
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

// Ops are the operations of Model. An operation that a history should have more often is repeated.
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
	it := item(c)
	switch c.Op {
	case "reserve":
		it.Reply, it.Err = l.Reserve(ctx, &it.Reserve, nil)
	case "renew":
		it.Reply, it.Err = l.Renew(ctx, &it.Reserve)
	case "unknown":
		it.Reply, it.Err = l.Unknown(ctx, &it.Reserve)
	case "resolve":
		_, it.Err = l.Resolve(ctx, "s", c.Key, ledger.Resolution{As: api.StateCommitted, TTL: it.Finish.TTL, Result: it.Finish.Result})
	case "release":
		it.Err = l.Release(ctx, &it.Release)
	case "commit":
		it.Err = l.Commit(ctx, &it.Finish)
	case "reject":
		it.Err = l.Reject(ctx, &it.Finish)
	}
	return judged(it.Reply, it.Err)
}

// ops are the operations of Model that a batch may hold.
var ops = map[string]ledger.Op{
	"reserve": ledger.OpReserve, "renew": ledger.OpRenew, "unknown": ledger.OpUnknown,
	"commit": ledger.OpCommit, "reject": ledger.OpReject, "release": ledger.OpRelease,
}

// item is a call as one of a batch.
func item(c Call) ledger.Item {
	it := ledger.Item{Op: ops[c.Op], Reserve: *c.Reservation(), Finish: *finish(c.Key, c.Token, c.Body), Release: api.ReleaseRequest{Key: c.Key, Scope: "s", Token: c.Token}}
	it.Reserve.Scope, it.Finish.TTL = "s", time.Duration(c.TTL)*time.Millisecond
	return it
}

// performBatch is perform for several calls, in one batch.
func performBatch(ctx context.Context, l *ledger.Ledger, calls []Call) ([]Outcome, []error) {
	items := make([]ledger.Item, len(calls))
	for i, c := range calls {
		items[i] = item(c)
	}
	l.Batch(ctx, items)
	outcomes, errs := make([]Outcome, len(calls)), make([]error, len(calls))
	for i := range items {
		reply := items[i].Reply
		switch items[i].Op {
		case ledger.OpCommit, ledger.OpReject, ledger.OpRelease:
			reply = ledger.Reply{}
		}
		outcomes[i], errs[i] = judged(reply, items[i].Err)
	}
	return outcomes, errs
}

// judged turns an answer into an outcome.
func judged(reply ledger.Reply, err error) (o Outcome, _ error) {
	if err == nil && len(reply.Result) > 0 {
		var r api.Result
		err = r.ParseRaw(reply.Result)
		o.Body = string(r.Body)
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
