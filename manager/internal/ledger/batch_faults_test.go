package ledger

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// faulty is a store whose transactions go wrong.
type faulty struct {
	store.Store
	caps func(store.Capabilities) store.Capabilities
	// fails, if set, gets the number of a transaction, from 1, and how many items it is for, and
	// returns its error; the function has run then.
	fails func(update, items int) error
	twice bool // each function runs twice, and only the second run counts

	updates int
}

func (f *faulty) Capabilities() store.Capabilities {
	c := f.Store.Capabilities()
	if f.caps != nil {
		c = f.caps(c)
	}
	return c
}

var errDiscarded = errors.New("discarded")

func (f *faulty) Update(ctx context.Context, fn func(store.Tx) error) error {
	f.updates++
	if f.twice {
		_ = f.Store.Update(ctx, func(tx store.Tx) error {
			_ = fn(tx)
			return errDiscarded
		})
	}
	gets := make(map[string]bool)
	var fault error
	err := f.Store.Update(ctx, func(tx store.Tx) error {
		clear(gets)
		if err := fn(&watchedTx{Tx: tx, gets: gets}); err != nil {
			return err
		}
		if f.fails != nil {
			fault = f.fails(f.updates, len(gets))
		}
		return fault
	})
	return err
}

// watchedTx notes which entries are asked for.
type watchedTx struct {
	store.Tx
	gets map[string]bool
}

func (tx *watchedTx) Get(c store.Collection, key string) ([]byte, error) {
	if c == Collection {
		tx.gets[key] = true
	}
	return tx.Tx.Get(c, key)
}

// faultyLedger is a ledger on a faulty store of the given kind: one of this process, or one that is shared.
func faultyLedger(t *testing.T, kind string, opts Options) (*Ledger, *faulty, *clock) {
	t.Helper()
	c := newClock()
	f := &faulty{Store: mem.New(mem.Options{Clock: c.Now}), caps: func(caps store.Capabilities) store.Capabilities {
		if kind == "shared" {
			caps.Shared, caps.Sizes = true, false
		}
		return caps
	}}
	t.Cleanup(func() { _ = f.Store.Close() })
	l := ledgerOn(t, f, opts)
	f.updates = 0
	return l, f, c
}

func reserves8(token string) (items []Item) {
	for i := range 8 {
		items = append(items, Item{Op: OpReserve, Reserve: *reserveReq(name("k", i), token)})
	}
	return items
}

// wants compares answers with "state" or with the text of an error.
func wants(t *testing.T, items []Item, want ...string) {
	t.Helper()
	for i := range items {
		got := items[i].Reply.State.String()
		if items[i].Err != nil {
			got = items[i].Err.Error()
			if items[i].Reply.State != api.StateNone {
				t.Errorf("item %d: an answer and an error: %+v", i, items[i].Reply)
			}
		}
		if !strings.Contains(got, want[min(i, len(want)-1)]) {
			t.Errorf("item %d of %d: %s, want %s", i, len(items), got, want[min(i, len(want)-1)])
		}
	}
}

func calls(t *testing.T, l *Ledger, op Op, o Outcome) uint64 { return stats(t, l).Calls[op][o] }

var kinds = []string{"own", "shared"}

// TestBatchIsOneTransaction: new keys, outcomes and refusals are one transaction, and so are duplicates.
func TestBatchIsOneTransaction(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			l, f, _ := faultyLedger(t, kind, Options{})
			items := append(reserves8("t1"), Item{Op: OpRelease, Release: *releaseReq("k0", "t2")}, Item{Op: OpCommit, Finish: *finishReq("k1", "t1", "x")})
			l.Batch(t.Context(), items)
			wants(t, items[8:], "another attempt", "committed")
			wants(t, items[:8], "reserved")
			if f.updates != 1 {
				t.Errorf("%d transactions for new keys", f.updates)
			}
			f.updates = 0
			items = reserves8("t2")
			l.Batch(t.Context(), items)
			wants(t, items, "pending", "committed", "pending")
			if f.updates != 1 {
				t.Errorf("%d transactions for duplicates", f.updates)
			}
			if s := stats(t, l); s.Batches != 2 || s.BatchItems != 18 || s.Calls[OpReserve][OutcomePending] != 7 || s.Calls[OpReserve][OutcomeReplayed] != 1 {
				t.Errorf("counted %+v", s)
			}
		})
	}
}

