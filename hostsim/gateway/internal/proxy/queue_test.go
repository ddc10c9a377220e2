package proxy

import (
	"context"
	"errors"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
)

func TestQueueKeepsOrderAndCountsBytes(t *testing.T) {
	q := newQueue()
	s := &sink{q: q}
	s.Headers(hostsim.H("a", "b"), false)
	s.Data([]byte("12345"), false)
	s.Trailers(hostsim.H("t", "1"))

	room := make(chan error, 1)
	go func() { room <- q.awaitRoom(t.Context(), 5) }()
	want := []eventKind{eventHeaders, eventData, eventTrailers}
	for i, k := range want {
		select {
		case err := <-room:
			if i < 2 {
				t.Fatalf("room before the bytes were taken (%v)", err)
			}
			room <- err
		default:
		}
		e, err := q.take(t.Context())
		if err != nil || e.kind != k || e.end != (i == 2) {
			t.Fatalf("event %d: %+v, %v", i, e, err)
		}
	}
	if err := <-room; err != nil {
		t.Fatal(err)
	}
}

// What is queued is delivered before the end of the context is noticed: an answer
// that is complete is not lost to a client's quick goodbye.
func TestQueueDeliversBeforeItGivesUp(t *testing.T) {
	q := newQueue()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errClientGone)
	q.put(event{kind: eventData, data: []byte("x"), end: true})
	if e, err := q.take(ctx); err != nil || !e.end {
		t.Fatalf("%+v, %v", e, err)
	}
	if _, err := q.take(ctx); !errors.Is(err, errClientGone) {
		t.Fatalf("empty queue: %v", err)
	}
	q.put(event{kind: eventData, data: []byte("x")})
	if err := q.awaitRoom(ctx, 1); !errors.Is(err, errClientGone) {
		t.Fatalf("full queue: %v", err)
	}
}
