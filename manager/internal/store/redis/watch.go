package redis

import (
	"context"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/notify"
)

// topics receives what transactions publish and wakes this process's watchers. All topics share one channel of the
// server and one connection.
type topics struct {
	hub    notify.Hub
	sub    *goredis.PubSub
	cancel context.CancelFunc
	done   chan struct{}
}

func subscribe(ctx context.Context, rdb *goredis.Client, channel string) (*topics, error) {
	t := &topics{sub: rdb.Subscribe(ctx, channel), done: make(chan struct{})}
	if _, err := t.sub.Receive(ctx); err != nil { // the server's confirmation
		_ = t.sub.Close()
		return nil, unavailable(err)
	}
	// The subscription outlives Open's context and ends with close.
	loop, cancel := context.WithCancel(context.WithoutCancel(ctx))
	t.cancel = cancel
	go t.run(loop)
	return t, nil
}

func (t *topics) run(ctx context.Context) {
	defer close(t.done)
	for {
		m, err := t.sub.Receive(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			// The client reconnects at the next call. What was published meanwhile is lost, so all watchers must check.
			t.hub.NotifyAll()
			select {
			case <-time.After(200 * time.Millisecond):
			case <-ctx.Done():
				return
			}
			continue
		}
		switch m := m.(type) {
		case *goredis.Message:
			t.hub.Notify(m.Payload)
		case *goredis.Subscription: // subscribed again after a reconnect
			t.hub.NotifyAll()
		}
	}
}

func (t *topics) watch(topic string) store.Watcher { return t.hub.Watch(topic) }

func (t *topics) close() {
	t.cancel()
	_ = t.sub.Close() // ends a pending Receive
	<-t.done
}
