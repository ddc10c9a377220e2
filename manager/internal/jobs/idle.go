package jobs

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// idleClaims are the claims of this manager that wait for work: a line for each
// topic that they wait for. A wake-up of the store goes to one claim of the line,
// the one that was not woken for the longest time, and not to all of them. How
// many jobs came with it nobody knows; so a claim that was woken and got something
// wakes two more, and one that got nothing wakes nobody. A claim that was woken
// and leaves before it has looked passes that on. So at most two claims look in
// vain for each job, and none stays idle while there is work that it may do.
type idleClaims struct {
	q     *Queue
	mu    sync.Mutex
	lines map[string]*line
}

// line is the claims that wait for a topic.
type line struct {
	watcher store.Watcher
	waiting *list.List // of *idleClaim, the one to be woken next first
	watched bool       // by a goroutine, from when the first one has to wait
	empty   chan struct{}
}

// idleClaim is a place in the lines of a claim's topics.
type idleClaim struct {
	topics []string
	places []*list.Element
	wake   chan struct{}
	woken  []bool // by topic: woken, and has not passed it on or found nothing since
}

// enter gives a claim its places. That comes before its first look, so that
// nothing is missed.
func (c *idleClaims) enter(functions []string) *idleClaim {
	topics := []string{topicAny}
	if len(functions) > 0 {
		topics = make([]string, len(functions))
		for i, f := range functions {
			topics[i] = topicFunction + f
		}
	}
	w := &idleClaim{topics: topics, places: make([]*list.Element, len(topics)), wake: make(chan struct{}, 1), woken: make([]bool, len(topics))}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, topic := range topics {
		l := c.lines[topic]
		if l == nil {
			l = &line{watcher: c.q.store.Watch(topic), waiting: list.New(), empty: make(chan struct{})}
			c.lines[topic] = l
		}
		w.places[i] = l.waiting.PushBack(w)
	}
	return w
}

// wait blocks until the claim is woken, for at most d.
func (c *idleClaims) wait(ctx context.Context, w *idleClaim, d time.Duration) error {
	c.mu.Lock()
	for i, topic := range w.topics {
		w.woken[i] = w.woken[i] && len(w.wake) > 0 // what it looked for was not there
		l := c.lines[topic]
		if l.watched {
			continue
		}
		if l.watched = c.q.spawn(func() { c.watch(topic, l) }); !l.watched {
			c.mu.Unlock()
			return ErrClosed
		}
	}
	c.mu.Unlock()
	return c.q.wait(ctx, w.wake, d)
}

// watch wakes the claims of a line until there are none. Now and then it wakes
// one without a reason, in case a wake-up was lost, and when a job falls due.
func (c *idleClaims) watch(topic string, l *line) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		t.Reset(c.q.due.in(c.q.poll()))
		select {
		case <-l.watcher.C():
		case <-t.C:
		case <-l.empty:
			return
		case <-c.q.base.Done():
			return
		}
		c.mu.Lock()
		l.next(topic)
		c.mu.Unlock()
	}
}

// next wakes one claim of the line.
func (l *line) next(topic string) {
	e := l.waiting.Front()
	if e == nil {
		return
	}
	l.waiting.MoveToBack(e)
	w := e.Value.(*idleClaim)
	for i := range w.topics {
		if w.topics[i] == topic {
			w.woken[i] = true
		}
	}
	select {
	case w.wake <- struct{}{}:
	default: // it was woken and has not looked yet
	}
}

// leave gives the places up, and wakes others: two in each line in which the claim
// was woken if it got something, else the one that looks instead of it.
func (c *idleClaims) leave(w *idleClaim, got bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, topic := range w.topics {
		l := c.lines[topic]
		l.waiting.Remove(w.places[i])
		if l.waiting.Len() == 0 {
			delete(c.lines, topic)
			l.watcher.Stop()
			close(l.empty)
			continue
		}
		if w.woken[i] {
			l.next(topic)
		}
		if w.woken[i] && got {
			l.next(topic)
		}
	}
}
