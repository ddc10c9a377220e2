package storelogs

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// hanging is a store whose updates do not end by themselves while it hangs.
type hanging struct {
	store.Store
	hangs atomic.Bool
	begun chan struct{}
}

func (h *hanging) Update(ctx context.Context, fn func(store.Tx) error) error {
	if h.hangs.Load() {
		h.begun <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	return h.Store.Update(ctx, fn)
}

// The calls of a log are bounded by bytes and by number. A caller that leaves gives back what it took.
func TestCallsAreBounded(t *testing.T) {
	st := &hanging{Store: mem.New(mem.Options{}), begun: make(chan struct{})}
	t.Cleanup(func() { _ = st.Close() })
	e := openIdle(t, st, func() time.Duration { return 0 })
	if _, _, err := e.Put(t.Context(), "l", logs.Change{}); err != nil {
		t.Fatal(err)
	}
	l := e.line("l")
	write := func(ctx context.Context) string {
		_, err := e.Append(ctx, "l", []logs.Item{{Payload: []byte("x")}}, false)
		return codeOf(err)
	}
	for name, took := range map[string]struct{ calls, bytes int }{"bytes": {1, maxWaitingBytes - 64}, "calls": {maxWaiting, 0}} {
		l.calls, l.bytes = took.calls, took.bytes
		if code := write(t.Context()); code != "unavailable" {
			t.Errorf("beyond the bound of %s: %q", name, code)
		}
		l.calls, l.bytes = took.calls-1, took.bytes-1
		if code := write(t.Context()); code != "" {
			t.Errorf("within the bound of %s: %q", name, code)
		}
		if l.calls != took.calls-1 || l.bytes != took.bytes-1 {
			t.Errorf("%d calls and %d bytes are left", l.calls, l.bytes)
		}
	}
	l.calls, l.bytes = 0, 0
	st.hangs.Store(true)
	ctx, leave := context.WithCancel(t.Context())
	answers := make(chan string)
	call := func() { answers <- write(ctx) }
	go call()
	<-st.begun
	go call()
	go call()
	for l.appends.Waiting() < 2 {
		time.Sleep(time.Millisecond)
	}
	leave()
	for range 3 {
		if code := <-answers; code != "unavailable" {
			t.Errorf("a caller that left: %q", code)
		}
	}
	if l.calls != 0 || l.bytes != 0 || l.appends.Waiting() != 0 {
		t.Errorf("%d calls and %d bytes are left, %d wait", l.calls, l.bytes, l.appends.Waiting())
	}
}

// stepwise is a store whose updates wait until step is closed.
type stepwise struct {
	store.Store
	begun, step chan struct{}
}

func (s stepwise) Update(ctx context.Context, fn func(store.Tx) error) error {
	s.begun <- struct{}{}
	<-s.step
	return s.Store.Update(ctx, fn)
}

// A damaged record of an id costs the calls that name the id, not those of the same transaction.
func TestDamagedIDCostsItsOwnCall(t *testing.T) {
	st := mem.New(mem.Options{})
	t.Cleanup(func() { _ = st.Close() })
	if _, _, err := openIdle(t, st, nil).Put(t.Context(), "l", logs.Change{}); err != nil {
		t.Fatal(err)
	}
	slow := stepwise{st, make(chan struct{}, 16), make(chan struct{})}
	e := openIdle(t, slow, func() time.Duration { return 0 })
	l := e.line("l")
	by, err := e.preparer(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	key := by.Settings().Key
	by.Prepare([]logs.Item{{ID: "bad"}}, false).Needs(func(h logs.Hash) {
		err = st.Update(t.Context(), func(tx store.Tx) error { return tx.Put(ids, prefixOf(&key)+string(h[:]), []byte("x")) })
	}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	answers := make(map[string]chan error)
	for i, id := range []string{"first", "good", "bad", "as good"} {
		answer := make(chan error, 1)
		answers[id] = answer
		go func() {
			_, err := e.Append(t.Context(), "l", []logs.Item{{ID: id, Payload: []byte("x")}}, false)
			answer <- err
		}()
		if i == 0 {
			<-slow.begun
		} else {
			for l.appends.Waiting() < i {
				time.Sleep(time.Millisecond)
			}
		}
	}
	close(slow.step)
	for id, answer := range answers {
		if err := <-answer; errors.Is(err, store.ErrUnreadable) != (id == "bad") || id != "bad" && err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// A log that is made while the duties look at the others keeps its line. The line knows of a commit of unknown outcome.
func TestNewLogIsNotForgotten(t *testing.T) {
	st := mem.New(mem.Options{})
	t.Cleanup(func() { _ = st.Close() })
	e := openIdle(t, st, func() time.Duration { return 0 })
	if _, _, err := e.Put(t.Context(), "l", logs.Change{}); err != nil {
		t.Fatal(err)
	}
	l := e.line("l")
	l.unsettled = 1
	e.forgetDeleted(map[string]bool{})
	if e.line("l") != l {
		t.Error("the line of a log that is there was dropped")
	}
}
