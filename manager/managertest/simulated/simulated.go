// Package simulated runs a manager without a connection, for simulations: its disk is a value in
// memory that can lose what was not synced, its clock is the caller's, and a call to it is a
// function call. All of it may run in the virtual time of testing/synctest.
//
// What runs is the program's own code from the handlers to the log: the in-memory engine on the
// write-ahead log, the correction of leases after a downtime, the shard's identity, the ledger,
// and the server's handlers. Only the listeners and the job queue are missing.
package simulated

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/feed"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/ledgertest"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
	"github.com/oncegate/oncegate/manager/internal/peers"
	"github.com/oncegate/oncegate/manager/internal/quarantine"
	"github.com/oncegate/oncegate/manager/internal/server"
	"github.com/oncegate/oncegate/manager/internal/shard"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/downtime"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// Disk is the disk of a manager; the zero value is an empty one. Its methods Clone, Crash,
// CrashRandomly and CrashTorn return what a crash leaves of it.
type Disk = faultfs.FS

// dataDir is the manager's directory on its disk.
const dataDir = "d"

// Forgot returns since when and why a manager on the disk knows that its ledger forgot something; "": it knows of nothing.
func Forgot(disk *Disk) (string, error) {
	q, err := quarantine.OpenOn(disk, dataDir)
	if err != nil {
		return "", err
	}
	return forgot(q), nil
}

func forgot(q *quarantine.Quarantine) string {
	s := q.State()
	if s.RestoredTo.IsZero() {
		return ""
	}
	return s.RestoredTo.UTC().Format(time.RFC3339Nano) + " " + strings.Join(s.Why, "; ")
}

// Op is an operation on a disk, as Disk.SetHook sees it.
type Op = faultfs.Op

// Sync is the kind of operation that makes what was written before safe from a crash.
const Sync = faultfs.Sync

// Call and Outcome are the input and the output of an operation in a history that Model checks
// with porcupine: what a manager was asked, and what it answered.
type (
	Call    = ledgertest.Call
	Outcome = ledgertest.Outcome
)

// Model says which histories of one key a ledger can have.
var Model = ledgertest.Model

// Downtime is the Op of a Call that stands for a time in which the manager did not serve.
const Downtime = ledgertest.Downtime

// Options configure a Manager.
type Options struct {
	// Version is what the manager says of itself.
	Version string
	// Clock is what it takes for the time.
	Clock func() time.Time
	// Name and Shards are those of `oncegate serve`: --shard and --shards. Both may be empty.
	Name   string
	Shards []string
	// MaxEntries is the size of the ledger's window, in keys.
	MaxEntries int
	// CommittedTTL is how long a committed answer is kept.
	CommittedTTL time.Duration
	// LayerBytes is how many bytes of changes are kept in memory before they are moved to the state on disk.
	LayerBytes int64
	// Centre makes the manager one of several data centres; nil: there is only this one.
	Centre *Centre
}

// Manager is one run of a manager on a disk. All methods are safe for concurrent use.
type Manager struct {
	store    store.Store
	options  Options
	me       *shard.Keeper
	ledger   *ledger.Ledger
	feed     *feed.Feed // of a data centre
	restored *quarantine.Quarantine
	position func() uint64
	puller   *peers.Puller // nil without a Centre
	server   *server.Server
	stop     context.CancelFunc
	work     sync.WaitGroup
}

