package main

import (
	"bytes"
	"context"
	"crypto/sha1"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/rueidis"

	"github.com/oncegate/oncegate/manager/client"
)

// logName is what each system calls its log.
const logName = "bench"

// entryPayload is what an entry carries.
var entryPayload = bytes.Repeat([]byte("x"), 256)

// appender is a connected client of a log.
type appender struct {
	// append appends an entry for each id durably.
	append func(ctx context.Context, ids []string) error
	close  func()
}

// compareLogs measures durable appends to a log.
func compareLogs(ctx context.Context, s settings) error {
	t, err := s.newTable("logs", "durable entries/s", "client", "server")
	if err != nil {
		return err
	}
	defer t.stop()
	t.notes = moduleVersion("nats-server", "github.com/nats-io/nats-server/v2") + "; " + version(ctx, "redis-server", "--version")
	t.columns = []column{
		{"1 caller", "appends", 1, 1},
		{"1 caller, 16 at a time", "appends", 1, 16},
		{"64 callers, one client", "appends", 64, 1},
		{"64 callers, one client, 16 at a time", "appends", 64, 16},
		{"64 callers, a connection each", "appendsApart", 64, 1},
		{"64 callers, a connection each, 16 at a time", "appendsApart", 64, 16},
	}
	add := func(name string, pid int, open func(context.Context) (*appender, error)) {
		t.add(&row{name: name, own: name == "Oncegate", cpu: []cpuTime{ownCPU, cpuOf(pid)},
			load: func(c column) *load { return s.load(c, system{log: open}) }})
	}
	p, err := t.startManager(ctx, "--store", "wal", "--data-dir", filepath.Join(t.dir, "wal"))
	if err != nil {
		return err
	}
	c, err := client.New(client.Options{URL: "http://" + p.URL})
	if err != nil {
		return err
	}
	log, err := c.OpenLog(logName)
	if err != nil {
		return err
	}
	if _, err := log.Create(ctx, client.LogConfig{MaxKeys: 16 << 20, MaxBytes: 1 << 32}); err != nil {
		return err
	}
	add("Oncegate", p.PID(), func(ctx context.Context) (*appender, error) { return openWriter(ctx, log) })
	if err := t.addJetStream(ctx, add); err != nil {
		return err
	}
	if err := t.addStreams(ctx, add); err != nil {
		return err
	}
	return t.measure(ctx)
}

// appends lets callers append for a time, with one client, or apart with one each.
func appends(d time.Duration, c column, open func(context.Context) (*appender, error)) *load {
	return &load{run: func(ctx context.Context) (int, error) {
		all := make([]*appender, c.callers)
		for i := range all {
			if c.what == "appends" && i > 0 {
				all[i] = all[0]
				continue
			}
			a, err := open(ctx)
			if err != nil {
				return 0, err
			}
			defer a.close()
			all[i] = a
		}
		run := runName()
		n, err := timedCalls(ctx, d, c.callers, func(ctx context.Context, caller, n int) error {
			return all[caller].append(ctx, keysOf(run, caller, n, c.batch))
		})
		return n * c.batch, err
	}}
}

// openWriter is a client of a manager's log.
func openWriter(ctx context.Context, log *client.Log) (*appender, error) {
	w, err := log.OpenIdempotentWriter(ctx, client.WriterOptions{})
	if err != nil {
		return nil, err
	}
	return &appender{close: func() { _ = w.Close(ctx) }, append: func(ctx context.Context, ids []string) error {
		if len(ids) == 1 {
			return w.Write(ctx, client.WriteMessage{Payload: entryPayload, IdempotencyID: ids[0]}).Err
		}
		results := make([]<-chan client.WriteResult, len(ids))
		for i, id := range ids {
			results[i] = w.WriteAsync(ctx, client.WriteMessage{Payload: entryPayload, IdempotencyID: id})
		}
		for _, result := range results {
			if r := <-result; r.Err != nil {
				return r.Err
			}
		}
		return nil
	}}, nil
}

