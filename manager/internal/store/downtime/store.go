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
	// LocalGap is the shortest time without any sign of life that counts as
	// downtime on one manager's engine.
	LocalGap = time.Second
	// SharedGap is the same on engines that several managers share.
	SharedGap = 5 * time.Second
	// BeatInterval is how often a manager writes the time into the data.
	BeatInterval = 2 * time.Second
	// tick is how often a manager looks at its own time, on its own engine.
	tick = 250 * time.Millisecond
	// noteEvery is how much newer the time of a transaction must be to be noted.
	noteEvery = 10 * time.Millisecond
)

// Options of New.
type Options struct {
	// Leases are what is extended.
	Leases []store.Leases
	// OnExtended, when set, is told after an extension, on the goroutine of the
	// call that found it necessary.
	OnExtended func(Report)
	// Clock is this machine's, for shared engines; default time.Now.
	Clock func() time.Time
}

// Report tells what an extension did.
type Report struct {
	// From is the end of the time before the downtime, zero if it is not known.
	From time.Time
	// To is when the leases begin to run down again.
	To time.Time
	// Extended counts the leases that got time, by their name.
	Extended map[string]int
	// Took is how long the extension took.
	Took time.Duration
}

// Store is an engine with whose leases downtime does not count. Before Start it
// is the engine itself.
type Store struct {
	store.Store
	opts   Options
	shared bool
	gap    time.Duration

	// last is when a transaction of this manager is known to have run, in Unix
	// nanoseconds: by the engine's clock, or on a shared engine by this
	// machine's. Zero before Start.
	last atomic.Int64
	// extending is set while transactions of others have to wait.
	extending atomic.Bool
	// turn is held by the one that extends.
	turn  chan struct{}
	calls sync.Pool
}

// New returns a store around st, which Close closes.
func New(st store.Store, opts Options) *Store {
	if opts.Clock == nil {
		opts.Clock = time.Now
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

// errAway ends a function that must not decide anything yet.
var errAway = errors.New("downtime: leases have to be extended first")

// call is a transaction's function on its way.
type call struct {
	s    *Store
	fn   func(store.Tx) error
	inTx func(store.Tx) error // the method run, bound once
}

// run is fn, unless the manager was away before it or, on a shared engine, in
// the middle of it. On a local one the time of a transaction is fixed when this
// asks for it: however long it stands still afterwards, it decides by that time.
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

// alive notes that a transaction runs. It is false when none did for so long
// that leases have to be extended first.
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
		// A transaction that began has not reached the store yet.
	case since > noteEvery || since < -s.gap: // a clock that was set back
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
		if err := s.back(ctx); err != nil {
			return err
		}
	}
}

// reached notes that this manager reached the shared store.
func (s *Store) reached() {
	last, now := s.last.Load(), s.opts.Clock().UnixNano()
	if since := time.Duration(now - last); last != 0 && (since > noteEvery && since <= s.gap || since < -s.gap) {
		s.last.CompareAndSwap(last, now)
	}
}

// Start extends what was leased out when the last manager stopped. The manager
// may serve when it has returned nil; after an error it may not. What a crash
// left half done goes on with the next Start.
func (s *Store) Start(ctx context.Context) error { return s.back(ctx) }

// Run beats, and looks for gaps, until ctx ends. Errors of the store are left to
// the calls that need the store; the next beat tries again.
func (s *Store) Run(ctx context.Context) {
	every := tick
	if s.shared {
		every = BeatInterval
	}
	t := time.NewTicker(every)
	defer t.Stop()
	var beaten time.Time
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
		_ = s.Beat(ctx)
	}
}

// Beat writes the time into the data, on a local engine only while anything is
// leased out.
func (s *Store) Beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return s.Update(ctx, func(tx store.Tx) error {
		if !s.shared {
			if leased, err := s.leased(tx); err != nil || !leased {
				return err
			}
		}
		at, err := getBeat(tx)
		if ahead := at.Sub(tx.Now()); err != nil || ahead > 0 && ahead <= maxAhead {
			return err // an extension reaches until then
		}
		return putBeat(tx, tx.Now())
	})
}

// leased reports whether anything is leased out.
func (s *Store) leased(tx store.Tx) (bool, error) {
	for _, l := range s.opts.Leases {
		hits, err := tx.Scan(l.Collection, l.Index, store.Range{Limit: 1})
		if err != nil || len(hits) > 0 {
			return len(hits) > 0, err
		}
	}
	return false, nil
}