// Open recovers what is on the disk and starts a manager on it. The caller must call Close.
func Open(ctx context.Context, disk *Disk, o Options) (*Manager, error) {
	restored, err := quarantine.OpenOn(disk, dataDir)
	if err != nil {
		return nil, err
	}
	disk.SetStrict(path.Join(dataDir, mem.StateDir)) // Pebble's order of work differs from run to run
	st, err := mem.Open(ctx, dataDir, mem.Options{
		Clock:      o.Clock,
		LayerBytes: o.LayerBytes,
		CacheBytes: 1 << 20,
		State:      disk.Pebble(),
		Log:        wal.Options{FS: disk, SegmentBytes: 8 << 10, FillAhead: 2 << 10, Gather: nextInstant},
	})
	if err != nil {
		return nil, err
	}
	leases := downtime.New(staggered{st}, downtime.Options{Leases: []store.Leases{ledger.Leases()}})
	m := &Manager{store: leases, options: o, restored: restored, position: st.Log().Durable}
	if err := m.build(ctx, leases, shard.Want{Name: o.Name, Shards: o.Shards}); err != nil {
		return nil, errors.Join(err, leases.Close())
	}
	var background context.Context
	background, m.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := leases.Start(background); err != nil {
		m.stop()
		return nil, errors.Join(err, leases.Close())
	}
	m.work.Go(func() { leases.Run(background) })
	m.work.Go(func() { m.ledger.Run(background, nil) })
	m.work.Go(func() {
		time.Sleep(379 * time.Microsecond)
		m.watchQuarantine(background)
	})
	m.runCentre(background)
	return m, nil
}

// InMemory starts a manager without a disk, which loses everything when it is closed. It runs no goroutine of its own: time
// passes for it when its clock moves, and what expired is gone when a call meets it.
func InMemory(o Options) (*Manager, error) {
	nothing, err := quarantine.Open("")
	if err != nil {
		return nil, err
	}
	m := &Manager{store: mem.New(mem.Options{Clock: o.Clock}), options: o, restored: nothing, stop: func() {}}
	if err := m.build(context.Background(), m.store, shard.Want{Name: o.Name, Shards: o.Shards}); err != nil {
		return nil, errors.Join(err, m.store.Close())
	}
	return m, nil
}

// Become restarts the manager on its data with another name, as --shard and --shard-was do, and with the list of
// shards where it names any. No call may be under way.
func (m *Manager) Become(ctx context.Context, name string, shards []string) error {
	was := m.me.Identity()
	return m.build(ctx, m.store, shard.Want{Name: name, Was: was.Name, Shards: shards, Version: was.Version + 1})
}

func (m *Manager) build(ctx context.Context, st store.Store, want shard.Want) (err error) {
	o := &m.options
	network, err := o.Centre.network()
	if err != nil {
		return err
	}
	if network != nil {
		if err := peers.Doubt(ctx, network, st, m.restored, o.CommittedTTL); err != nil {
			return err
		}
	}
	want.Restored = m.restoredName()
	keeper, _, err := shard.Open(ctx, st, want)
	if err != nil {
		return err
	}
	// A mark is part of records, whose lengths are to be the same each time.
	err = keeper.Watch(ctx, shard.Past{
		Run: uint64(time.Now().UnixNano()), Position: m.position, Longest: m.longest, Begin: func(ctx context.Context, d time.Duration, why string) error { return m.restored.Begin(ctx, d, 0, why) }, Restored: m.restoredName,
	})
	if err != nil {
		return err
	}
	m.me = keeper
	// Of the calls of one instant, one stores what their scopes hold. The Go scheduler would decide which.
	l := ledger.Options{
		ScopeShare: -1, MaxEntries: o.MaxEntries, CommittedTTL: o.CommittedTTL, CleanupInterval: 3 * time.Second, Owners: keeper,
		Quarantine: m.restored,
	}
	o.Centre.adjust(&l)
	if m.ledger, err = ledger.New(st, l); err != nil {
		return err
	}
	reach, origins, err := m.openCentre(ctx, st, network)
	if err != nil {
		return err
	}
	m.server, err = server.New(server.Options{
		Options: httpd.Options{Version: o.Version, Logger: slog.New(slog.DiscardHandler)}, Ledger: keeper,
	}, server.LedgerRoutes(m.ledger, nil, keeper, reach), origins)
	return err
}

func (m *Manager) longest() time.Duration { return m.options.CommittedTTL }

// watchQuarantine counts the quarantine down. Other data centres must not trust the numbers of the feed any more once one
// began.
func (m *Manager) watchQuarantine(ctx context.Context) {
	m.restored.Run(ctx, func(before, after quarantine.State) {
		if m.feed != nil && !before.RestoredTo.Equal(after.RestoredTo) {
			_ = m.feed.Open(ctx, m.restoredName())
		}
	}, func(error) {})
}

