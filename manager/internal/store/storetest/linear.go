package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// registerOp is an operation on one register.
type registerOp struct {
	key  string
	kind string // read, write, cas, delete
	old  string // cas: what it expects
	new  string // write, cas: what it sets
}

// registerOut is the result of an operation: the value before it.
type registerOut struct{ was string }

// registerModel is a set of independent registers.
var registerModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := make(map[string][]porcupine.Operation)
		for _, op := range history {
			key := op.Input.(registerOp).key
			byKey[key] = append(byKey[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return absent },
	Step: func(state, input, output any) (bool, any) {
		op, out, was := input.(registerOp), output.(registerOut), state.(string)
		if out.was != was {
			return false, state
		}
		switch {
		case op.kind == "read", op.kind == "cas" && was != op.old:
			return true, was
		case op.kind == "delete":
			return true, absent
		}
		return true, op.new
	},
	Equal: func(a, b any) bool { return a == b },
	DescribeOperation: func(input, output any) string {
		op := input.(registerOp)
		return fmt.Sprintf("%s(%s, %s->%s) was %s", op.kind, op.key, op.old, op.new, output.(registerOut).was)
	},
}

func (op registerOp) do(ctx context.Context, s store.Store) (out registerOut, err error) {
	if op.kind == "read" {
		err = s.View(ctx, func(tx store.Tx) (err error) {
			out.was, err = get(tx, things, op.key)
			return err
		})
		return out, err
	}
	err = update(ctx, s, func(tx store.Tx) (err error) {
		if out.was, err = get(tx, things, op.key); err != nil {
			return err
		}
		switch {
		case op.kind == "delete":
			return tx.Delete(things, op.key)
		case op.kind == "cas" && out.was != op.old:
			return nil
		}
		return tx.Put(things, op.key, []byte(op.new))
	})
	return out, err
}

// testLinearizable checks a history of registers under concurrent reads, writes, compare-and-sets and deletes.
func testLinearizable(e *env) {
	const workers, rounds, registers = 6, 60, 3
	all := e.managers(workers)
	var mu sync.Mutex
	var history []porcupine.Operation
	start := time.Now()
	e.concurrently(workers, func(ctx context.Context, w int) error {
		rnd := rand.New(rand.NewPCG(7, uint64(w)))
		last := absent
		for i := range rounds {
			op := registerOp{
				key:  fmt.Sprintf("register%d", rnd.IntN(registers)),
				kind: []string{"read", "read", "write", "cas", "cas", "delete"}[rnd.IntN(6)],
				old:  last,
				new:  fmt.Sprintf("%d.%d", w, i),
			}
			call := time.Since(start)
			out, err := op.do(ctx, all[w])
			ret := time.Since(start)
			if err != nil {
				return err
			}
			last = out.was
			mu.Lock()
			history = append(history, porcupine.Operation{ClientId: w, Input: op, Call: int64(call), Output: out, Return: int64(ret)})
			mu.Unlock()
		}
		return nil
	})
	if res := porcupine.CheckOperationsTimeout(registerModel, history, patience/2); res != porcupine.Ok {
		for _, op := range history {
			e.Logf("%d: %d..%d %s", op.ClientId, op.Call, op.Return, registerModel.DescribeOperation(op.Input, op.Output))
		}
		e.Errorf("the history of %d operations is not linearizable: %v", len(history), res)
	}
}
