package downtime

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

const (
	// LocalGap is the shortest time without any activity that counts as downtime on an engine with a single manager.
	LocalGap = time.Second
	// SharedGap is the same on engines that several managers share.
	SharedGap = 5 * time.Second
	// BeatInterval is how often a manager writes the time into the data.
	BeatInterval = 2 * time.Second
	// tick is how often a manager checks its own time, on an engine of its own.
	tick = 250 * time.Millisecond
	// keepEvery is how much later than the last recorded time a transaction must run to be recorded.
	keepEvery = 10 * time.Millisecond
)

// Options of New.
type Options struct {
	// Leases are the leases to extend.
	Leases []store.Leases
	// OnExtended, when set, is called after an extension, on the goroutine of the call that found it necessary.
	OnExtended func(Report)
	// OnUnreached, when set, is called by Run with the error of the last beat when Unreached has become positive, and with
	// nil when it is zero again.
	OnUnreached func(error)
	// Clock is this machine's, for shared engines; default time.Now.
	Clock func() time.Time
	// Wait, for tests with a clock of their own, returns after d, or with the error of ctx once that ends; default by
	// time.
	Wait func(ctx context.Context, d time.Duration) error
}

// Report says what an extension did.
type Report struct {
	// From is the last known moment before the downtime, zero if unknown.
	From time.Time
	// To is when the leases begin to run down again.
	To time.Time
	// Extended counts the leases that got time, by their name.
	Extended map[string]int
	// Took is how long the extension took.
	Took time.Duration
}

// Store is an engine whose leases do not run down during downtime. Before Start it is only the engine.
type Store struct {
	store.Store
	opts   Options
	shared bool
	gap    time.Duration

	// last is when a transaction of this manager is known to have run, in Unix nanoseconds: by the engine's clock, or
	// on a shared engine by this machine's. Zero before Start.
	last atomic.Int64
	// begun is when the first beat began after the last one that reached a shared store; nil if there is none.
	begun atomic.Pointer[time.Time]
	// extending is set while other transactions have to wait.
	extending atomic.Bool
	// turn has a value while a call extends the leases.
	turn  chan struct{}
	calls sync.Pool
}

// New returns a Store around st. Closing it closes st.
func New(st store.Store, opts Options) *Store {
	if opts.Clock == nil {
		opts.Clock = time.Now
	}
	if opts.Wait == nil {
		opts.Wait = store.Wait
	}
	s := &Store{Store: st, opts: opts, shared: st.Capabilities().Shared, gap: LocalGap, turn: make(chan struct{}, 1)}
	if s.shared {
		s.gap = SharedGap
	}
	s.calls.New = func() any {
		c := &call{s: s}
		c.inTx = c.run
		return c
	}
	return s
}

// errAway ends a function that must not decide anything before the leases are extended.
var errAway = errors.New("downtime: leases have to be extended first")

// call is a running transaction's function.
type call struct {
	s    *Store
	fn   func(store.Tx) error
	inTx func(store.Tx) error // the method run, bound once
}

// run calls fn, unless the manager was away before it or, on a shared engine, during it. On a local engine the time of
// a transaction is fixed when run reads it: even if the manager then stands still for long, the transaction decides
// by that time.
func (c *call) run(tx store.Tx) error {
	if !c.s.alive(tx) {
		return errAway
	}
	err := c.fn(tx)
	if c.s.shared && !c.s.alive(tx) {
		return errAway
	}
	return err
}

// alive records that a transaction runs. It returns false after a gap that makes an extension necessary.
func (s *Store) alive(tx store.Tx) bool {
	if s.extending.Load() {
		return false
	}
	last, now := s.last.Load(), s.now(tx).UnixNano()
	since := time.Duration(now - last)
	switch {
	case last == 0: // not started
	case since > s.gap:
		return false
	case s.shared:
		// A transaction that began has not yet reached the store.
	case since > keepEvery || since < -s.gap: // else the clock was set back
		s.last.CompareAndSwap(last, now)
	}
	return true
}

func (s *Store) now(tx store.Tx) time.Time {
	if s.shared {
		return s.opts.Clock()
	}
	return tx.Now()
}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.do(ctx, fn, s.Store.Update)
}

// View implements store.Store.
func (s *Store) View(ctx context.Context, fn func(store.Tx) error) error {
	return s.do(ctx, fn, s.Store.View)
}

func (s *Store) do(ctx context.Context, fn func(store.Tx) error, transact func(context.Context, func(store.Tx) error) error) error {
	for {
		c := s.calls.Get().(*call)
		c.fn = fn
		err := transact(ctx, c.inTx)
		c.fn = nil
		s.calls.Put(c)
		if !errors.Is(err, errAway) {
			if s.shared && err == nil {
				s.reached()
			}
			return err
		}
		if err := s.extendIfAway(ctx); err != nil {
			return err
		}
	}
}

// reached records that this manager reached the shared store.
func (s *Store) reached() {
	last, now := s.last.Load(), s.opts.Clock().UnixNano()
	if since := time.Duration(now - last); last != 0 && (since > keepEvery && since <= s.gap || since < -s.gap) {
		s.last.CompareAndSwap(last, now)
	}
}

// Start extends the leases that existed when the last manager stopped. The manager may serve once it has returned nil,
// and not after an error. The next Start continues what a crash interrupted.
func (s *Store) Start(ctx context.Context) error { return s.extendIfAway(ctx) }

// Run writes beats and looks for gaps until ctx ends. After an error of the store the next beat tries again.
func (s *Store) Run(ctx context.Context) {
	every := tick
	if s.shared {
		every = BeatInterval
	}
	t := time.NewTicker(every)
	defer t.Stop()
	var beaten time.Time
	var last error
	reported := false
	report := func() {
		if away := s.Unreached() > 0; away != reported && ctx.Err() == nil && s.opts.OnUnreached != nil {
			s.opts.OnUnreached(last)
			reported = away
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if time.Since(beaten) < BeatInterval-every/2 {
			_ = s.View(ctx, func(store.Tx) error { return nil })
			continue
		}
		beaten = time.Now()
		report() // it may have become so since the last beat
		last = s.Beat(ctx)
		report()
	}
}

// Unreached returns for how long no beat has reached the shared store, although one was tried, and 0 up to SharedGap. A
// manager that stood still itself has not tried. It is always 0 on a local engine.
func (s *Store) Unreached() time.Duration {
	begun := s.begun.Load()
	if begun == nil {
		return 0
	}
	if d := s.opts.Clock().Sub(*begun); d > SharedGap {
		return d
	}
	return 0
}

// Beat writes the time into the data; on a local engine only while there are leases.
func (s *Store) Beat(ctx context.Context) (err error) {
	if s.shared {
		now := s.opts.Clock()
		s.begun.CompareAndSwap(nil, &now)
		defer func() {
			// A store that refuses the write, because it is full for example, was reached.
			if !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
				s.begun.Store(nil)
			}
		}()
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return s.Update(ctx, func(tx store.Tx) error {
		if !s.shared {
			if leased, err := s.leased(tx); err != nil || !leased {
				return err
			}
		}
		return putBeat(tx, tx.Now())
	})
}

// leased reports whether there are any leases.
func (s *Store) leased(tx store.Tx) (bool, error) {
	for _, l := range s.opts.Leases {
		hits, err := tx.Scan(l.Collection, l.Index, store.Range{Limit: 1})
		if err != nil || len(hits) > 0 {
			return len(hits) > 0, err
		}
	}
	return false, nil
}