// TestBatchDuplicatesInOrder: items of one key follow the rules in their order.
func TestBatchDuplicatesInOrder(t *testing.T) {
	reserve := func(token string) Item { return Item{Op: OpReserve, Reserve: *reserveReq("k", token)} }
	renew := func(token string) Item { return Item{Op: OpRenew, Reserve: *reserveReq("k", token)} }
	unknown := func(token string) Item { return Item{Op: OpUnknown, Reserve: *reserveReq("k", token)} }
	commit := func(token string) Item { return Item{Op: OpCommit, Finish: *finishReq("k", token, token)} }
	reject := func(token string) Item { return Item{Op: OpReject, Finish: *finishReq("k", token, token)} }
	release := func(token string) Item { return Item{Op: OpRelease, Release: *releaseReq("k", token)} }
	const fenced, conflict, isUnknown = "another attempt", "another outcome", "not known"
	for _, c := range []struct {
		items []Item
		want  []string
	}{
		{[]Item{reserve("a"), reserve("b"), reserve("a")}, []string{"reserved", "pending", "reserved"}},
		{[]Item{reserve("a"), commit("a"), reserve("b"), commit("b"), reject("a"), commit("a")},
			[]string{"reserved", "committed", "committed", fenced, conflict, "committed"}},
		{[]Item{commit("a"), reserve("a"), reserve("b")}, []string{"committed", "committed", "committed"}},
		{[]Item{reserve("a"), release("a"), reserve("b"), release("a"), commit("a"), commit("b")},
			[]string{"reserved", "released", "reserved", fenced, fenced, "committed"}},
		{[]Item{release("a"), reserve("a"), reject("a"), reserve("b"), release("a")}, []string{"released", "reserved", "rejected", "rejected", conflict}},
		{[]Item{reserve("a"), unknown("a"), reserve("b"), renew("a"), reserve("b"), commit("a"), unknown("a")},
			[]string{"reserved", "unknown", isUnknown, "reserved", "pending", "committed", conflict}},
		{[]Item{renew("a"), reserve("b"), unknown("b"), release("a"), unknown("b"), reserve("a")},
			[]string{"reserved", "pending", fenced, "released", "unknown", isUnknown}},
	} {
		for _, kind := range kinds {
			for _, twice := range []bool{false, true} {
				l, f, _ := faultyLedger(t, kind, Options{})
				f.twice = twice
				items := append([]Item(nil), c.items...)
				l.Batch(t.Context(), items)
				wants(t, items, c.want...)
				var counted uint64
				s := stats(t, l)
				s.Each(func(_, _ string, n uint64) { counted += n })
				if counted != uint64(len(items)) {
					t.Errorf("%s, twice %v: %d calls counted for %d items", kind, twice, counted, len(items))
				}
			}
		}
	}
}

// A transaction that is too large a target for others is cut in half, and in
// the end each item is by itself.
func TestConflictingBatchIsCutInHalves(t *testing.T) {
	for _, kind := range kinds {
		for _, most := range []int{4, 1, 0} {
			l, f, _ := faultyLedger(t, kind, Options{})
			f.fails = func(_, items int) error {
				if items > most {
					return store.ErrConflict
				}
				return nil
			}
			items := reserves8("t1")
			l.Batch(t.Context(), items)
			want := "reserved"
			if most == 0 {
				want = store.ErrConflict.Error()
			}
			wants(t, items, want)
			if n := calls(t, l, OpReserve, OutcomeDone) + calls(t, l, OpReserve, OutcomeError); n != 8 {
				t.Errorf("%s, at most %d: %d counted", kind, most, n)
			}
			f.fails = nil
			items = reserves8("t1")
			l.Batch(t.Context(), items)
			wants(t, items, "reserved")
		}
	}
}

