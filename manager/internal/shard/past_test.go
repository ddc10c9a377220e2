package shard

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
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
	k.Watch(Past{
		Longest: func() time.Duration { return time.Hour }, Restored: func() string { return "" },
		Begin: func(context.Context, time.Duration, string) error {
			close(begins)
			<-written
			return nil
		},
	})
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

// TestLedgerThatWentBackAndGrew: a ledger that was put back took new keys before it met anybody who remembers more. It is
// as far as that by now, and has forgotten something all the same.
func TestLedgerThatWentBackAndGrew(t *testing.T) {
	st := mem.New(mem.Options{})
	defer st.Close()
	position, begun := uint64(100), 0
	start := func() *Keeper {
		k, _, err := Open(t.Context(), st, Want{})
		if err != nil {
			t.Fatal(err)
		}
		k.Watch(Past{
			Position: func() uint64 { return position }, Longest: func() time.Duration { return time.Hour }, Restored: func() string { return "" },
			Begin: func(context.Context, time.Duration, string) error {
				begun++
				return nil
			},
		})
		return k
	}
	meet := func(k *Keeper, m api.Mark, want int) {
		t.Helper()
		if err := k.Meet(t.Context(), m, "a caller"); err != nil || begun != want {
			t.Errorf("%v, %d quarantines have begun, want %d", err, begun, want)
		}
	}
	k := start()
	early := k.Mark()
	position = 120
	later := k.Mark()
	meet(k, later, 0)
	k = start()
	position = 125
	for _, m := range []api.Mark{early, later, k.Mark()} { // what an earlier run said is known
		meet(k, m, 0)
	}
	position = 110 // what the disk has that is there now
	k = start()
	meet(k, early, 0)
	position = 200
	meet(k, later, 1)
	meet(k, later, 1)
	meet(k, k.Mark(), 1)
	meet(k, k.MarkAt(201), 2)
}
