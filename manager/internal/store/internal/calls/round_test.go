package calls

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/batch"
)

// One more operation runs for all callers that come while one runs.
func TestRound(t *testing.T) {
	var r Round[int]
	life := batch.NewLife(t.Context())
	begun, proceed := make(chan struct{}), make(chan struct{})
	runs := 0
	op := func(context.Context) (int, error) {
		runs++
		if runs == 1 {
			close(begun)
			<-proceed
			return runs, errors.New("first")
		}
		return runs, nil
	}
	first := make(chan error)
	go func() {
		_, err := r.Join(t.Context(), life, time.Minute, op)
		first <- err
	}()
	<-begun
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 {
		if _, err := r.Join(gone, life, time.Minute, op); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that left: %v", err)
		}
	}
	close(proceed)
	if err := <-first; err == nil || err.Error() != "first" {
		t.Error(err)
	}
	for running := true; running; runtime.Gosched() {
		r.mu.Lock()
		running = r.running
		r.mu.Unlock()
	}
	if runs != 2 {
		t.Errorf("%d runs, want one for the first caller and one for all that came during it", runs)
	}
	if n, err := r.Join(t.Context(), life, time.Minute, op); n != 3 || err != nil {
		t.Error(n, err)
	}
	life.End()
	if _, err := r.Join(t.Context(), life, time.Minute, op); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}
