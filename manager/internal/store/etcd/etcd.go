package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/etcd/dsn"
	"github.com/oncegate/oncegate/manager/internal/store/internal/calls"
	"github.com/oncegate/oncegate/manager/internal/store/internal/front"
	"github.com/oncegate/oncegate/manager/internal/store/internal/remote"
	"github.com/oncegate/oncegate/manager/internal/store/notify"
)

const (
	formatVersion = "1"
	// maxRuns bounds how often an Update or View runs its function before ErrConflict.
	maxRuns = 200
	// mostPause bounds the time between two attempts.
	mostPause = 64 * time.Millisecond
	// patience is the default of Options.Patience. A new leader takes a second or two.
	patience = 4500 * time.Millisecond
)

// Options configure Open.
type Options struct {
	// DSN: see package dsn.
	DSN string
	// Logger receives warnings; slog.Default() when nil.
	Logger *slog.Logger
	// Wall is this machine's wall clock; time.Now when nil. The store's time begins with it and follows it slowly. While
	// this manager keeps the clock, it is Tx.Wall (see the package documentation).
	Wall func() time.Time
	// Patience bounds how long a call waits for a cluster that does not answer; 4.5 s when zero. One request waits for a
	// third of it, and the next one goes to another member.
	Patience time.Duration
	// Used makes Open fail with store.ErrUnused, and write nothing, when the prefix is empty.
	Used bool
}

// Store implements store.Store.
type Store struct {
	c      *clientv3.Client
	kv     pb.KVClient // of c
	prefix string
	log    *slog.Logger
	clock  *clock
	hub    notify.Hub
	notes  notes
	lens   remote.Lengths
	steps  steps
	recent recent
	ahead  ahead
	fronts front.Fronts[string]

	reads, writes batcher
	fixed         batcher       // reads at a revision
	patience      time.Duration // of Options
	work          *batch.Life
	life          context.Context // of work

	claims remote.Claims

	calls calls.Calls
	remote.Lasting
}

