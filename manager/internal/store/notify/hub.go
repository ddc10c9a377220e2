// Package notify wakes watchers inside one process: it maps topics to the channels that wait for them. Engines call it
// for their own commits, or when their server notifies them.
package notify

import (
	"sync"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Hub delivers wake-ups to the watchers of a topic. The zero value is ready to
// use. All methods are safe for concurrent use.
type Hub struct {
	mu     sync.RWMutex
	topics map[string]map[*watcher]struct{}
}

type watcher struct {
	hub   *Hub
	topic string
	c     chan struct{}
}

// Watch subscribes to a topic; see store.Store.Watch.
func (h *Hub) Watch(topic string) store.Watcher {
	w := &watcher{hub: h, topic: topic, c: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.topics == nil {
		h.topics = make(map[string]map[*watcher]struct{})
	}
	set := h.topics[topic]
	if set == nil {
		set = make(map[*watcher]struct{})
		h.topics[topic] = set
	}
	set[w] = struct{}{}
	return w
}

// Notify wakes the watchers of topic and never blocks. A watcher that has not consumed its last wake-up gets no second
// one.
func (h *Hub) Notify(topic string) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for w := range h.topics[topic] {
		w.wake()
	}
}

// NotifyAll wakes every watcher, for when wake-ups may have been lost.
func (h *Hub) NotifyAll() {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, set := range h.topics {
		for w := range set {
			w.wake()
		}
	}
}

func (w *watcher) wake() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

func (w *watcher) C() <-chan struct{} { return w.c }

func (w *watcher) Stop() {
	h := w.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	set := h.topics[w.topic]
	delete(set, w)
	if len(set) == 0 {
		delete(h.topics, w.topic)
	}
}
