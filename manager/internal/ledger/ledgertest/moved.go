package ledgertest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
	"github.com/oncegate/oncegate/manager/internal/shard"
)

// here and there are the shards of these tests. The managers are those of here.
const here, there = "here", "there"

// startAs starts managers of the shard here, with a list or without.
func (m *managers) startAs(o ledger.Options, list ...string) (keepers []*shard.Keeper) {
	m.t.Helper()
	for _, st := range m.stores {
		k, _, err := shard.Open(m.t.Context(), st, shard.Want{Name: here, Shards: list})
		if err != nil {
			m.t.Fatal(err)
		}
		o.Owners = k
		l, err := ledger.New(st, o)
		if err != nil {
			m.t.Fatal(err)
		}
		m.ledgers, keepers = append(m.ledgers, l), append(keepers, k)
	}
	return keepers
}

// keyOf returns a key that a shard owns.
func keyOf(name, prefix string) string {
	shards := []string{here, there}
	for i := 0; ; i++ {
		if key := fmt.Sprint(prefix, i); shards[api.Owner(shards, "s", key)] == name {
			return key
		}
	}
}

func (m *managers) moved(i int, key, token string, wait time.Duration) {
	m.t.Helper()
	reply, err := m.at(i).Reserve(m.t.Context(), &api.ReserveRequest{Key: key, Scope: "s", Token: token, Wait: wait}, nil)
	var moved *ledger.MovedError
	if !errors.As(err, &moved) || !errors.Is(err, ledger.ErrKeyMoved) || moved.Owner != there {
		m.t.Fatalf("reserve %s by %s: %v, %v; want it moved", key, token, reply.State, err)
	}
}