// Open connects, checks the format of the stored data, takes part in keeping the clock, and watches for wake-ups.
func Open(ctx context.Context, o Options) (*Store, error) {
	cfg, err := dsn.Parse(o.DSN)
	if err != nil {
		return nil, fmt.Errorf("etcd store: DSN: %w", err)
	}
	tlsConfig, err := cfg.TLS()
	if err != nil {
		return nil, fmt.Errorf("etcd store: DSN: %w", err)
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Wall == nil {
		o.Wall = time.Now
	}
	o.Patience = cmp.Or(o.Patience, patience)
	answerWithin := o.Patience / 3
	work := batch.NewLife(ctx)
	life := work.Context()
	config := clientv3.Config{
		Endpoints: cfg.Endpoints, TLS: tlsConfig, Context: life,
		DialTimeout: o.Patience, DialKeepAliveTime: 6 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
		MaxUnaryRetries: 2, MaxCallSendMsgSize: maxMessage, Logger: zap.NewNop(),
	}
	c, err := connect(config, work, cfg.User, cfg.Password, answerWithin)
	if err != nil {
		work.End()
		return nil, unavailable(err)
	}
	s := &Store{c: c, kv: clientv3.RetryKVClient(c), prefix: cfg.Prefix, log: o.Logger, patience: o.Patience, work: work, life: life}
	s.notes.s, s.notes.renewing = s, make(chan struct{}, 1)
	s.reads.begin(work, answerWithin, maxOps-1, s.read)
	s.fixed.begin(work, answerWithin, maxOps-1, s.read)
	s.writes.begin(work, answerWithin, maxRequest, s.write)
	if err := s.start(ctx, cfg, o); err != nil {
		work.End()
		_ = c.Close()
		if errors.Is(err, store.ErrUnavailable) && ctx.Err() == nil {
			if why := probe(ctx, cfg, tlsConfig); why != nil {
				err = fmt.Errorf("%w: %w", err, why)
			}
		}
		return nil, err
	}
	return s, nil
}

// connect logs in on a connection of its own, which has no token. etcd 3.4 refuses a login that comes with a token that a
// restart of the member has ended, and the client would send that one forever.
func connect(config clientv3.Config, work *batch.Life, user, password string, answerWithin time.Duration) (*clientv3.Client, error) {
	if user == "" {
		return clientv3.New(config)
	}
	login, err := clientv3.New(config) // ends with the context
	if err != nil {
		return nil, err
	}
	config.Username, config.Password = user, password
	c, err := clientv3.New(config)
	if err != nil {
		_ = login.Close()
		return nil, err
	}
	c.Auth = &logins{Auth: login.Auth, life: work, within: answerWithin}
	context.AfterFunc(config.Context, func() { _ = login.Close() })
	return c, nil
}

func (s *Store) start(ctx context.Context, cfg dsn.Config, o Options) error {
	if o.Used {
		if got, err := s.get(ctx, s.formatKey()); err != nil {
			return err
		} else if len(got.Kvs) == 0 {
			return store.ErrUnused
		}
	}
	if err := s.checkFormat(ctx); err != nil {
		return err
	}
	if err := s.notes.begin(ctx); err != nil {
		return err
	}
	s.clock = newClock(s, o.Wall, cfg.Compact)
	s.work.Go(s.hear)
	if err := s.clock.start(ctx, s.life); err != nil {
		return err
	}
	if behind := s.clock.behind(); behind.Abs() > logBehind {
		s.log.Warn("the time that the managers keep in etcd differs from this machine's wall clock; jobs run by the wall clock, TTLs and leases by the kept time",
			"behind", behind.Round(time.Millisecond).String())
	}
	return nil
}

// checkFormat writes the version of the format into an empty prefix, else compares it.
func (s *Store) checkFormat(ctx context.Context) error {
	kv, err := s.first(ctx, s.formatKey(), []byte(formatVersion))
	if err == nil && string(kv.Value) != formatVersion {
		err = fmt.Errorf("etcd store: prefix %s holds format %q, this program reads %s", s.prefix, kv.Value, formatVersion)
	}
	return err
}

// first writes a key unless it is there, and returns what is there then. Without space it only reads: a manager must be able
// to start, to remove what has expired.
func (s *Store) first(ctx context.Context, key string, value []byte) (kv *mvccpb.KeyValue, err error) {
	err = s.persist(ctx, func(ctx context.Context) error {
		resp, err := s.txn(ctx, []*pb.Compare{same(key, 0)}, []*pb.RequestOp{put([]byte(key), value)}, []*pb.RequestOp{getKey(key)})
		switch {
		case errors.Is(err, rpctypes.ErrNoSpace):
			got, gerr := s.c.Get(ctx, key)
			if gerr != nil {
				return gerr
			}
			if len(got.Kvs) == 0 {
				return err
			}
			kv = got.Kvs[0]
		case err != nil:
			return err
		case resp.Succeeded:
			kv = &mvccpb.KeyValue{Value: value, ModRevision: resp.Header.Revision}
		default:
			kv = resp.Responses[0].GetResponseRange().Kvs[0]
		}
		return nil
	})
	return kv, err
}

// get reads keys until it is answered, see persist.
func (s *Store) get(ctx context.Context, key string, opts ...clientv3.OpOption) (resp *clientv3.GetResponse, err error) {
	err = s.persist(ctx, func(ctx context.Context) (err error) {
		resp, err = s.c.Get(ctx, key, opts...)
		return err
	})
	return resp, err
}

// passing reports whether another attempt may succeed, because a member or the leader is away.
func passing(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	for _, final := range []error{rpctypes.ErrNoSpace, rpctypes.ErrRequestTooLarge, rpctypes.ErrTooManyOps, rpctypes.ErrCompacted, rpctypes.ErrFutureRev,
		rpctypes.ErrLeaseNotFound, rpctypes.ErrKeyNotFound, rpctypes.ErrAuthFailed, rpctypes.ErrPermissionDenied, rpctypes.ErrDuplicateKey} {
		if errors.Is(err, final) {
			return false
		}
	}
	return true
}

// persist repeats a request that changes nothing, or nothing more when it is repeated, until it is answered. It gives up
// after the store's patience. Its error is one of the store's.
func (s *Store) persist(ctx context.Context, request func(context.Context) error) error {
	began := time.Now()
	for {
		err := s.once(ctx, request)
		if !passing(err) || ctx.Err() != nil || time.Since(began) > s.patience {
			return s.final(ctx, err)
		}
		if err := remote.Pause(ctx, mostPause); err != nil {
			return err
		}
	}
}

// once bounds a request.
func (s *Store) once(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.patience/3)
	defer cancel()
	return request(clientv3.WithRequireLeader(ctx))
}

