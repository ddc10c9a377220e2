package shard

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// TestMeetEndsWithItsContext: a call whose caller has left does not wait for another one that begins a quarantine on a slow
// disk.
func TestMeetEndsWithItsContext(t *testing.T) {
	st := mem.New(mem.Options{})
	defer st.Close()
	k, _, err := Open(t.Context(), st, Want{})
	if err != nil {
		t.Fatal(err)
	}
	begins, written := make(chan struct{}), make(chan struct{})
	if err := k.Watch(t.Context(), Past{
		Longest: func() time.Duration { return time.Hour }, Restored: func() string { return "" },
		Begin: func(context.Context, time.Duration, string) error {
			close(begins)
			<-written
			return nil
		},
	}); err != nil {
		t.Fatal(err)
	}
	m := api.Mark{ID: strings.Repeat("a", api.MarkIDBytes), Epoch: 1}
	first := make(chan error, 1)
	go func() { first <- k.Meet(t.Context(), m, "the first") }()
	<-begins
	left, leave := context.WithCancel(t.Context())
	leave()
	if err := k.Meet(left, m, "the second"); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has left: %v", err)
	}
	close(written)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if err := k.Meet(t.Context(), m, "the third"); err != nil { // it begins no second one
		t.Error(err)
	}
}

// TestLedgerThatWentBackAndGrew: a ledger that was put back took new keys, and was started again, before it met anybody who
// remembers more. It is as far as that by now, and has still forgotten something.
func TestLedgerThatWentBackAndGrew(t *testing.T) {
	position, begun := uint64(100), 0
	st := mem.New(mem.Options{})
	defer func() { st.Close() }()
	start := func() *Keeper {
		k, _, err := Open(t.Context(), st, Want{})
		if err == nil {
			err = k.Watch(t.Context(), Past{
				Position: func() uint64 { return position }, Longest: func() time.Duration { return time.Hour }, Restored: func() string { return "" },
				Begin: func(context.Context, time.Duration, string) error {
					begun++
					return nil
				},
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	// putBack is a store with what the record was at another time.
	putBack := func(record string) {
		st.Close()
		st = mem.New(mem.Options{})
		if err := st.Update(t.Context(), func(tx store.Tx) error { return tx.Put(Collection, recordKey, []byte(record)) }); err != nil {
			t.Fatal(err)
		}
	}
	meet := func(k *Keeper, m api.Mark, want int) {
		t.Helper()
		if err := k.Meet(t.Context(), m, "a caller"); err != nil || begun != want {
			t.Errorf("%s: %v, %d quarantines have begun, want %d", m, err, begun, want)
		}
	}
	k := start()
	early := k.Mark()
	position = 120
	later, first := k.Mark(), k.current.Load().raw
	meet(k, later, 0)
	k = start()
	position = 125
	second, last := k.current.Load().raw, k.Mark()
	for _, m := range []api.Mark{early, later, last} { // what an earlier run said is known
		meet(k, m, 0)
	}
	for _, back := range []struct {
		record string
		to     uint64
		lost   []api.Mark
	}{
		{first, 110, []api.Mark{later, last}}, // within the first run
		{first, 120, []api.Mark{last}},        // at its end
		{second, 123, []api.Mark{last}},       // within the second one
	} {
		for restarts := range 3 {
			for _, m := range back.lost {
				putBack(back.record)
				position, begun = back.to, 0
				k = start()
				meet(k, early, 0)
				for range restarts {
					position += 100
					k = start()
				}
				position += 100
				meet(k, k.Mark(), 0)
				meet(k, m, 1)
				meet(k, m, 1)
				meet(k, k.Mark(), 1)
				meet(k, k.MarkAt(position+1), 2)
			}
		}
	}
}

// TestManyRuns: what a run said that is no longer listed is known.
func TestManyRuns(t *testing.T) {
	st := mem.New(mem.Options{})
	defer st.Close()
	var marks []api.Mark
	position := uint64(1)
	for range 3 * maxRuns {
		k, _, err := Open(t.Context(), st, Want{})
		if err == nil {
			err = k.Watch(t.Context(), Past{Position: func() uint64 { return position }})
		}
		if err != nil {
			t.Fatal(err)
		}
		position += 10
		marks = append(marks, k.Mark())
		for _, m := range marks {
			if err := k.Meet(t.Context(), m, "a caller"); err != nil {
				t.Fatal(err)
			}
		}
	}
}
