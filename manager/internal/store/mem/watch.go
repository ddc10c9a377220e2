package mem

import (
	"context"
	"slices"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Watch implements store.Store.
func (s *Store) Watch(topic string) store.Watcher { return s.hub.Watch(topic) }

// topics are what a transaction notifies. Most have one at most, which costs no
// slice.
type topics struct {
	first string
	more  []string
	n     int
}

func (t *topics) add(topic string) {
	if t.n > 0 && t.first == topic || slices.Contains(t.more, topic) {
		return
	}
	if t.n == 0 {
		t.first = topic
	} else {
		t.more = append(t.more, topic)
	}
	t.n++
}

func (s *Store) notify(t topics) {
	s.hub.Notify(t.first)
	for _, topic := range t.more {
		s.hub.Notify(topic)
	}
}

// notifyLater wakes the watchers of a transaction whose caller did not stay
// until it was durable. The goroutine ends with the fsync, or with the log.
func (s *Store) notifyLater(t topics, seq uint64) {
	s.mu.Lock()
	if s.closed { // who still waits for something does not get it from here
		s.unlock()
		return
	}
	s.background.Add(1) // while Close cannot have begun to wait
	s.unlock()
	go func() {
		defer s.background.Done()
		if s.await(context.Background(), seq) == nil {
			s.notify(t)
		}
	}()
}
