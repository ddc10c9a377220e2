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
