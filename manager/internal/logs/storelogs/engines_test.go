package storelogs

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/etcd"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/postgres"
	"github.com/oncegate/oncegate/manager/internal/store/redis"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// leftByPebble are goroutines that Pebble leaves of a state whose disk failed.
var leftByPebble = []string{
	"github.com/cockroachdb/pebble/v2/record.(*LogWriter).flushLoop",
	"github.com/cockroachdb/pebble/v2.(*cleanupManager).mainLoop",
	"github.com/cockroachdb/pebble/v2.(*DB).compact",
	"github.com/cockroachdb/pebble/v2.(*DB).flush",
	"github.com/cockroachdb/pebble/v2.(*DB).collectTableStats",
	"github.com/cockroachdb/pebble/v2.(*DB).validateSSTables",
	"github.com/cockroachdb/pebble/v2/internal/genericcache.(*shard[...]).releaseLoop",
	"github.com/oncegate/oncegate/manager/internal/store/state.(*State).guard.func1",
}

func TestMain(m *testing.M) {
	var ignored []goleak.Option
	for _, function := range leftByPebble {
		ignored = append(ignored, goleak.IgnoreAnyFunction(function))
	}
	goleak.VerifyTestMain(servers.Sharing(m), ignored...)
}

var n atomic.Int64 // makes names of schemas, prefixes and namespaces

// openers prepare empty data, and return what opens it.
func openers(t testing.TB) map[string]func(t *testing.T) func(t *testing.T) store.Store {
	pg, rd, ec := servers.SharedPostgres(t), servers.SharedRedis(t), servers.SharedEtcd(t)
	opened := func(t *testing.T, s store.Store, err error) store.Store {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	return map[string]func(t *testing.T) func(t *testing.T) store.Store{
		"memory": func(*testing.T) func(*testing.T) store.Store {
			return func(*testing.T) store.Store { return mem.New(mem.Options{}) }
		},
		"wal": func(t *testing.T) func(*testing.T) store.Store {
			dir := t.TempDir()
			return func(t *testing.T) store.Store {
				s, err := mem.Open(t.Context(), dir, mem.Options{})
				return opened(t, s, err)
			}
		},
		"wal with small layers": func(t *testing.T) func(*testing.T) store.Store {
			dir := t.TempDir()
			return func(t *testing.T) store.Store {
				s, err := mem.Open(t.Context(), dir, mem.Options{LayerBytes: 4 << 10, FlushBytes: 64 << 10})
				return opened(t, s, err)
			}
		},
		"sqlite": func(t *testing.T) func(*testing.T) store.Store {
			file := filepath.Join(t.TempDir(), "db")
			return func(t *testing.T) store.Store {
				s, err := sqlite.Open(t.Context(), file, sqlite.Options{})
				return opened(t, s, err)
			}
		},
		"postgres": func(*testing.T) func(*testing.T) store.Store {
			schema := fmt.Sprint("logs_", n.Add(1))
			return func(t *testing.T) store.Store {
				s, err := postgres.Open(t.Context(), postgres.Options{DSN: pg.URL, Schema: schema, MaxConns: 8})
				return opened(t, s, err)
			}
		},
		"etcd": func(*testing.T) func(*testing.T) store.Store {
			dsn := ec.URL + fmt.Sprint("/logs", n.Add(1))
			return func(t *testing.T) store.Store {
				s, err := etcd.Open(t.Context(), etcd.Options{DSN: dsn, Patience: time.Minute})
				return opened(t, s, err)
			}
		},
		"redis": func(*testing.T) func(*testing.T) store.Store {
			namespace := fmt.Sprint("logs_", n.Add(1))
			return func(t *testing.T) store.Store {
				s, err := redis.Open(t.Context(), redis.Options{URL: rd.URL, Namespace: namespace})
				return opened(t, s, err)
			}
		},
	}
}

// rig is an engine on a store, with a clock that the test moves.
type rig struct {
	*Engine
	t     *testing.T
	open  func(t *testing.T) store.Store
	clock *atomic.Int64
	opts  Options // what tests add
}

// restored is what a store says that was restored.
type restored struct {
	floor uint64
	left  func() time.Duration
}

func (r *restored) LogsLeft(store.Tx) (time.Duration, error) { return r.left(), nil }
func (r *restored) EpochFloor(store.Tx) (uint64, error)      { return r.floor, nil }
func (*restored) Record() (store.ID, bool)                   { return store.ID{}, false }

func newRig(t *testing.T, open func(t *testing.T) store.Store) *rig {
	r := &rig{t: t, open: open}
	r.Engine, r.clock = r.start(open(t), 0)
	t.Cleanup(func() { r.stop(r.Engine) })
	return r
}

func (r *rig) start(st store.Store, jump time.Duration) (*Engine, *atomic.Int64) {
	r.t.Helper()
	clock := new(atomic.Int64)
	clock.Store(int64(jump))
	e, err := Open(r.t.Context(), st, Options{MaxLogs: 2, DutyEvery: 24 * time.Hour, PollEvery: time.Second, Logger: slog.New(slog.DiscardHandler),
		CallTimeout: time.Minute, Restored: r.opts.Restored, Elapsed: func() time.Duration { return time.Duration(clock.Load()) }})
	if err != nil {
		r.t.Fatal(err)
	}
	return e, clock
}

func (r *rig) stop(e *Engine) {
	if err := e.Close(); err != nil {
		r.t.Errorf("Close: %v", err)
	}
	if err := e.st.Close(); err != nil {
		r.t.Errorf("Close: %v", err)
	}
}

func (r *rig) advance(d time.Duration) {
	r.t.Helper()
	for d > 0 {
		step := min(d, maxGap)
		r.clock.Add(int64(step))
		if err := r.tick(); err != nil {
			r.t.Fatalf("tick: %v", err)
		}
		d -= step
	}
}

func (r *rig) restart(jump time.Duration) {
	r.t.Helper()
	st := r.st
	if c := st.Capabilities(); c.Durable && !c.Shared { // what others share survives this process anyway
		r.stop(r.Engine)
		st = r.open(r.t)
	} else if err := r.Close(); err != nil {
		r.t.Errorf("Close: %v", err)
	}
	r.Engine, r.clock = r.start(st, jump)
}

// slack is how much longer than asked a window may last.
func (r *rig) slack() time.Duration {
	if r.st.Capabilities().Shared {
		return 2 * margin
	}
	return 0
}

// TestConformance runs the suite on every engine that keeps logs in a store.
func TestConformance(t *testing.T) {
	for name, prepare := range openers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runSuite(t, func(t *testing.T) *rig { return newRig(t, prepare(t)) })
		})
	}
}
