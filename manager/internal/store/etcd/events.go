package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/oncegate/oncegate/manager/internal/store/notify"
)

// events receives what all managers write below eventsKey: the clock, and the topics of commits.
type events struct {
	s    *Store
	hub  notify.Hub
	done chan struct{}
}

func startEvents(ctx context.Context, s *Store) *events {
	e := &events{s: s, done: make(chan struct{})}
	go e.run(ctx)
	return e
}

func (e *events) wait() { <-e.done }

// run watches until ctx ends. The client resumes a watch whose connection broke. A watch that ends because its member
// lost the leader, or because its revision was compacted, may have missed wake-ups, so all watchers must check.
func (e *events) run(ctx context.Context) {
	defer close(e.done)
	var next int64
	for {
		next = e.watch(ctx, next)
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
		e.hub.NotifyAll()
	}
}

// watch returns the revision to resume at, 0 for the present one.
func (e *events) watch(ctx context.Context, from int64) (next int64) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	next = from
	for resp := range e.s.c.Watch(ctx, e.s.eventsKey(), clientv3.WithPrefix(), clientv3.WithRev(from), clientv3.WithCreatedNotify()) {
		if resp.CompactRevision != 0 {
			return 0
		}
		if resp.Err() != nil {
			return next
		}
		if resp.Created {
			e.hub.NotifyAll()
		}
		next = max(next, resp.Header.Revision+1)
		for _, ev := range resp.Events {
			switch {
			case ev.Type != clientv3.EventTypePut:
			case string(ev.Kv.Key) == e.s.clockKey():
				e.s.clock.heard(ev.Kv)
			default:
				_, topics, _ := splitNote(ev.Kv.Value)
				for _, topic := range topics {
					e.hub.Notify(topic)
				}
			}
		}
	}
	return next
}