// testMoved: after a change of the list, entries of another shard's keys are answered as before, and no new ones begin.
func testMoved(t *testing.T, m *managers) {
	m.startAs(ledger.Options{})
	key := func(name string) string { return keyOf(there, name) }
	for _, name := range []string{"pending", "committed", "rejected", "unknown", "released"} {
		m.reserve(0, key(name), "t1", api.StateReserved)
	}
	m.commit(0, key("committed"), "t1", "x")
	m.reject(0, key("rejected"), "t1", "x")
	if _, err := m.at(0).Unknown(t.Context(), &api.ReserveRequest{Key: key("unknown"), Scope: "s", Token: "t1"}); err != nil {
		t.Fatal(err)
	}
	m.release(0, key("released"), "t1")

	m.ledgers = nil
	m.startAs(ledger.Options{}, here, there)
	for i := range 2 {
		m.reserve(i, key("pending"), "t1", api.StateReserved)
		m.reserve(i, key("pending"), "t2", api.StatePending)
		m.reserve(i, key("committed"), "t2", api.StateCommitted)
		m.reserve(i, key("rejected"), "t2", api.StateRejected)
		_, err := m.at(i).Reserve(t.Context(), &api.ReserveRequest{Key: key("unknown"), Scope: "s", Token: "t2"}, nil)
		if !errors.Is(err, ledger.ErrOutcomeUnknown) {
			t.Errorf("unknown: %v", err)
		}
		m.moved(i, key("released"), "t1", 0)
		m.moved(i, key("new"), "t1", 0)
		m.moved(i, key("new"), "t1", time.Minute)
		m.reserve(i, keyOf(here, "mine"), "t1", api.StateReserved)
	}
	if _, err := m.at(0).Renew(t.Context(), &api.ReserveRequest{Key: key("pending"), Scope: "s", Token: "t1"}); err != nil {
		t.Errorf("renew: %v", err)
	}
	m.release(1, key("pending"), "t1")
	m.moved(0, key("pending"), "t2", 0)
	// The work ran, and its outcome comes when the reservation is gone.
	m.commit(1, key("pending"), "t1", "late")
	m.reserve(0, key("pending"), "t2", api.StateCommitted)
	// Each item of a batch is judged by itself.
	for i := range 2 {
		items := m.batch(i, reserveItem(key("batch"), "t1"), reserveItem(keyOf(here, "batch"), "t1"), commitItem(key("late"), "t1", "x"), reserveItem(key("late"), "t2"))
		if !errors.Is(items[0].Err, ledger.ErrKeyMoved) || items[1].Err != nil || items[2].Err != nil || items[3].Err != nil || items[3].Reply.State != api.StateCommitted {
			t.Errorf("a batch: %v, %v, %v, %v %v", items[0].Err, items[1].Err, items[2].Err, items[3].Err, items[3].Reply.State)
		}
	}
	// A caller that does more in the same transaction has chosen this ledger.
	err := m.at(0).Update(t.Context(), func(tx *ledger.Tx) error {
		reply, err := tx.Reserve(&api.ReserveRequest{Key: key("job"), Scope: "s", Token: "t1"})
		if err == nil && reply.State != api.StateReserved {
			err = fmt.Errorf("state %v", reply.State)
		}
		return err
	})
	if err != nil {
		t.Errorf("in a caller's transaction: %v", err)
	}
	// The entries of other shards' keys can be counted.
	for i := range m.ledgers {
		got, err := views.Moved(t.Context(), m.at(i), nil)
		if want := (ledger.Counts{Committed: 3, Rejected: 1, Unknown: 1, Pending: 1}); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	var moved uint64
	for i := range m.ledgers {
		s := m.stats(i)
		moved += s.Calls[ledger.OpReserve][ledger.OutcomeMoved]
	}
	if moved != 9 {
		t.Errorf("%d calls were counted as moved, want 9", moved)
	}
}

// testMovedWhileWaiting: a caller that waits for a key that moves gets its outcome, or key-moved if there is none.
func testMovedWhileWaiting(t *testing.T, m *managers) {
	committed, released := keyOf(there, "committed"), keyOf(there, "released")
	m.startAs(ledger.Options{})
	m.reserve(0, committed, "t1", api.StateReserved)
	m.reserve(0, released, "t1", api.StateReserved)
	m.ledgers = nil
	m.startAs(ledger.Options{MaxWait: patience}, here, there)
	var wg sync.WaitGroup
	for i := range 4 {
		for _, key := range []string{committed, released} {
			wg.Go(func() {
				reply, err := m.at(i).Reserve(t.Context(), &api.ReserveRequest{Key: key, Scope: "s", Token: fmt.Sprint("w", i), Wait: patience}, nil)
				if key == released && !errors.Is(err, ledger.ErrKeyMoved) || key == committed && (err != nil || reply.State != api.StateCommitted) {
					t.Errorf("%s, waiter %d: %v, %v", key, i, reply.State, err)
				}
			})
		}
	}
	m.eventually("all wait", func() bool { return m.waiters() == 8 })
	m.commit(0, committed, "t1", "x")
	m.release(0, released, "t1")
	wg.Wait()
}

// testMovedAtOnce: once a manager has started with a list, no manager of the store inserts another shard's keys. That
// includes managers that were started before it.
func testMovedAtOnce(t *testing.T, m *managers) {
	m.startAs(ledger.Options{}, here)
	var changed, stop atomic.Bool
	var before, after atomic.Int64
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	for i := range 4 {
		wg.Go(func() {
			for n := 0; !stop.Load(); n++ {
				was := changed.Load()
				_, err := m.at(i).Reserve(t.Context(), &api.ReserveRequest{Key: keyOf(there, fmt.Sprintf("k%d-%d-", i, n)), Scope: "s", Token: "t"}, nil)
				switch {
				case err == nil && was:
					t.Errorf("reserved here after the change")
					return
				case err == nil:
					before.Add(1)
				case errors.Is(err, ledger.ErrKeyMoved):
					after.Add(1)
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	enough := func(n *atomic.Int64) func() bool { return func() bool { return n.Load() > 20 || t.Failed() } }
	m.eventually("keys are reserved", enough(&before))
	k, _, err := shard.Open(t.Context(), m.stores[0], shard.Want{Name: here, Shards: []string{here, there}})
	if err != nil {
		t.Fatal(err)
	}
	if !m.stores[0].Capabilities().Shared {
		// Its one manager starts again.
		stop.Store(true)
		wg.Wait()
		stop.Store(false)
		l, err := ledger.New(m.stores[0], ledger.Options{Owners: k})
		if err != nil {
			t.Fatal(err)
		}
		m.ledgers = []*ledger.Ledger{l}
		m.moved(0, keyOf(there, "k"), "t", 0)
		return
	}
	changed.Store(true)
	m.eventually("keys are refused", enough(&after))
}
