package storelogs

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// closeTimeout bounds what Close writes.
const closeTimeout = 2 * time.Second

// Options configure an Engine. The zero value of a field means its default.
type Options struct {
	// MaxLogs is how many logs there may be in the store; default 64.
	MaxLogs int
	// MaxReaders bounds the readers that are held at once; default 4096. More get their page at
	// once, though it is empty.
	MaxReaders int
	// DutyEvery is how often the clock is published, and retention and windows are looked after; default 1 s.
	DutyEvery time.Duration
	// PollEvery is how often a held reader looks by itself, for the case that a wake-up was lost; default 5 s.
	PollEvery time.Duration
	// CallTimeout bounds a transaction; default 15 s.
	CallTimeout time.Duration
	// Elapsed returns how much time has passed by a monotonic clock; the default counts
	// from the start of the process.
	Elapsed func() time.Duration
	// Restored, when set, says what the store may have forgotten.
	Restored Restored
	// Unreadable, when set, tracks records that the engine met in the background and cannot read. It reports each once.
	Unreadable *unread.Tracker
	// Logger receives what goes wrong; default slog.Default().
	Logger *slog.Logger
}

// Restored says what a store may have forgotten that was restored to an older point. Its methods read in the transaction
// that acts on the answer.
type Restored interface {
	// LogsLeft returns how much longer logs refuse ids that they do not know; 0: they do not.
	LogsLeft(tx store.Tx) (time.Duration, error)
	// EpochFloor returns a number that every epoch given from now on is above. Epochs that were given stay.
	EpochFloor(tx store.Tx) (uint64, error)
	// Record identifies the record that LogsLeft reads, if any.
	Record() (id store.ID, ok bool)
}

// nothingForgotten is a store that was not restored.
type nothingForgotten struct{}

func (nothingForgotten) LogsLeft(store.Tx) (time.Duration, error) { return 0, nil }
func (nothingForgotten) EpochFloor(store.Tx) (uint64, error)      { return 0, nil }
func (nothingForgotten) Record() (store.ID, bool)                 { return store.ID{}, false }

