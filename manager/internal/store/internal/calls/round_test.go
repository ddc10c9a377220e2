package calls

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// One more operation runs for all callers that come while one runs.
func TestRound(t *testing.T) {
	var r Round[int]
	var work sync.WaitGroup
	begun, proceed := make(chan struct{}), make(chan struct{})
	runs := 0
	op := func() (int, error) {
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
		_, err := r.Join(t.Context(), &work, op)
		first <- err
	}()
	<-begun
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 {
		if _, err := r.Join(gone, &work, op); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that left: %v", err)
		}
	}
	close(proceed)
	if err := <-first; err == nil || err.Error() != "first" {
		t.Error(err)
	}
	work.Wait()
	if runs != 2 {
		t.Errorf("%d runs, want one for the first caller and one for all that came during it", runs)
	}
	if n, err := r.Join(t.Context(), &work, op); n != 3 || err != nil {
		t.Error(n, err)
	}
	work.Wait()
}
