package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/etcd/dsn"
	"github.com/oncegate/oncegate/manager/internal/store/internal/calls"
	"github.com/oncegate/oncegate/manager/internal/store/internal/front"
	"github.com/oncegate/oncegate/manager/internal/store/internal/remote"
)

const (
	formatVersion = "1"
	// maxRuns bounds how often an Update or View runs its function before ErrConflict.
	maxRuns = 200
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
	events *events
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
	commits       sync.WaitGroup

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
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
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
	c, err := connect(config, cfg.User, cfg.Password, answerWithin)
	if err != nil {
		work.End()
		return nil, unavailable(err)
	}
	s := &Store{c: c, kv: clientv3.RetryKVClient(c), prefix: cfg.Prefix, log: o.Logger, patience: o.Patience, work: work, life: life}
	s.notes.s, s.notes.renewing = s, make(chan struct{}, 1)
	s.reads.begin(work, answerWithin, maxOps-1, s.read)
	s.fixed.begin(work, answerWithin, maxOps-1, s.read)
	s.writes.begin(work, answerWithin, maxRequest, s.write)
	if err := s.start(ctx, life, cfg, o); err != nil {
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
func connect(config clientv3.Config, user, password string, answerWithin time.Duration) (*clientv3.Client, error) {
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
	c.Auth = &logins{Auth: login.Auth, life: config.Context, within: answerWithin}
	context.AfterFunc(config.Context, func() { _ = login.Close() })
	return c, nil
}

func (s *Store) start(ctx, life context.Context, cfg dsn.Config, o Options) error {
	if o.Used {
		if err := s.checkUsed(ctx); err != nil {
			return err
		}
	}
	if err := s.checkFormat(ctx); err != nil {
		return err
	}
	if err := s.notes.begin(ctx); err != nil {
		return err
	}
	s.clock = newClock(s, o.Wall, cfg.Compact)
	s.events = startEvents(life, s)
	if err := s.clock.start(ctx, life); err != nil {
		s.work.End()
		s.events.wait()
		return err
	}
	if behind := s.clock.behind(); behind.Abs() > logBehind {
		s.log.Warn("the time that the managers keep in etcd differs from this machine's wall clock; jobs run by the wall clock, TTLs and leases by the kept time",
			"behind", behind.Round(time.Millisecond).String())
	}
	return nil
}

// checkUsed fails with store.ErrUnused when no manager has written the format.
func (s *Store) checkUsed(ctx context.Context) error {
	used := false
	err := s.persist(ctx, func(ctx context.Context) error {
		got, err := s.c.Get(ctx, s.prefix+"/format")
		used = err == nil && len(got.Kvs) > 0
		return err
	})
	if err == nil && !used {
		err = store.ErrUnused
	}
	return err
}

// checkFormat writes the version of the format into an empty prefix, else compares it.
func (s *Store) checkFormat(ctx context.Context) error {
	key := s.prefix + "/format"
	return s.persist(ctx, func(ctx context.Context) error {
		resp, err := s.txn(ctx, []*pb.Compare{same(key, 0)}, []*pb.RequestOp{put([]byte(key), []byte(formatVersion))}, []*pb.RequestOp{getKey(key)})
		if errors.Is(err, rpctypes.ErrNoSpace) { // a manager must be able to start, to remove what has expired
			got, gerr := s.c.Get(ctx, key)
			if gerr != nil || len(got.Kvs) == 0 {
				return err
			}
			return s.sameFormat(string(got.Kvs[0].Value))
		}
		if err != nil || resp.Succeeded {
			return err
		}
		return s.sameFormat(string(resp.Responses[0].GetResponseRange().Kvs[0].Value))
	})
}

// errFormat is final: asking again changes nothing.
var errFormat = errors.New("etcd store: another format")

func (s *Store) sameFormat(v string) error {
	if v == formatVersion {
		return nil
	}
	return fmt.Errorf("%w: prefix %s holds format %q, this program reads %s", errFormat, s.prefix, v, formatVersion)
}

// passing reports whether another attempt may succeed, because a member or the leader is away.
func passing(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, errFormat) {
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
	for run := 0; ; run++ {
		err := s.once(ctx, request)
		if !passing(err) || ctx.Err() != nil || time.Since(began) > s.patience {
			return s.final(ctx, err)
		}
		if err := pause(ctx, 6+run); err != nil {
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
	case err == nil, errors.Is(err, errFormat), errors.Is(err, errChanged):
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
	for run := range maxRuns {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := s.runOnce(ctx, fn, run, readOnly)
		if errors.Is(err, errGuessed) {
			continue
		}
		if !errors.Is(err, errChanged) {
			return err
		}
		if err := pause(ctx, run); err != nil {
			return err
		}
	}
	return store.ErrConflict
}

func (s *Store) runOnce(ctx context.Context, fn func(store.Tx) error, run int, readOnly bool) (err error) {
	t := s.newTx(ctx, run, readOnly)
	defer s.claims.Release(&t.claimed)
	defer func() { t.settle(err) }()
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

func pause(ctx context.Context, run int) error {
	return remote.Pause(ctx, time.Millisecond<<min(run, 6))
}

// Len implements store.Store.
func (s *Store) Len(ctx context.Context, c store.Collection, index string) (int, error) {
	if err := s.calls.Enter(); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	return s.lens.Len(c, index, func() (n int, err error) {
		prefix := s.recordKey(c, "")
		if index != "" {
			prefix = s.indexKey(c, index)
		}
		err = s.persist(ctx, func(ctx context.Context) error {
			resp, err := s.c.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
			if err == nil {
				n = int(resp.Count)
			}
			return err
		})
		return n, err
	})
}

// Watch implements store.Store.
func (s *Store) Watch(topic string) store.Watcher { return s.events.hub.Watch(topic) }

// Capabilities implements store.Store.
func (s *Store) Capabilities() store.Capabilities {
	return store.Capabilities{
		Name: "etcd", Durable: true, Quorum: true, Shared: true, FreeReads: true, TimePrecision: time.Microsecond, Behind: s.clock.behind, Space: s.space,
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
	s.events.wait()
	s.commits.Wait()
	return s.c.Close()
}

// Keys of the engine, below its prefix.

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