// An error of the store is the answer to each item of the transaction, and the same
// batch again settles it.
func TestStoreErrorAnswersEachItem(t *testing.T) {
	for _, kind := range kinds {
		for _, fault := range []error{store.ErrUnavailable, store.ErrNoSpace, store.ErrFailed, context.DeadlineExceeded} {
			l, f, _ := faultyLedger(t, kind, Options{})
			f.fails = func(int, int) error { return fmt.Errorf("wrapped: %w", fault) }
			items := append(reserves8("t1"), Item{Op: OpReserve, Reserve: *reserveReq("", "t")}, Item{Op: OpCommit, Finish: *finishReq("k0", "t1", "x")})
			l.Batch(t.Context(), items)
			wants(t, items[:8], fault.Error())
			wants(t, items[8:], "must be 1 to 255", fault.Error())
			if f.updates != 1 || calls(t, l, OpReserve, OutcomeError) != 8 || calls(t, l, OpCommit, OutcomeError) != 1 || calls(t, l, OpReserve, OutcomeInvalid) != 1 {
				t.Errorf("%s, %v: %d transactions, %+v", kind, fault, f.updates, stats(t, l).Calls)
			}
			f.fails = nil
			for i := range items {
				items[i].Err = nil
			}
			l.Batch(t.Context(), items)
			wants(t, items[:8], "reserved")
			wants(t, items[9:], "committed")
		}
	}
}

// TestBatchLeavesErrorsAlone: an item that has an error comes back with it.
func TestBatchLeavesErrorsAlone(t *testing.T) {
	l, f, _ := faultyLedger(t, "own", Options{})
	mine := errors.New("mine")
	items := []Item{{Err: mine}, {Op: OpReserve, Reserve: *reserveReq("k", "t"), Err: mine}, {Op: OpResolve}}
	l.Batch(t.Context(), items)
	wants(t, items, "mine", "mine", "op")
	l.Batch(t.Context(), nil)
	if f.updates != 0 {
		t.Errorf("%d transactions", f.updates)
	}
}

// TestBatchTooLargeForOneTransaction: what does not fit into one record of the log is cut.
func TestBatchTooLargeForOneTransaction(t *testing.T) {
	st, err := mem.Open(t.Context(), t.TempDir(), mem.Options{Log: wal.Options{MaxRecordBytes: 4096}})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l := ledgerOn(t, st, Options{})
	var items []Item
	for i := range 10 {
		items = append(items, Item{Op: OpCommit, Finish: *finishReq(name("k", i), "t", strings.Repeat("x", 1500))})
	}
	items[4].Finish.Result = answer(200, strings.Repeat("y", 5000)) // by itself, too
	l.Batch(t.Context(), items)
	wants(t, items[:4], "committed")
	wants(t, items[4:], "too large", "committed")
	if done, large := calls(t, l, OpCommit, OutcomeDone)+calls(t, l, OpCommit, OutcomeLate), calls(t, l, OpCommit, OutcomeTooLarge); done != 9 || large > 1 {
		t.Errorf("counted %d done, %d too large", done, large)
	}
}