// Forgot returns since when and why the manager knows that its ledger forgot something; "": it knows of nothing.
func (m *Manager) Forgot() string { return forgot(m.restored) }

// restoredName names the quarantine that began last; "" when none has.
func (m *Manager) restoredName() string {
	if at := m.restored.State().RestoredTo; !at.IsZero() {
		return at.UTC().Format(time.RFC3339Nano)
	}
	return ""
}

// Answer is what the manager answers to a call.
type Answer struct {
	Status      int
	ContentType string
	RetryAfter  int          // in seconds; 0: not known
	Headers     []api.Header // the others
	Body        []byte
}

// Do has the manager carry out a call: a POST of body to path with the given headers. ctx ends
// when the caller leaves.
func (m *Manager) Do(ctx context.Context, path string, headers []api.Header, body []byte) Answer {
	return m.Call(ctx, "POST", path, "", headers, body)
}

// Call is Do with a method, and with a query without its question mark.
func (m *Manager) Call(ctx context.Context, method, path, query string, headers []api.Header, body []byte) Answer {
	d := httpd.Direct{Method: method, Path: path, Query: query, Body: body, Header: http.Header{}}
	for _, h := range headers {
		d.Header.Add(h.Name, h.Value)
	}
	var r httpd.Response
	m.server.Do(ctx, &d, &r)
	return Answer{Status: r.Status, ContentType: r.ContentType, RetryAfter: r.RetryAfter, Headers: r.Headers(), Body: r.Body}
}

// Entries is the number of keys that the ledger holds, in whatever state.
func (m *Manager) Entries(ctx context.Context) (int, error) {
	s, err := m.ledger.Stats(ctx)
	return s.Total(), err
}

// Entry is a key of the ledger as operators see it.
type Entry = ledger.Entry

// List returns the entries of the ledger, at most the first 1000.
func (m *Manager) List(ctx context.Context) ([]Entry, error) {
	list, _, err := views.List(ctx, m.ledger, api.StateNone, views.MaxLimit, "")
	return list, err
}

// Delete frees a key, as an operator does.
func (m *Manager) Delete(ctx context.Context, scope, key string) error {
	_, err := m.ledger.Delete(ctx, scope, key)
	return err
}

// ResolveUnknown does what an operator does who learned that the requests of unknown outcome
// were executed: the keys that wanted accepts by scope become committed, with the result, for
// ttl. It looks at 100 keys at most, and returns those that it resolved.
func (m *Manager) ResolveUnknown(ctx context.Context, wanted func(scope string) bool, result api.Result, ttl time.Duration) (keys []string) {
	list, _, _ := views.List(ctx, m.ledger, api.StateUnknown, 100, "") // none, of a manager that is closed
	for _, e := range list {
		if !wanted(e.Scope) {
			continue
		}
		if _, err := m.ledger.Resolve(ctx, e.Scope, e.Key, ledger.Resolution{
			As: api.StateCommitted, TTL: ttl, Result: result.AppendRaw(nil),
		}); err == nil {
			keys = append(keys, e.Key)
		}
	}
	return keys
}

// Spoil overwrites the record of a committed key of the scope with one that cannot be read. found
// says whether there was such a key; with an error it may have been overwritten or not.
func (m *Manager) Spoil(ctx context.Context, scope string) (found bool, err error) {
	err = m.store.Update(ctx, func(tx store.Tx) error {
		found = false
		hits, err := tx.Scan("ledger", "committed", store.Range{Limit: 100})
		for _, h := range hits {
			if strings.Contains(h.Key, scope) {
				found = true
				return tx.Put("ledger", h.Key, []byte("no record"), store.Entry{Index: "committed", SortKey: h.SortKey})
			}
		}
		return err
	})
	return found, err
}

// Close ends the manager at once. Calls that wait get an error.
func (m *Manager) Close() error {
	m.server.Abort()
	m.stop()
	m.work.Wait()
	return m.store.Close()
}
