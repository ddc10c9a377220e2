package feed

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// TestBatchesThatEndAmongEqualTimes: outcomes that a conflict made this ledger's may have the time of another one. None is
// left out where a batch ends among them.
func TestBatchesThatEndAmongEqualTimes(t *testing.T) {
	for batch := range int64(6) {
		c := newClock()
		st := mem.New(mem.Options{Clock: c.Now})
		defer st.Close()
		o := ledger.Options{CommittedTTL: 24 * time.Hour}
		old := []string{"old1", "old2", "old3"}
		recordKeys(t, ledgerOn(t, st, o), old...)
		l := feedOn(t, st, o)
		recordKeys(t, l, "own")
		late := uint64(c.Now().Add(time.Hour).UnixMilli()) << 16
		for _, key := range old {
			change := ledger.FeedChange{Origin: "dc2", Scope: "s", Key: key, Token: "theirs", State: api.StateCommitted, HLC: late, ExpiresIn: time.Hour, Result: answer(200, "other")}
			if _, err := l.Import(t.Context(), []ledger.FeedChange{change}, nil); err != nil {
				t.Fatal(err)
			}
		}
		recordKeys(t, l, "later")
		l.batch.Store(1 + batch)
		publish(t, l)
		got, _ := read(t, l, "", 10)
		slices.Sort(got)
		wantKeys(t, fmt.Sprint("batches of ", 1+batch), slices.Compact(got), []string{"later", "old1", "old2", "old3", "own"})
	}
}

// TestFeedIsOpenedAgainWhileItIsUsed: a manager opens the feed again when its server was restored, and records meanwhile.
func TestFeedIsOpenedAgainWhileItIsUsed(t *testing.T) {
	st := sharedStore{mem.New(mem.Options{})}
	defer st.Close()
	l := feedOn(t, st, ledger.Options{})
	ctx, stop := context.WithCancel(t.Context())
	var opener sync.WaitGroup
	opener.Go(func() {
		for ctx.Err() == nil {
			if err := l.Open(t.Context(), ""); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range 50 {
		recordTogether(t, l, fmt.Sprint("a", i), fmt.Sprint("b", i))
	}
	stop()
	opener.Wait()
	publish(t, l)
	if got, _ := read(t, l, "", 500); len(got) != 100 {
		t.Errorf("%d changes", len(got))
	}
}

// TestUnreadableFrontOfTheOutbox: records that cannot be read hold up none after them, however many there are.
func TestUnreadableFrontOfTheOutbox(t *testing.T) {
	st := sharedStore{mem.New(mem.Options{})}
	defer st.Close()
	l := feedOn(t, st, ledger.Options{})
	l.batch.Store(2)
	for i := range 7 {
		err := st.Update(t.Context(), func(tx store.Tx) error {
			key := hex16(uint64(i)) + " other"
			return tx.Put(ledger.Outbox, key, []byte("\x03of a later version"), store.Entry{Index: indexOrder, SortKey: hex16(uint64(i))})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	want := numbered(12)
	for i := 0; i < len(want); i += 2 {
		recordTogether(t, l, want[i:i+2]...)
	}
	for range 2 {
		publish(t, l)
		got, _ := read(t, l, "", 10)
		wantKeys(t, "after what cannot be read", got, want)
	}
	if left := len(stored(t, st, ledger.Outbox, indexOrder)); left != 7 {
		t.Errorf("the outbox keeps %d records, want the 7 that cannot be read", left)
	}
}

// TestPublishedTransactionsAreBounded: a long outbox is published in transactions of a bounded size.
func TestPublishedTransactionsAreBounded(t *testing.T) {
	st := sharedStore{mem.New(mem.Options{})}
	defer st.Close()
	l := feedOn(t, st, ledger.Options{})
	const listKeys = 256 // of one record
	want := numbered(publishKeys + 3*listKeys)
	for i := 0; i < len(want); i += listKeys {
		err := st.Update(t.Context(), func(tx store.Tx) error {
			var keys []string
			for _, k := range want[i:min(i+listKeys, len(want))] {
				keys = append(keys, "1:s"+k)
			}
			at := hex16(uint64(i))
			return tx.Put(ledger.Outbox, at+" other", ledger.AppendKeys(nil, keys), store.Entry{Index: indexOrder, SortKey: at})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	more, err := l.publishSome(t.Context(), publishBatch)
	if n := headOf(t, st).Next - 1; err != nil || !more || n < publishKeys || n >= publishKeys+listKeys {
		t.Errorf("one transaction published %d changes, more: %v, %v", n, more, err)
	}
	publish(t, l)
	if n := headOf(t, st).Next - 1; n != uint64(len(want)) {
		t.Errorf("%d changes, want %d", n, len(want))
	}
}

// prefetching counts the records that are read together.
type prefetching struct {
	store.Store
	read int
}

type prefetchingTx struct {
	store.Tx
	s *prefetching
}

func (s *prefetching) View(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.View(ctx, func(tx store.Tx) error { return fn(prefetchingTx{tx, s}) })
}

func (tx prefetchingTx) Prefetch(ids []store.ID) error {
	tx.s.read += len(ids)
	return nil
}

// TestPagesOfLargeAnswers: a page does not read many more answers than it has room for.
func TestPagesOfLargeAnswers(t *testing.T) {
	st := &prefetching{Store: mem.New(mem.Options{})}
	defer st.Close()
	l := feedOn(t, st, ledger.Options{})
	for _, key := range numbered(40) {
		mustReserve(t, l, key, "t")
		mustCommit(t, l, key, "t", strings.Repeat("x", pageBytes/3))
	}
	publish(t, l)
	f, err := l.Changes(t.Context(), "dc1", "", 500)
	if err != nil || len(f.Changes) < 2 || len(f.Changes) > 3 || st.read > 7 {
		t.Errorf("%d changes, %d records were read for them, %v", len(f.Changes), st.read, err)
	}
}

// TestPublishWhileRecording: what is recorded while a publisher is at work is in the feed once, in the order of the commits
// of each caller.
func TestPublishWhileRecording(t *testing.T) {
	st, err := mem.Open(t.Context(), t.TempDir(), mem.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l := feedOn(t, st, ledger.Options{})
	ctx, stop := context.WithCancel(t.Context())
	var callers, publishers sync.WaitGroup
	for range 2 {
		publishers.Go(func() {
			for ctx.Err() == nil {
				if err := l.Publish(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for c := range 8 {
		callers.Go(func() {
			for i := range 100 {
				if err := reserveAndCommit(t.Context(), l, fmt.Sprintf("%d-%03d", c, i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	callers.Wait()
	stop()
	publishers.Wait()
	publish(t, l)
	got, _ := read(t, l, "", 500)
	if len(got) != 800 {
		t.Errorf("%d changes", len(got))
	}
	for c := range 8 {
		mine := slices.DeleteFunc(slices.Clone(got), func(k string) bool { return k[0] != byte('0'+c) })
		if len(mine) != 100 || !slices.IsSorted(mine) {
			t.Errorf("caller %d: %q", c, mine)
		}
	}
}
