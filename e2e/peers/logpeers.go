package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/rueidis"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// logName is what each system calls its log.
const logName = "bench"

var entryPayload = bytes.Repeat([]byte("x"), entryBytes)

// entryID is another id for each entry.
func entryID(run string, caller, n int) string {
	var b [32]byte
	return string(appendKey(b[:0], run, caller, n))
}

// addManager starts a manager on the WAL engine.
func (l *logRounds) addManager(ctx context.Context) error {
	p, err := startManager(l.dir, l.manager, "127.0.0.1:0", "--store", "wal")
	if err != nil {
		return err
	}
	l.stops = append(l.stops, p.stop)
	c, err := client.New(client.Options{URL: "http://" + p.addr})
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
	const name = "Oncegate"
	pid := p.cmd.Process.Pid
	l.add(name, groupShared, pid, func(ctx context.Context, d time.Duration, callers, batch int) (float64, error) {
		w, err := log.OpenIdempotentWriter(ctx, client.WriterOptions{})
		if err != nil {
			return 0, err
		}
		defer w.Close(ctx)
		run := runName()
		return timedCalls(ctx, d, callers, func(ctx context.Context, caller, n int) error {
			if batch == 1 {
				r := w.Write(ctx, client.WriteMessage{Payload: entryPayload, IdempotencyID: entryID(run, caller, n)})
				return r.Err
			}
			results := make([]<-chan client.WriteResult, batch)
			for i := range results {
				results[i] = w.WriteAsync(ctx, client.WriteMessage{Payload: entryPayload, IdempotencyID: entryID(run, caller, n*batch+i)})
			}
			for _, result := range results {
				if r := <-result; r.Err != nil {
					return r.Err
				}
			}
			return nil
		})
	})
	l.add(name, groupLean, pid, func(ctx context.Context, d time.Duration, callers, batch int) (float64, error) {
		rate, _, err := leanClients(ctx, d, callers, p.addr, newLogCalls(batch))
		return rate, err
	})
	return nil
}

// serveNATS is the child process with a NATS server that syncs each message before it answers.
func serveNATS(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return usageError("usage: peers nats DIR")
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: args[0],
		SyncAlways: true, NoLog: true, NoSigs: true})
	if err != nil {
		return err
	}
	s.Start()
	defer s.Shutdown()
	if !s.ReadyForConnections(readyTimeout) {
		return fmt.Errorf("the NATS server does not accept connections")
	}
	line, err := json.Marshal(map[string]string{"msg": "listening", "listener": "api", "addr": s.Addr().String()})
	if err != nil {
		return err
	}
	fmt.Println(string(line))
	<-ctx.Done()
	return nil
}

// addJetStream starts a NATS server with a stream in files, which knows the ids of five minutes.
func (l *logRounds) addJetStream(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p, err := startLogged("", self, "nats", filepath.Join(l.dir, "nats"))
	if err != nil {
		return err
	}
	l.stops = append(l.stops, p.stop)
	nc, err := nats.Connect("nats://" + p.addr)
	if err != nil {
		return err
	}
	l.stops = append(l.stops, nc.Close)
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(64*128))
	if err != nil {
		return err
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: logName, Subjects: []string{logName}, Storage: jetstream.FileStorage,
		Duplicates: 5 * time.Minute}); err != nil {
		return err
	}
	const name = "NATS JetStream, sync_interval: always, Nats-Msg-Id"
	pid := p.cmd.Process.Pid
	l.add(name, groupShared, pid, func(ctx context.Context, d time.Duration, callers, batch int) (float64, error) {
		run := runName()
		return timedCalls(ctx, d, callers, func(ctx context.Context, caller, n int) error {
			if batch == 1 {
				_, err := js.Publish(ctx, logName, entryPayload, jetstream.WithMsgID(entryID(run, caller, n)))
				return err
			}
			acks := make([]jetstream.PubAckFuture, batch)
			for i := range acks {
				var err error
				if acks[i], err = js.PublishAsync(logName, entryPayload, jetstream.WithMsgID(entryID(run, caller, n*batch+i))); err != nil {
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
		})
	})
	l.add(name, groupLean, pid, func(ctx context.Context, d time.Duration, callers, batch int) (float64, error) {
		rate, _, err := leanClients(ctx, d, callers, p.addr, &natsPublishes{run: runName(), batch: batch})
		return rate, err
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
func (l *logRounds) addStreams(ctx context.Context) error {
	addr, err := freeAddr()
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	// No rewrite of the file in the middle of a round.
	srv, err := servers.StartRedis(ctx, "--bind", host, "--port", port, "--auto-aof-rewrite-percentage", "0")
	if err != nil {
		return err
	}
	l.stops = append(l.stops, srv.Close)
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true, AlwaysPipelining: true})
	if err != nil {
		return err
	}
	l.stops = append(l.stops, c.Close)
	sha, err := c.Do(ctx, c.B().ScriptLoad().Script(appendOnce).Build()).ToString()
	if err != nil {
		return err
	}
	for _, once := range []bool{true, false} {
		name := "Redis Streams, appendfsync always, XADD alone"
		if once {
			name = "Redis Streams, appendfsync always, XADD and SET of the id in a script"
		}
		command := func(run string, caller, n int) rueidis.Completed {
			id := entryID(run, caller, n)
			if once {
				return c.B().Evalsha().Sha1(sha).Numkeys(2).Key(logName, id).Arg(id, rueidis.BinaryString(entryPayload)).Build()
			}
			return c.B().Xadd().Key(logName).Id("*").FieldValue().FieldValue("id", id).FieldValue("payload", rueidis.BinaryString(entryPayload)).Build()
		}
		l.add(name, groupShared, srv.PID(), func(ctx context.Context, d time.Duration, callers, batch int) (float64, error) {
			run := runName()
			rate, err := timedCalls(ctx, d, callers, func(ctx context.Context, caller, n int) error {
				if batch == 1 {
					return c.Do(ctx, command(run, caller, n)).Error()
				}
				commands := make([]rueidis.Completed, batch)
				for i := range commands {
					commands[i] = command(run, caller, n*batch+i)
				}
				for _, r := range c.DoMulti(ctx, commands...) {
					if err := r.Error(); err != nil {
						return err
					}
				}
				return nil
			})
			return rate, err
		})
		l.add(name, groupLean, srv.PID(), func(ctx context.Context, d time.Duration, callers, batch int) (float64, error) {
			p := &streamAdds{run: runName(), batch: batch}
			if once {
				p.sha = sha
			}
			rate, _, err := leanClients(ctx, d, callers, addr, p)
			return rate, err
		})
	}
	return nil
}

// appendNumber appends a number in decimal digits.
func appendNumber(dst []byte, n int) []byte { return strconv.AppendInt(dst, int64(n), 10) }
