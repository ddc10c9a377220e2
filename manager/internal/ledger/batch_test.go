package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger/window"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
)

// randomItem is some call for one of few keys.
func randomItem(rnd *rand.Rand, keys int) Item {
	key, token := name("k", rnd.IntN(keys)), name("t", rnd.IntN(3))
	ms := func(n int) time.Duration { return time.Duration(rnd.IntN(n)) * time.Millisecond }
	it := Item{Op: Op(rnd.IntN(int(OpUnknown) + 1))}
	switch it.Op {
	case OpCommit, OpReject:
		it.Finish = *finishReq(key, token, fmt.Sprint(rnd.Uint32()))
		it.Finish.TTL = ms(30)
	case OpRelease:
		it.Release = *releaseReq(key, token)
	default:
		it.Reserve = *reserveReq(key, token)
		it.Reserve.Fingerprint = []string{"", "", "f1", "f2"}[rnd.IntN(4)]
		it.Reserve.UnknownTTL = []time.Duration{0, api.NoUnknown, 5 * time.Millisecond}[rnd.IntN(3)]
		if it.Op == OpUnknown {
			it.Reserve.UnknownTTL = max(it.Reserve.UnknownTTL, 0)
		} else {
			it.Reserve.PendingTTL = ms(20)
		}
	}
	if rnd.IntN(40) == 0 { // a bad one
		it.Reserve.Token, it.Finish.Token, it.Release.Token = "", "", ""
	}
	return it
}

// one makes the call of an item as a call of its own.
func one(ctx context.Context, l *Ledger, it *Item) {
	switch it.Op {
	case OpReserve:
		it.Reply, it.Err = l.Reserve(ctx, &it.Reserve, nil)
	case OpRenew:
		it.Reply, it.Err = l.Renew(ctx, &it.Reserve)
	case OpUnknown:
		it.Reply, it.Err = l.Unknown(ctx, &it.Reserve)
	case OpCommit:
		it.Reply, it.Err = Reply{State: api.StateCommitted}, l.Commit(ctx, &it.Finish)
	case OpReject:
		it.Reply, it.Err = Reply{State: api.StateRejected}, l.Reject(ctx, &it.Finish)
	case OpRelease:
		it.Reply, it.Err = Reply{State: api.StateReleased}, l.Release(ctx, &it.Release)
	}
	if it.Err != nil {
		it.Reply = Reply{}
	}
}

func describe(it *Item) string {
	return fmt.Sprintf("%v %v %+v %+v %+v: %v %v %q %v", it.Op, it.key, it.Reserve, it.Finish, it.Release,
		it.Reply.State, it.Reply.ExpiresIn, it.Reply.Result, it.Err)
}

// TestBatchIsItsCalls: a batch answers and counts as its calls would one after the other, and
// leaves the same records.
func TestBatchIsItsCalls(t *testing.T) {
	open := map[string]func(t *testing.T, c *clock) store.Store{
		"memory": func(_ *testing.T, c *clock) store.Store { return mem.New(mem.Options{Clock: c.Now}) },
		"wal": func(t *testing.T, c *clock) store.Store {
			st, err := mem.Open(t.Context(), t.TempDir(), mem.Options{Clock: c.Now})
			if err != nil {
				t.Fatal(err)
			}
			return st
		},
		"sqlite": func(t *testing.T, c *clock) store.Store {
			st, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "l.db"), sqlite.Options{Clock: c.Now})
			if err != nil {
				t.Fatal(err)
			}
			return st
		},
	}
	for engine, open := range open {
		t.Run(engine, func(t *testing.T) {
			c := newClock()
			sa, sb := open(t, c), open(t, c)
			defer sa.Close()
			defer sb.Close()
			a, b := ledgerOn(t, sa, Options{}), ledgerOn(t, sb, Options{})
			rnd := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
			for round := range 300 {
				keys := 2 + rnd.IntN(8)
				batch := make([]Item, 1+rnd.IntN(20))
				for i := range batch {
					batch[i] = randomItem(rnd, keys)
				}
				single := append([]Item(nil), batch...)
				a.Batch(t.Context(), batch)
				for i := range single {
					one(t.Context(), b, &single[i])
				}
				for i := range batch {
					single[i].key = batch[i].key
					if got, want := describe(&batch[i]), describe(&single[i]); got != want {
						t.Fatalf("round %d, item %d of %d:\n%s, by itself\n%s", round, i, len(batch), got, want)
					}
				}
				c.advance(time.Duration(rnd.IntN(4)) * time.Millisecond)
			}
			got, want := stats(t, a), stats(t, b)
			got.Batches, got.BatchItems = 0, 0
			if got != want {
				t.Errorf("counted\n%+v, by themselves\n%+v", got, want)
			}
			if got, want := bytesOf(t, a), bytesOf(t, b); got != want {
				t.Errorf("%d bytes, by themselves %d", got, want)
			}
		})
	}
}

