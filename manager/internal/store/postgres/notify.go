package postgres

import (
	"context"
	"encoding/hex"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/notify"
)

const (
	// notifyQueue bounds the topics that wait to be sent. A full queue drops wake-ups to other managers, whose watchers
	// also check on a timer of their own.
	notifyQueue = 4096
	// notifyBatch bounds the topics of one statement.
	notifyBatch = 256
	// notifyEvery is the least time between two statements, unless the second is full. A statement for each commit costs
	// the server, and the managers that listen, more than the wake-ups are worth.
	notifyEvery = 5 * time.Millisecond
	// notifyLast bounds a statement during Close.
	notifyLast = time.Second
	// notifyBytes bounds a notification: the server takes less than 8000 bytes.
	notifyBytes = 7900
	// topicsEnd separates the topics of a notification.
	topicsEnd = "."
)

// notifier sends and receives wake-ups. The server holds a database-wide lock while it commits a transaction with
// NOTIFY, so NOTIFY inside the transactions would serialize their commits. Instead one goroutine collects the topics
// and sends them after the commit.
type notifier struct {
	hub     notify.Hub
	pool    *pgxpool.Pool
	channel string
	conn    atomic.Pointer[pgx.Conn] // that listens
	queue   chan string
}

// startNotifier begins to listen, and to send until life ends.
func startNotifier(ctx context.Context, life *batch.Life, pool *pgxpool.Pool, channel string) (*notifier, error) {
	n := &notifier{pool: pool, channel: channel, queue: make(chan string, notifyQueue)}
	conn, err := n.listen(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	life.Go(func() { n.receive(life.Context(), conn) })
	life.Go(func() { n.sendLoop(life.Context()) })
	return n, nil
}

// listen opens a separate connection, outside the pool.
func (n *notifier) listen(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, n.pool.Config().ConnConfig.Copy())
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{n.channel}.Sanitize()); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	n.conn.Store(conn)
	return conn, nil
}

// reconnect makes the notifier listen on a new connection, which may lead to another server.
func (n *notifier) reconnect() { _ = n.conn.Load().PgConn().Conn().Close() }

func (n *notifier) receive(ctx context.Context, conn *pgx.Conn) {
	for {
		if conn != nil {
			m, err := conn.WaitForNotification(ctx)
			if err == nil {
				for name := range strings.SplitSeq(m.Payload, topicsEnd) {
					if topic, err := hex.DecodeString(name); err == nil {
						n.hub.Notify(string(topic))
					}
				}
				continue
			}
			bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			_ = conn.Close(bye)
			cancel()
			conn = nil
		}
		if store.Wait(ctx, 200*time.Millisecond) != nil {
			return
		}
		attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
		conn, _ = n.listen(attempt)
		cancel()
		// Notifications sent while nobody listened are lost, so all watchers must check.
		n.hub.NotifyAll()
	}
}

// send wakes this process's watchers immediately and the other managers' soon.
func (n *notifier) send(topics []string) {
	for _, topic := range topics {
		n.hub.Notify(topic)
		select {
		case n.queue <- hex.EncodeToString([]byte(topic)):
		default:
		}
	}
}

// sendLoop sends what is in the queue, at the end as well: a manager that is restarted must not let the others' callers
// wait for the outcomes that it recorded last.
func (n *notifier) sendLoop(ctx context.Context) {
	pace := time.NewTimer(0)
	defer pace.Stop()
	for stopping := false; !stopping || len(n.queue) > 0; {
		batch := make(map[string]struct{})
		select {
		case <-ctx.Done():
			stopping = true
		case topic := <-n.queue:
			batch[topic] = struct{}{}
		}
		for paced := stopping; len(batch) < notifyBatch && !paced; {
			select {
			case topic := <-n.queue:
				batch[topic] = struct{}{}
			case <-pace.C:
				paced = true
			case <-ctx.Done():
				stopping, paced = true, true
			}
		}
		for more := true; more && len(batch) < notifyBatch; {
			select {
			case topic := <-n.queue:
				batch[topic] = struct{}{}
			default:
				more = false
			}
		}
		pace.Reset(notifyEvery)
		if err := n.sendBatch(ctx, batch); err != nil && stopping {
			return
		}
	}
}

func (n *notifier) sendBatch(ctx context.Context, batch map[string]struct{}) error {
	if len(batch) == 0 {
		return nil
	}
	var payloads []string
	var b strings.Builder
	for topic := range batch {
		if b.Len() > 0 && b.Len()+len(topicsEnd)+len(topic) > notifyBytes {
			payloads = append(payloads, b.String())
			b.Reset()
		}
		if b.Len() > 0 {
			b.WriteString(topicsEnd)
		}
		b.WriteString(topic)
	}
	payloads = append(payloads, b.String())
	attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-attempt.Done():
		case <-time.After(notifyLast):
			cancel()
		}
	})()
	// A failure costs only speed: watchers also check on a timer of their own. So this transaction waits neither for
	// the disk nor for a standby.
	_, err := n.pool.Exec(attempt, `SELECT pg_notify($1, p) FROM set_config('synchronous_commit', 'off', true), unnest($2::text[]) AS p`,
		n.channel, payloads)
	return err
}