// final converts an error of a request: to the context's error if ctx has ended, else as unavailable does.
func (s *Store) final(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return unavailable(err)
}

// unavailable converts an error of the client library to one of the store.
func unavailable(err error) error {
	switch {
	case err == nil, errors.Is(err, errChanged):
		return err
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w: etcd: its quota is used up (alarm NOSPACE)", store.ErrFull)
	case errors.Is(err, rpctypes.ErrCompacted), errors.Is(err, rpctypes.ErrFutureRev), errors.Is(err, rpctypes.ErrKeyNotFound):
		return errChanged
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps):
		return fmt.Errorf("%w: etcd: %w; it must allow 128 operations and 1572864 bytes", store.ErrTooLarge, err)
	}
	return fmt.Errorf("%w: etcd: %w", store.ErrUnavailable, err)
}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.transact(ctx, fn, false)
}

// View implements store.Store.
func (s *Store) View(ctx context.Context, fn func(store.Tx) error) error {
	return s.transact(ctx, fn, true)
}

func (s *Store) transact(ctx context.Context, fn func(store.Tx) error, readOnly bool) error {
	if err := s.calls.Enter(); err != nil {
		return err
	}
	defer s.calls.Leave()
	changed := func(err error) bool { return errors.Is(err, errChanged) }
	return remote.Retry(ctx, maxRuns, time.Millisecond, mostPause, changed, func(run int) error {
		err := s.runOnce(ctx, fn, run, readOnly)
		if errors.Is(err, errGuessed) { // only the first run guesses
			err = s.runOnce(ctx, fn, run+1, readOnly)
		}
		return err
	})
}

func (s *Store) runOnce(ctx context.Context, fn func(store.Tx) error, run int, readOnly bool) (err error) {
	t := s.newTx(ctx, run, readOnly)
	defer s.claims.Release(&t.claimed)
	defer func() {
		t.settle(err)
		if !t.sent {
			err = remote.Unreached(err)
		}
	}()
	err = fn(t)
	if t.Err != nil && (err == nil || errors.Is(t.Err, errChanged)) {
		err = t.Err // the function ignored an engine error, or has to run again
	}
	if err = t.guess(err); err != nil || readOnly {
		return err
	}
	err = t.commit()
	if t.guessed && (errors.Is(err, errChanged) || errors.Is(err, store.ErrTooLarge) || errors.Is(err, store.ErrNoSpace)) {
		s.recent.wrong() // nothing was written, and perhaps nothing has to be
		return errGuessed
	}
	return err
}

// Len implements store.Store.
func (s *Store) Len(ctx context.Context, c store.Collection, index string) (int, error) {
	if err := s.calls.Enter(); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	return s.lens.Len(ctx, c, index, func() (int, error) {
		prefix := s.recordKey(c, "")
		if index != "" {
			prefix = s.indexKey(c, index)
		}
		resp, err := s.get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return 0, remote.Unreached(err)
		}
		return int(resp.Count), nil
	})
}

// Watch implements store.Store.
func (s *Store) Watch(topic string) store.Watcher { return s.hub.Watch(topic) }

// Capabilities implements store.Store.
func (s *Store) Capabilities() store.Capabilities {
	return store.Capabilities{
		Name: "etcd", Durable: true, Quorum: true, Shared: true, TimePrecision: time.Microsecond, Behind: s.clock.behind, Space: s.space,
	}
}

// Close implements store.Store.
func (s *Store) Close() error {
	if !s.calls.Close() {
		return nil
	}
	s.clock.close()
	s.notes.close()
	s.work.End()
	return s.c.Close()
}

// Keys of the engine, below its prefix.

func (s *Store) formatKey() string { return s.prefix + "/format" }

func (s *Store) recordKey(c store.Collection, key string) string {
	return s.prefix + "/r/" + string(c) + "/" + key
}

func (s *Store) indexKey(c store.Collection, index string) string {
	return s.prefix + "/x/" + string(c) + "/" + index + "/"
}

// eventsKey begins the keys that all managers watch: the clock, and the notes of commits.
func (s *Store) eventsKey() string { return s.prefix + "/e/" }

func (s *Store) clockKey() string { return s.eventsKey() + "clock" }

// partsKey begins the parts of large values.
func (s *Store) partsKey() string { return s.prefix + "/v/" }
