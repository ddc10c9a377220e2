package mem

import (
	"context"

	"github.com/oncegate/oncegate/manager/store"
)

// Watch implements store.Store.
func (s *Store) Watch(topic string) store.Watcher { return s.hub.Watch(topic) }

func (s *Store) notify(topics []string) {
	for _, topic := range topics {
		s.hub.Notify(topic)
	}
}

// notifyLater wakes the watchers of a transaction whose caller did not stay
// until it was durable. The goroutine ends with the fsync, or with the log.
func (s *Store) notifyLater(topics []string, seq uint64) {
	s.background.Add(1)
	go func() {
		defer s.background.Done()
		if s.await(context.Background(), seq) == nil {
			s.notify(topics)
		}
	}()
}