// put leaves a record that cannot be read.
func putUnreadable(t *testing.T, st store.Store, key string) {
	t.Helper()
	err := st.Update(t.Context(), func(tx store.Tx) error {
		return tx.Put(Collection, EntryKey("s", key), []byte("\xffnobody reads this"))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A record that cannot be read costs its own key.
func TestUnreadableRecordCostsItsOwnItem(t *testing.T) {
	for _, kind := range kinds {
		l, f, _ := faultyLedger(t, kind, Options{})
		putUnreadable(t, f.Store, "k3")
		items := append(reserves8("t1"), Item{Op: OpCommit, Finish: *finishReq("k3", "t1", "x")}, Item{Op: OpCommit, Finish: *finishReq("k4", "t1", "x")})
		l.Batch(t.Context(), items)
		wants(t, items, "reserved", "reserved", "reserved", "cannot be read", "reserved", "reserved", "reserved", "reserved", "cannot be read", "committed")
		if f.updates != 1 || calls(t, l, OpReserve, OutcomeError) != 1 || calls(t, l, OpCommit, OutcomeError) != 1 {
			t.Errorf("%s: %d transactions, %+v", kind, f.updates, stats(t, l).Calls)
		}
	}
}

// TestBatchRefusedAfterAWrite: room was made for an item, and it is still refused. What was
// removed for it is there again, and its neighbours are as they would be without it.
func TestBatchRefusedAfterAWrite(t *testing.T) {
	for _, refused := range []int{1, 3, 6} {
		// A window that is full except for 100 bytes, with one small entry that has expired.
		fill := func(opts Options) (*Ledger, *faulty) {
			l, f, c := faultyLedger(t, "own", opts)
			old := finishReq("old", "t", "")
			old.TTL = time.Millisecond
			if err := errors.Join(l.Commit(t.Context(), old), l.Commit(t.Context(), finishReq("big", "t", strings.Repeat("x", 2000)))); err != nil {
				t.Fatal(err)
			}
			mustReserve(t, l, "held", "t", api.StateReserved)
			c.advance(time.Second)
			return l, f
		}
		roomy, _ := fill(Options{ScopeShare: -1})
		size := bytesOf(t, roomy)
		// What is expected of the outcome of the reservation counts, too.
		l, f := fill(Options{ScopeShare: -1, MaxBytes: size + firstGrowth + 100})
		var items []Item
		for i := range refused {
			items = append(items, Item{Op: OpReserve, Reserve: *reserveReq(name("new", i), "t")},
				Item{Op: OpRenew, Reserve: *reserveReq("held", "t")},
				Item{Op: OpRelease, Release: *releaseReq(name("new", i), "t2")},
				Item{Op: OpReserve, Reserve: *reserveReq("big", "t2")})
		}
		f.updates = 0
		l.Batch(t.Context(), items)
		for i := 0; i < len(items); i += 4 {
			wants(t, items[i:i+4], "window is full", "reserved", "released", "committed")
		}
		if got := bytesOf(t, l); got != size || got != stats(t, l).Bytes {
			t.Errorf("%d bytes are left, %d are counted, there were %d", got, stats(t, l).Bytes, size)
		}
		s := stats(t, l)
		if s.Expired != 0 || s.Calls[OpReserve][OutcomeFull] != uint64(refused) || s.Calls[OpReserve][OutcomeReplayed] != uint64(refused) ||
			s.Calls[OpRenew][OutcomeDone] != uint64(refused) || s.Calls[OpRelease][OutcomeRepeated] != uint64(refused) {
			t.Errorf("counted %+v", s)
		}
		t.Logf("%d refused: %d transactions", refused, f.updates)
	}
}

// TestBatchMakesRoomInSteps: an outcome that needs more room than one transaction makes gets it, and so
// do its neighbours; a later item of its key comes after it.
func TestBatchMakesRoomInSteps(t *testing.T) {
	opts := Options{MaxBytes: 800_000, ScopeShare: -1}
	l, f, c := faultyLedger(t, "own", opts)
	for i := range 1500 {
		old := finishReq(name("old", i), "t", "x")
		old.TTL = time.Millisecond
		if err := l.Commit(t.Context(), old); err != nil {
			t.Fatal(err)
		}
	}
	c.advance(time.Second)
	items := []Item{
		{Op: OpReserve, Reserve: *reserveReq("a", "t")},
		{Op: OpCommit, Finish: *finishReq("large", "t", strings.Repeat("x", 600_000))},
		{Op: OpReserve, Reserve: *reserveReq("large", "t2")},
		{Op: OpCommit, Finish: *finishReq("a", "t", "done")},
		{Op: OpRelease, Release: *releaseReq("large", "t2")},
	}
	f.updates = 0
	l.Batch(t.Context(), items)
	wants(t, items, "reserved", "committed", "committed", "committed", "another attempt")
	if len(items[2].Reply.Result) < 600_000 {
		t.Errorf("the answer has %d bytes", len(items[2].Reply.Result))
	}
	if f.updates < 3 {
		t.Errorf("%d transactions", f.updates)
	}
	if s := stats(t, l); s.Bytes > opts.MaxBytes || s.Bytes != bytesOf(t, l) {
		t.Errorf("%d bytes counted, %d there, the window has %d", s.Bytes, bytesOf(t, l), opts.MaxBytes)
	}
}

// TestBatchAnswersOutliveTheTransaction: an answer that the batch itself recorded is not overwritten
// by what comes after it.
func TestBatchAnswersOutliveTheTransaction(t *testing.T) {
	st, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "l.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l := ledgerOn(t, st, Options{})
	items := []Item{
		{Op: OpCommit, Finish: *finishReq("k", "t", "the first answer")},
		{Op: OpReserve, Reserve: *reserveReq("k", "t2")},
	}
	l.Batch(t.Context(), items)
	for i := range 20 {
		mustCommit(t, l, name("other", i), "t", "-----another one-----")
		more := []Item{{Op: OpCommit, Finish: *finishReq(name("x", i), "t", "------------------")}, {Op: OpCommit, Finish: *finishReq(name("y", i), "t", "-------------------")}}
		l.Batch(t.Context(), more)
	}
	if want := string(answer(201, "the first answer")); string(items[1].Reply.Result) != want {
		t.Errorf("the answer became %q", items[1].Reply.Result)
	}
}
