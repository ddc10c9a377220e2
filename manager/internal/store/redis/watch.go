package redis

import (
	"context"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// subscribe begins to receive what transactions publish, to wake this process's watchers. All topics share one channel of
// the server and one connection.
func (s *Store) subscribe(ctx context.Context) error {
	sub := s.rdb.Subscribe(ctx, s.ns+"notify")
	if _, err := sub.Receive(ctx); err != nil { // the server's confirmation
		_ = sub.Close()
		return unavailable(err)
	}
	context.AfterFunc(s.life.Context(), func() { _ = sub.Close() }) // ends a pending Receive
	s.life.Go(func() { s.receive(s.life.Context(), sub) })
	return nil
}

func (s *Store) receive(ctx context.Context, sub *goredis.PubSub) {
	for {
		m, err := sub.Receive(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			// The client reconnects at the next call. What was published meanwhile is lost, so all watchers must check.
			s.hub.NotifyAll()
			_ = store.Wait(ctx, 200*time.Millisecond)
			continue
		}
		switch m := m.(type) {
		case *goredis.Message:
			s.hub.Notify(m.Payload)
		case *goredis.Subscription: // subscribed again after a reconnect
			s.hub.NotifyAll()
		}
	}
}
