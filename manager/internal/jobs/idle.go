package jobs

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// idleClaims holds the claims of this manager that wait for work, with a line for each topic that they wait for. A
// wake-up of the store goes to one claim of the line, the one that was not woken for the longest time. A wake-up does
// not say how many jobs there are. So a woken claim that got a job wakes two more, and one that got none wakes no
// other. A woken claim that returns before it has searched passes the wake-up on. So for each job at most two claims
// search without a result, and no claim stays idle while there is work for it.
type idleClaims struct {
	q     *Queue
	mu    sync.Mutex
	lines map[string]*line
	// timers wake claims when a function gets a token of its rate; nil once the queue is closed.
	timers map[string]*tokenTimer
}

// line holds the claims that wait for a topic.
type line struct {
	watcher store.Watcher
	waiting *list.List // of *idleClaim; the first is woken next
	watched bool       // by a goroutine, from the moment at which a claim has to wait
	empty   chan struct{}
}

// idleClaim is a claim's place in the lines of its topics.
type idleClaim struct {
	topics []string
	places []*list.Element
	wake   chan struct{}
	woken  []bool // by topic: woken, and has since neither passed that on nor found nothing
}

// enter adds a claim to its lines. It must be called before the claim's first search, so that no wake-up is missed.
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
		w.woken[i] = w.woken[i] && len(w.wake) > 0 // what it searched for was not there
		l := c.lines[topic]
		if l.watched {
			continue
		}
		if l.watched = c.q.life.Go(func() { c.watch(topic, l) }); !l.watched {
			c.mu.Unlock()
			return ErrClosed
		}
	}
	c.mu.Unlock()
	return c.q.wait(ctx, w.wake, d)
}

// watch wakes the claims of a line until there are none. It also wakes one from time to time, in case a wake-up was
// lost, and when a job is due. On a shared store the search after a wake-up may pass by the job, so another one follows.
func (c *idleClaims) watch(topic string, l *line) {
	t := time.NewTimer(0)
	defer t.Stop()
	again := time.Now().Add(c.q.again) // when the search after a wake-up is repeated; zero if it was
	for {
		pause := c.q.poll()
		if !again.IsZero() {
			pause = min(pause, time.Until(again))
		}
		t.Reset(c.q.due.in(pause))
		select {
		case <-l.watcher.C():
			if again.IsZero() {
				again = time.Now().Add(c.q.again)
			}
		case <-t.C:
			if !time.Now().Before(again) {
				again = time.Time{}
			}
		case <-l.empty:
			return
		case <-c.q.base.Done():
			return
		}
		c.mu.Lock()
		l.wakeNext(topic)
		c.mu.Unlock()
	}
}

// wakeNext wakes one claim of the line.
func (l *line) wakeNext(topic string) {
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
	default: // it was woken and has not searched yet
	}
}

// leave removes the claim from its lines and wakes others. In each line in which the claim was woken it wakes two if
// the claim got a job, and otherwise one that searches instead.
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
			l.wakeNext(topic)
		}
		if w.woken[i] && got {
			l.wakeNext(topic)
		}
	}
}
