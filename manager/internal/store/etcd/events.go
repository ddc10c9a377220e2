package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// hear receives what all managers write below eventsKey, until the store's life ends: the clock, and the topics of commits.
// The client resumes a watch whose connection broke. A watch that ends because its member lost the leader, or because its
// revision was compacted, may have missed wake-ups, so all watchers must check.
func (s *Store) hear() {
	for next := s.watch(s.life, 0); store.Wait(s.life, 100*time.Millisecond) == nil; next = s.watch(s.life, next) {
		s.hub.NotifyAll()
	}
}

// watch returns the revision to resume at, 0 for the present one.
func (s *Store) watch(ctx context.Context, from int64) (next int64) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	next = from
	for resp := range s.c.Watch(ctx, s.eventsKey(), clientv3.WithPrefix(), clientv3.WithRev(from), clientv3.WithCreatedNotify()) {
		if resp.CompactRevision != 0 {
			return 0
		}
		if resp.Err() != nil {
			return next
		}
		if resp.Created {
			s.hub.NotifyAll()
		}
		next = max(next, resp.Header.Revision+1)
		for _, ev := range resp.Events {
			switch {
			case ev.Type != clientv3.EventTypePut:
			case string(ev.Kv.Key) == s.clockKey():
				s.clock.heard(ev.Kv)
			default:
				_, topics, _ := splitNote(ev.Kv.Value)
				for _, topic := range topics {
					s.hub.Notify(topic)
				}
			}
		}
	}
	return next
}