// WithDefaults returns a copy with defaults filled in.
func (o Options) WithDefaults() Options {
	o.DutyEvery = cmp.Or(o.DutyEvery, time.Second)
	o.PollEvery = cmp.Or(o.PollEvery, 5*time.Second)
	o.CallTimeout = cmp.Or(o.CallTimeout, 15*time.Second)
	o.MaxLogs = cmp.Or(o.MaxLogs, 64)
	o.MaxReaders = cmp.Or(o.MaxReaders, 4096)
	if o.Elapsed == nil {
		began := time.Now()
		o.Elapsed = func() time.Duration { return time.Since(began) }
	}
	if o.Restored == nil {
		o.Restored = nothingForgotten{}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// Engine keeps logs in a store. All methods are safe for concurrent use. Errors are *logs.Error, *api.FieldError, a
// context's, or one of the store.
type Engine struct {
	st     store.Store
	opts   Options
	clock  clock
	margin time.Duration
	// longest is the longest window that any log had since Open, in nanoseconds.
	longest atomic.Int64

	mu    sync.Mutex
	lines map[string]*line

	burial burial // of the duties alone

	readers  atomic.Int64
	draining chan struct{}
	drain    sync.Once
	life     *batch.Life
}

// Open returns an engine that keeps logs in st, until Close. It does not close st.
func Open(ctx context.Context, st store.Store, opts Options) (*Engine, error) {
	e := &Engine{st: st, opts: opts.WithDefaults(), lines: make(map[string]*line), draining: make(chan struct{})}
	e.clock.elapsed = e.opts.Elapsed
	if st.Capabilities().Shared {
		e.margin = margin
	}
	if err := e.clock.tick(ctx, st); err != nil {
		return nil, err
	}
	if err := e.findLongest(ctx); err != nil {
		return nil, err
	}
	e.life = batch.NewLife(ctx)
	e.life.Go(func() { e.every(func() { _ = e.tick() }) })
	e.life.Go(func() { e.every(e.duties) })
	return e, nil
}

// findLongest reads the windows of all logs.
func (e *Engine) findLongest(ctx context.Context) error {
	return e.view(ctx, func(tx store.Tx) error {
		for r := (store.Range{Limit: store.MaxScan}); ; {
			hits, err := tx.Scan(heads, order, r)
			if err != nil || len(hits) == 0 {
				return err
			}
			for _, hit := range hits {
				r.After = &hit
				value, err := tx.Get(heads, hit.Key)
				if errors.Is(err, store.ErrUnreadable) || errors.Is(err, store.ErrNotFound) {
					continue // calls on this log say so
				}
				if err != nil {
					return err
				}
				window, _ := WindowOf(heads, hit.Key, value)
				e.has(window)
			}
		}
	})
}

// has notes the window of a log.
func (e *Engine) has(window time.Duration) {
	for {
		longest := e.longest.Load()
		if int64(window) <= longest || e.longest.CompareAndSwap(longest, int64(window)) {
			return
		}
	}
}

// LongestWindow returns the longest window that any log had since Open, 0 if there was no log. It has a window before the
// first id that is remembered for so long. It does not know what other managers of a shared store do.
func (e *Engine) LongestWindow() time.Duration { return time.Duration(e.longest.Load()) }

// every calls fn until the engine is closed.
func (e *Engine) every(fn func()) {
	tick := time.NewTicker(e.opts.DutyEvery)
	defer tick.Stop()
	for {
		select {
		case <-e.life.Context().Done():
			return
		case <-tick.C:
			fn()
		}
	}
}

func (e *Engine) tick() error {
	ctx, cancel := context.WithTimeout(e.life.Context(), e.opts.CallTimeout)
	defer cancel()
	return e.clock.tick(ctx, e.st)
}

// line returns what this manager knows of a log.
func (e *Engine) line(name string) *line {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.lines[name]
	if l == nil {
		l = &line{name: name}
		l.appends.Life, l.appends.Closed = e.life, store.ErrClosed
		l.appends.Within, l.appends.Size = e.opts.CallTimeout, groupBytes
		l.appends.Run = func(ctx context.Context, calls []*batch.Call[request]) error {
			run := func(calls []*batch.Call[request]) error { return e.commit(ctx, l, batch.Args(calls)) }
			// A damaged record of an id costs the calls that name the id, not those that came at the same time.
			ofOne := func(err error) bool { return errors.Is(err, store.ErrUnreadable) }
			batch.Split(calls, run, ofOne, func(calls []*batch.Call[request], err error) {
				for _, c := range calls {
					c.Finish(err)
				}
			})
			return nil
		}
		e.lines[name] = l
	}
	return l
}

// view runs fn in a read-only transaction.
func (e *Engine) view(ctx context.Context, fn func(store.Tx) error) error {
	return mapError(e.st.View(ctx, fn))
}

// update runs fn in a transaction.
func (e *Engine) update(ctx context.Context, fn func(store.Tx) error) error {
	return mapError(e.st.Update(ctx, fn))
}

// head reads a log's head.
func (e *Engine) head(ctx context.Context, name string) (h *head, err error) {
	if err := logs.CheckName(name); err != nil {
		return nil, err
	}
	err = e.view(ctx, func(tx store.Tx) error {
		var err error
		h, err = getHead(tx, name)
		return err
	})
	return h, err
}

// Put makes a log, or changes the configuration of one that is there.
func (e *Engine) Put(ctx context.Context, name string, ch logs.Change) (info logs.Info, created bool, err error) {
	if err := logs.CheckName(name); err != nil {
		return info, false, err
	}
	var key logs.HashKey
	if _, err := rand.Read(key[:]); err != nil {
		return info, false, err
	}
	var h *head
	err = e.update(ctx, func(tx store.Tx) error {
		created = false
		var err error
		if h, err = getHead(tx, name); err == nil {
			return e.configure(tx, h, ch)
		}
		var c logs.Config
		if missing(err) {
			c, err = logs.DefaultConfig().Apply(ch)
		}
		if err != nil {
			return err
		}
		n, err := count(tx)
		if err != nil {
			return err
		}
		if n >= e.opts.MaxLogs {
			return logs.TooManyLogs(e.opts.MaxLogs)
		}
		created = true
		e.has(c.Window)
		h = newHead(logs.Settings{Name: name, Key: key, Config: c})
		if err := putCount(tx, n+1); err != nil {
			return err
		}
		return h.put(tx)
	})
	if err != nil {
		return info, false, err
	}
	return e.info(h), created, nil
}

func missing(err error) bool {
	var e *logs.Error
	return errors.As(err, &e) && e.P.Status == 404
}

func (e *Engine) configure(tx store.Tx, h *head, ch logs.Change) error {
	has := h.settings.Config
	if ch.Identity != nil && *ch.Identity != has.Identity {
		return logs.OtherIdentity(has.Identity)
	}
	c, err := has.Apply(ch)
	if err != nil || c == has {
		return err
	}
	if ch.MakeOnly {
		return logs.NotToChange(h.settings.Name)
	}
	e.has(c.Window)
	h.settings.Config = c
	return h.put(tx)
}

func count(tx store.Tx) (int, error) {
	n, err := store.Read(tx, meta, metaCount, number)
	return int(n), err
}

func putCount(tx store.Tx, n int) error {
	return tx.Put(meta, metaCount, binary.AppendUvarint(nil, uint64(max(n, 0))))
}

// Delete removes a log. Its records are deleted in the background. A log whose head cannot be read can be deleted:
// its records are deleted only if the head still shows which they are.
func (e *Engine) Delete(ctx context.Context, name string) error {
	if err := logs.CheckName(name); err != nil {
		return err
	}
	var bad *store.UnreadableError
	var prefix string
	err := e.update(ctx, func(tx store.Tx) error {
		bad, prefix = nil, ""
		h, err := getHead(tx, name)
		switch {
		case err == nil:
			prefix = h.prefix
		case errors.As(err, &bad):
			prefix = prefixOfUnreadable(tx, name)
		default:
			return err
		}
		n, err := count(tx)
		if err == nil {
			err = putCount(tx, n-1)
		}
		if err == nil {
			err = tx.Delete(heads, name)
		}
		if err != nil {
			return err
		}
		tx.Notify(topic(name))
		if prefix == "" {
			return nil
		}
		return tx.Put(graves, prefix, nil, store.Entry{Index: order, SortKey: prefix})
	})
	if err == nil && bad != nil {
		if e.opts.Unreadable != nil {
			e.opts.Unreadable.Forget(bad.Collection, bad.Key)
		}
		e.opts.Logger.Warn("a log was deleted whose head could not be read", "log", name, "error", bad.Error(), "records_stay_in_store", prefix == "")
	}
	return err
}

// Get describes a log.
func (e *Engine) Get(ctx context.Context, name string) (logs.Info, error) {
	h, err := e.head(ctx, name)
	if err != nil {
		return logs.Info{}, err
	}
	return e.info(h), nil
}

func (e *Engine) info(h *head) logs.Info {
	c := h.settings.Config
	i := logs.Info{Name: h.settings.Name, Config: c, First: h.First, Last: h.Next - 1, Keys: h.Keys, WindowBytes: int64(h.Keys) * c.KeyBytes(),
		Writers: h.Writers, DiskBytes: h.Bytes}
	l := e.line(h.settings.Name)
	l.mu.Lock()
	defer l.mu.Unlock()
	i.Counters, i.Evicted, i.EvictedAge = l.counters, l.evicted, l.evictedAge
	i.Readers = int(l.readers.Load())
	return i
}

// List describes up to limit logs whose names are greater than after, in order of their names. A log whose head cannot be
// read is listed as failed.
func (e *Engine) List(ctx context.Context, after string, limit int) ([]logs.Info, error) {
	names, err := e.names(ctx, after, limit)
	var infos []logs.Info
	for _, name := range names {
		info, ierr := e.Get(ctx, name)
		switch {
		case errors.Is(ierr, store.ErrUnreadable):
			info = logs.Info{Name: name, Config: logs.DefaultConfig(), First: 1, Failed: ierr.Error()}
		case missing(ierr):
			continue // deleted meanwhile
		case ierr != nil:
			return nil, ierr
		}
		infos = append(infos, info)
	}
	return infos, err
}

// names lists logs whose names are greater than after.
func (e *Engine) names(ctx context.Context, after string, limit int) (names []string, err error) {
	err = e.view(ctx, func(tx store.Tx) error {
		r := store.Range{Limit: limit}
		if after != "" {
			r.After = &store.Hit{SortKey: after, Key: after}
		}
		hits, err := tx.Scan(heads, order, r)
		names = names[:0]
		for _, h := range hits {
			names = append(names, h.Key)
		}
		return err
	})
	return names, err
}

// Drain ends the waits of readers, and those to come.
func (e *Engine) Drain() { e.drain.Do(func() { close(e.draining) }) }

// Close releases everything; no call may follow.
func (e *Engine) Close() error {
	e.Drain()
	e.life.End()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.life.Context()), closeTimeout)
	defer cancel()
	err := e.clock.tick(ctx, e.st) // so that the next start continues from here
	if store.Unknown(err) {
		return nil // the store says which
	}
	return err
}

// mapError says how an error of the store is answered.
func mapError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrNoSpace):
		return logs.NoSpace()
	case errors.Is(err, store.ErrTooLarge):
		return logs.TooLarge()
	case errors.Is(err, store.ErrConflict):
		return logs.Busy()
	case store.Unknown(err):
		why := "the store did not answer"
		if errors.Is(err, store.ErrClosed) {
			why = "the manager is stopping"
		}
		return logs.Unknown(1, why)
	}
	return err
}