// TestBatchesInAFullWindow: where there is no room for all, batches keep what the window promises:
// every answer is true afterwards, nothing is counted twice, and no more is
// there than may be.
func TestBatchesInAFullWindow(t *testing.T) {
	for size, opts := range map[string]Options{
		"refuses":       {MaxEntries: 6, ScopeShare: -1},
		"shares":        {MaxEntries: 8},
		"refuses bytes": {MaxBytes: 4000, ScopeShare: -1},
	} {
		for _, kind := range kinds {
			t.Run(size+"/"+kind, func(t *testing.T) {
				l, f, c := faultyLedger(t, kind, opts)
				rnd := rand.New(rand.NewPCG(2, uint64(time.Now().UnixNano())))
				total := 0
				for round := range 200 {
					f.twice = rnd.IntN(2) == 0
					items := make([]Item, 1+rnd.IntN(20))
					for i := range items {
						items[i] = randomItem(rnd, 12)
					}
					total += len(items)
					l.Batch(t.Context(), items)
					last := make(map[string]*Item)
					for i := range items {
						it := &items[i]
						if it.Err != nil {
							if o := outcomeOf(it.Err); o == OutcomeError || o == OutcomeTooLarge {
								t.Fatalf("round %d: %s", round, describe(it))
							}
							continue
						}
						last[it.key] = it
					}
					for key, it := range last {
						scope, k, _ := SplitEntryKey(key)
						e, err := l.Get(t.Context(), scope, k)
						if errors.Is(err, ErrNotFound) && (it.Op == OpRelease || it.Reply.State == api.StateNone) {
							continue
						}
						want := it.Reply.State
						if want == api.StateReserved {
							want = api.StatePending
						}
						if err != nil || e.State != want {
							t.Fatalf("round %d: %s; afterwards it is %v, %v", round, describe(it), e.State, err)
						}
					}
					var there window.Level
					if err := f.Store.View(t.Context(), func(tx store.Tx) (err error) { there, err = sizeOf(tx, Collection); return err }); err != nil {
						t.Fatal(err)
					}
					if hard := l.hardLimit(); there.Entries > hard.Entries || kind != "shared" && there.Bytes > hard.Bytes {
						t.Fatalf("round %d: %+v are there, at most %+v may be", round, there, hard)
					}
					if got := bytesOf(t, l); got != there.Bytes {
						t.Fatalf("round %d: %d bytes in the indexes, %d in all", round, got, there.Bytes)
					}
					c.advance(time.Duration(rnd.IntN(4)) * time.Millisecond)
				}
				var counted uint64
				s := stats(t, l)
				s.Each(func(_, _ string, n uint64) { counted += n })
				if counted != uint64(total) || s.BatchItems != uint64(total) {
					t.Errorf("%d calls counted for %d items", counted, total)
				}
				pending := 0
				for i := range 12 {
					if e, err := f.get(t, name("k", i)); err == nil && e.state == api.StatePending {
						pending++
					}
				}
				if got := l.pending.Load(); got != int64(pending) {
					t.Errorf("%d are taken for pending, %d are", got, pending)
				}
			})
		}
	}
}

// get reads a record as it is stored.
func (f *faulty) get(t *testing.T, key string) (r record, err error) {
	t.Helper()
	err = f.Store.View(t.Context(), func(tx store.Tx) error {
		value, err := tx.Get(Collection, EntryKey("s", key))
		if err != nil {
			return err
		}
		return decodeRecord(EntryKey("s", key), value, &r)
	})
	return r, err
}
