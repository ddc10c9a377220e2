package ledgertest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

func reserveItem(key, token string) ledger.Item {
	return ledger.Item{Op: ledger.OpReserve, Reserve: api.ReserveRequest{Key: key, Scope: "s", Token: token}}
}

func commitItem(key, token, body string) ledger.Item {
	return ledger.Item{Op: ledger.OpCommit, Finish: *finish(key, token, body)}
}

func releaseItem(key, token string) ledger.Item {
	return ledger.Item{Op: ledger.OpRelease, Release: api.ReleaseRequest{Key: key, Scope: "s", Token: token}}
}

// batch makes the calls at the i-th manager.
func (m *managers) batch(i int, items ...ledger.Item) []ledger.Item {
	m.at(i).Batch(m.t.Context(), items)
	return items
}

// want compares the answer to an item.
func (m *managers) want(it ledger.Item, state api.State, err error) {
	m.t.Helper()
	if it.Reply.State != state || !errors.Is(it.Err, err) {
		m.t.Errorf("%v %s%s%s: %v, %v; want %v, %v", it.Op, it.Reserve.Key, it.Finish.Key, it.Release.Key, it.Reply.State, it.Err, state, err)
	}
}

// testBatch: every item is judged by itself, items of one key in their order, and every manager
// sees the results.
func testBatch(t *testing.T, m *managers) {
	m.start(ledger.Options{})
	m.plant(api.StateCommitted, time.Now().Add(time.Hour), "unreadable")
	m.reserve(0, "held", "t1", api.StateReserved)
	m.commit(0, "done", "t1", "body")
	for i := range 2 {
		a, b := fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i)
		got := m.batch(i,
			reserveItem(a, "t1"), reserveItem(a, "t2"), reserveItem("unreadable", "t1"), reserveItem("held", "t2"), reserveItem("done", "t2"),
			reserveItem("", "t1"), commitItem(a, "t1", "first"), reserveItem(a, "t2"), commitItem("held", "t2", "x"), releaseItem(a, "t1"),
			reserveItem(b, "t1"), releaseItem(b, "t1"), reserveItem(b, "t2"), releaseItem("unreadable", "t1"), commitItem("late"+a, "t1", "late"),
		)
		var bad *api.FieldError
		if !errors.As(got[5].Err, &bad) {
			t.Errorf("without a key: %v", got[5].Err)
		}
		for j, want := range []struct {
			state api.State
			err   error
		}{
			{api.StateReserved, nil}, {api.StatePending, nil}, {0, store.ErrUnreadable}, {api.StatePending, nil}, {api.StateCommitted, nil},
			{0, got[5].Err}, {api.StateCommitted, nil}, {api.StateCommitted, nil}, {0, ledger.ErrFenced}, {0, ledger.ErrConflict},
			{api.StateReserved, nil}, {api.StateReleased, nil}, {api.StateReserved, nil}, {0, store.ErrUnreadable}, {api.StateCommitted, nil},
		} {
			m.want(got[j], want.state, want.err)
		}
		if !bytes.Equal(got[4].Reply.Result, answer("body")) || !bytes.Equal(got[7].Reply.Result, answer("first")) {
			t.Errorf("replayed %q and %q", got[4].Reply.Result, got[7].Reply.Result)
		}
		if again := m.reserve(i+1, a, "t3", api.StateCommitted); !bytes.Equal(again.Result, answer("first")) {
			t.Errorf("another manager replays %q", again.Result)
		}
		m.reserve(i+1, b, "t3", api.StatePending)
		// Items that the ledger recognises as repeated get the same answers.
		for _, it := range m.batch(i+1, commitItem(a, "t1", "first"), commitItem("late"+a, "t1", "late")) {
			m.want(it, api.StateCommitted, nil)
		}
	}
	// Outcomes whose reservations are gone insert entries.
	for _, it := range m.batch(0, commitItem("late1", "t1", "x"), commitItem("late2", "t1", "x")) {
		m.want(it, api.StateCommitted, nil)
	}
	m.reserve(1, "late2", "t2", api.StateCommitted)
}

// testBatchesMeet: batches of many managers that share keys, each in an order of its own, reserve
// each key once.
func testBatchesMeet(t *testing.T, m *managers) {
	m.start(ledger.Options{})
	const callers, rounds, keys, items = 6, 6, 24, 12
	for round := range rounds {
		var mu sync.Mutex
		winners := make(map[string]int)
		var wg sync.WaitGroup
		for id := range callers {
			wg.Go(func() {
				for tries := 0; ; tries++ {
					var batch []ledger.Item
					for _, k := range rand.Perm(keys)[:items] {
						batch = append(batch, reserveItem(fmt.Sprintf("%d/%d", round, k), fmt.Sprintf("t%d.%d", id, tries)))
					}
					m.at(id).Batch(t.Context(), batch)
					mu.Lock()
					for i := range batch {
						switch it := &batch[i]; {
						case it.Err != nil:
							t.Errorf("%s: %v", it.Reserve.Key, it.Err)
						case it.Reply.State == api.StateReserved:
							winners[it.Reserve.Key]++
						case it.Reply.State != api.StatePending:
							t.Errorf("%s: %v", it.Reserve.Key, it.Reply.State)
						}
					}
					over := len(winners) == keys || t.Failed()
					mu.Unlock()
					if over {
						return
					}
				}
			})
		}
		wg.Wait()
		for key, n := range winners {
			if n != 1 {
				t.Errorf("%s was reserved %d times", key, n)
			}
		}
	}
}

// testBatchWaitsForNobody: a pending key for which callers wait does not delay the other items of
// a batch. An outcome in a batch wakes the callers that wait for it at another manager.
func testBatchWaitsForNobody(t *testing.T, m *managers) {
	m.start(ledger.Options{MaxWait: patience})
	m.reserve(0, "held", "t1", api.StateReserved)
	waits, waiting := m.held(1, "held", "t2")
	waiting()
	slow := reserveItem("held", "t3")
	slow.Reserve.Wait = time.Hour
	got := m.batch(0, reserveItem("a", "t1"), slow, reserveItem("b", "t1"))
	m.want(got[0], api.StateReserved, nil)
	m.want(got[1], api.StatePending, nil)
	m.want(got[2], api.StateReserved, nil)
	select {
	case r := <-waits:
		t.Fatalf("the held call was answered %v", r.State)
	default:
	}
	got = m.batch(0, commitItem("a", "t1", "x"), commitItem("held", "t1", "done"))
	m.want(got[1], api.StateCommitted, nil)
	select {
	case r := <-waits:
		if r.State != api.StateCommitted || !bytes.Equal(r.Result, answer("done")) {
			t.Errorf("the held call was answered %v %q", r.State, r.Result)
		}
	case <-time.After(patience):
		t.Error("the held call was not woken")
	}
}