// serveNATS is the child process with a NATS server that syncs each message before it answers.
func serveNATS(ctx context.Context, dir, listen string) error {
	addr, err := netip.ParseAddrPort(listen)
	if err != nil {
		return err
	}
	s, err := natsserver.NewServer(&natsserver.Options{Host: addr.Addr().String(), Port: int(addr.Port()), JetStream: true, StoreDir: dir,
		SyncAlways: true, NoLog: true, NoSigs: true})
	if err != nil {
		return err
	}
	s.Start()
	defer s.Shutdown()
	<-ctx.Done()
	return nil
}

type addLog func(name string, pid int, open func(context.Context) (*appender, error))

// addJetStream starts a NATS server with a stream in files, which knows the ids of five minutes.
func (t *table) addJetStream(ctx context.Context, add addLog) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p, err := t.startProgram(ctx, self, "nats", filepath.Join(t.dir, "nats"))
	if err != nil {
		return err
	}
	connect := func() (jetstream.JetStream, func(), error) {
		nc, err := nats.Connect("nats://" + p.URL)
		if err != nil {
			return nil, nil, err
		}
		js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(64*128))
		return js, nc.Close, err
	}
	js, stop, err := connect()
	if err != nil {
		return err
	}
	defer stop()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: logName, Subjects: []string{logName}, Storage: jetstream.FileStorage,
		Duplicates: 5 * time.Minute}); err != nil {
		return err
	}
	add("NATS JetStream, sync_interval: always, Nats-Msg-Id", p.PID(), func(context.Context) (*appender, error) {
		js, stop, err := connect()
		if err != nil {
			return nil, err
		}
		return &appender{close: stop, append: func(ctx context.Context, ids []string) error {
			if len(ids) == 1 {
				_, err := js.Publish(ctx, logName, entryPayload, jetstream.WithMsgID(ids[0]))
				return err
			}
			acks := make([]jetstream.PubAckFuture, len(ids))
			for i, id := range ids {
				var err error
				if acks[i], err = js.PublishAsync(logName, entryPayload, jetstream.WithMsgID(id)); err != nil {
					return err
				}
			}
			for _, ack := range acks {
				select {
				case <-ack.Ok():
				case err := <-ack.Err():
					return err
				}
			}
			return nil
		}}, nil
	})
	return nil
}

// appendOnce does at Redis what a log does: the same id again gets the entry of the first time.
const appendOnce = `local known = redis.call('GET', KEYS[2])
if known then return known end
local entry = redis.call('XADD', KEYS[1], '*', 'id', ARGV[1], 'payload', ARGV[2])
redis.call('SET', KEYS[2], entry, 'PX', 300000)
return entry`

// addStreams starts Redis with appendfsync always.
func (t *table) addStreams(ctx context.Context, add addLog) error {
	// No rewrite of the file in the middle of a round.
	srv, err := t.startRedis(ctx, "--auto-aof-rewrite-percentage", "0")
	if err != nil {
		return err
	}
	open := func(build func(c rueidis.Client, id string) rueidis.Completed) func(context.Context) (*appender, error) {
		return func(ctx context.Context) (*appender, error) {
			c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{srv.URL}, DisableCache: true, AlwaysPipelining: true})
			if err != nil {
				return nil, err
			}
			if err := c.Do(ctx, c.B().ScriptLoad().Script(appendOnce).Build()).Error(); err != nil {
				c.Close()
				return nil, err
			}
			return &appender{close: c.Close, append: func(ctx context.Context, ids []string) error {
				commands := make([]rueidis.Completed, len(ids))
				for i, id := range ids {
					commands[i] = build(c, id)
				}
				for _, r := range c.DoMulti(ctx, commands...) {
					if err := r.Error(); err != nil {
						return err
					}
				}
				return nil
			}}, nil
		}
	}
	sha := fmt.Sprintf("%x", sha1.Sum([]byte(appendOnce)))
	payload := rueidis.BinaryString(entryPayload)
	add("Redis Streams, appendfsync always, XADD and SET of the id in a script", srv.PID(), open(func(c rueidis.Client, id string) rueidis.Completed {
		return c.B().Evalsha().Sha1(sha).Numkeys(2).Key(logName, id).Arg(id, payload).Build()
	}))
	add("Redis Streams, appendfsync always, XADD alone", srv.PID(), open(func(c rueidis.Client, id string) rueidis.Completed {
		return c.B().Xadd().Key(logName).Id("*").FieldValue().FieldValue("id", id).FieldValue("payload", payload).Build()
	}))
	return nil
}
