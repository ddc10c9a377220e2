package notify

import (
	"sync"
	"testing"
)

func pending(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestWakesOnlyTheTopicAndMerges(t *testing.T) {
	var h Hub
	h.Notify("a") // nobody watches
	a1, a2, b := h.Watch("a"), h.Watch("a"), h.Watch("b")
	h.Notify("a")
	h.Notify("a")
	if !pending(a1.C()) || !pending(a2.C()) {
		t.Fatal("a watcher of the topic was not woken")
	}
	if pending(a1.C()) {
		t.Fatal("two wake-ups did not merge")
	}
	if pending(b.C()) {
		t.Fatal("a watcher of another topic was woken")
	}
	a1.Stop()
	a1.Stop()
	h.NotifyAll()
	if pending(a1.C()) {
		t.Fatal("a stopped watcher was woken")
	}
	if !pending(a2.C()) || !pending(b.C()) {
		t.Fatal("NotifyAll left a watcher out")
	}
	a2.Stop()
	b.Stop()
	if len(h.topics) != 0 {
		t.Fatalf("topics without watchers remain: %v", h.topics)
	}
}

func TestHubIsSafeForConcurrentUse(t *testing.T) {
	var h Hub
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				w := h.Watch("t")
				h.Notify("t")
				if !pending(w.C()) {
					t.Error("own notification was lost")
				}
				w.Stop()
			}
		})
	}
	wg.Wait()
}
