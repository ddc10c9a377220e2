package mem

import (
	"context"
	"slices"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Watch implements store.Store.
func (s *Store) Watch(topic string) store.Watcher { return s.hub.Watch(topic) }

// topics are the topics that a transaction notifies. Most transactions have at most one, which needs no slice.
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

// notifyLater wakes the watchers for a transaction whose caller stopped waiting before it was durable. Its goroutine
// ends with the fsync, or with the log.
func (s *Store) notifyLater(t topics, seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed { // a closed store wakes no watchers
		return
	}
	s.background.Go(func() { // Close has not begun to wait, because closed is false
		if s.await(context.Background(), seq) == nil {
			s.notify(t)
		}
	})
}
