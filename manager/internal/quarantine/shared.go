package quarantine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Collection has the quarantine of a store that several managers share, in two records: what is left of it, as long as
// there is anything, and what the restore left forever.
const Collection store.Collection = "quarantine"

const (
	leftKey    = "left"
	restoreKey = "restore"
	version    = 1
)

// left is the record that each reserve reads.
type left struct {
	Version int `json:"version"`
	// Remaining milliseconds of serving time.
	Remaining int64 `json:"remaining_ms"`
	// CountedTo is the time of the store, in Unix milliseconds, up to which it was counted down.
	CountedTo int64 `json:"counted_to_ms"`
	// Why are the reasons, for people.
	Why []string `json:"why,omitempty"`
	// Unsure: nobody has said yet that something was forgotten.
	Unsure bool `json:"unsure,omitempty"`
}

// restore is the record that outlives the quarantine.
type restore struct {
	Version int `json:"version"`
	// EpochFloor is at least each epoch that was given to a writer before the restore.
	EpochFloor uint64 `json:"epoch_floor"`
	// Began is when the quarantine began that came last. It names the restore.
	Began time.Time `json:"began"`
}

func get(tx store.Tx, key string, into any, check func() bool) error {
	b, err := tx.Get(Collection, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil || !check() {
		return &store.UnreadableError{Collection: Collection, Key: key, Reason: fmt.Sprintf("not a record of version %d", version)}
	}
	return nil
}

func getLeft(tx store.Tx) (l left, err error) {
	err = get(tx, leftKey, &l, func() bool { return l.Version == version && l.Remaining > 0 })
	return l, err
}

func getRestore(tx store.Tx) (r restore, err error) {
	err = get(tx, restoreKey, &r, func() bool { return r.Version == version })
	return r, err
}

func put(tx store.Tx, key string, record any) error {
	b, err := json.Marshal(record)
	if err != nil {
		return err
	}
	return tx.Put(Collection, key, b)
}

// load returns what both records say. With mend, it deletes those that cannot be read.
func load(tx store.Tx, mend bool) (Record, error) {
	l, err := getLeft(tx)
	if mend && errors.Is(err, store.ErrUnreadable) {
		err = tx.Delete(Collection, leftKey)
	}
	if err != nil {
		return Record{}, err
	}
	r, err := getRestore(tx)
	if mend && errors.Is(err, store.ErrUnreadable) {
		r, err = restore{}, tx.Delete(Collection, restoreKey)
	}
	return Record{l.Remaining, l.Remaining, r.EpochFloor, r.Began, l.Why, l.Unsure}, err
}

// update changes the records of a store, unless do returns false, and returns what they then say.
func update(ctx context.Context, st store.Store, mend bool, do func(r *Record, now time.Time) bool) (s State, err error) {
	err = st.Update(ctx, func(tx store.Tx) error {
		r, err := load(tx, mend)
		if err != nil {
			return err
		}
		floor, now := r.EpochFloor, tx.Now()
		if !do(&r, now) {
			s = r.state()
			return nil
		}
		s = r.state()
		if r.over() {
			err = tx.Delete(Collection, leftKey)
		} else {
			err = put(tx, leftKey, left{version, r.Remaining, now.UnixMilli(), r.Why, r.Unsure})
		}
		if err == nil && r.EpochFloor != floor { // it began
			err = put(tx, restoreKey, restore{version, r.EpochFloor, r.RestoredTo})
		}
		return err
	})
	return s, err
}

// Read returns the quarantine of a store. The error is a *store.UnreadableError or the store's.
func Read(ctx context.Context, st store.Store) (s State, err error) {
	err = st.View(ctx, func(tx store.Tx) error {
		r, err := load(tx, false)
		s = r.state()
		return err
	})
	return s, err
}

// Begin begins a quarantine for all managers of a store at once: what none of them has committed by then, none commits.
// One that is under way is not made shorter. The floor of epochs goes up each time. Records that cannot be read are
// replaced.
func Begin(ctx context.Context, st store.Store, d time.Duration, why string) (State, error) {
	return update(ctx, st, true, func(r *Record, now time.Time) bool {
		r.begin(d, d, now.UTC(), why)
		return true
	})
}

// End ends the quarantine of a store for all of its managers. The floor of epochs stays. The state is that before the end,
// without remaining time.
func End(ctx context.Context, st store.Store) (was State, err error) {
	_, err = update(ctx, st, false, func(r *Record, _ time.Time) bool {
		was = r.state()
		r.end()
		return true
	})
	was.Remaining = 0
	return was, err
}

const (
	// countEvery is how often a manager counts, and looks whether a quarantine began.
	countEvery = time.Second
	// maxCount bounds what is counted at once: a manager that was away for longer did not serve.
	maxCount = 10 * time.Second
)

// Shared is the quarantine of a store that several managers share. Each reserve reads it in its own transaction.
type Shared struct {
	controls
	st      store.Store
	known   atomic.Pointer[State]
	counted time.Time // when this manager counted last

	mu     sync.Mutex
	before *State // what was known before this manager changed something that Run has not reported yet
}

// OpenShared reads what the store says. The error is a *store.UnreadableError or the store's.
func OpenShared(ctx context.Context, st store.Store) (*Shared, error) {
	s := &Shared{st: st, counted: time.Now()}
	s.keeper = s
	now, err := Read(ctx, st)
	s.known.Store(&now)
	return s, err
}

// Left is for how much longer unknown keys must be refused, as of the transaction; 0 when it is over.
func (s *Shared) Left(tx store.Tx) (time.Duration, error) {
	l, err := getLeft(tx)
	return time.Duration(l.Remaining) * time.Millisecond, err
}

// LogsLeft is Left for the ids of named logs.
func (s *Shared) LogsLeft(tx store.Tx) (time.Duration, error) { return s.Left(tx) }

// EpochFloor is the number above which epochs of writers continue, as of the transaction.
func (s *Shared) EpochFloor(tx store.Tx) (uint64, error) {
	r, err := getRestore(tx)
	return r.EpochFloor, err
}

// Record is what Left and LogsLeft read.
func (s *Shared) Record() (store.ID, bool) {
	return store.ID{Collection: Collection, Key: leftKey}, true
}

// Remaining is for how much longer anything must be refused, as of a second ago; 0 when it is over.
func (s *Shared) Remaining() time.Duration { return s.known.Load().Remaining }

// State is what is known of the quarantine, as of a second ago.
func (s *Shared) State() State { return *s.known.Load() }

// Begin begins a quarantine for all managers of the store, for the longer of d and window at least and for that reason.
func (s *Shared) Begin(ctx context.Context, d, window time.Duration, why string) error {
	now, err := Begin(ctx, s.st, max(d, window), why)
	if err == nil {
		s.note(now)
	}
	return err
}

// change changes the records of the store.
func (s *Shared) change(ctx context.Context, do func(r *Record, now time.Time) bool) error {
	now, err := update(ctx, s.st, false, do)
	if err == nil {
		s.note(now)
	}
	return err
}

// note has Run report a state that this manager caused.
func (s *Shared) note(now State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.known.Swap(&now)
	if s.before == nil {
		s.before = before
	}
}

// Run counts a quarantine down until ctx ends, together with the other managers of the store, and tells changed of what
// became of it. Errors of the store are left to the next time: calls that need the store report them, and what was not
// counted makes the quarantine longer.
func (s *Shared) Run(ctx context.Context, changed func(before, after State)) {
	t := time.NewTicker(countEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		s.mu.Lock()
		known, before := s.known.Load(), s.before
		s.mu.Unlock()
		if before == nil {
			before = known
		}
		after, err := s.count(ctx)
		if err != nil {
			continue
		}
		s.mu.Lock()
		counted := s.known.CompareAndSwap(known, &after)
		if counted {
			s.before = nil
		}
		s.mu.Unlock()
		if !counted {
			continue // this manager changed it meanwhile
		}
		if !before.RestoredTo.Equal(after.RestoredTo) || (before.Remaining > 0) != (after.Remaining > 0) {
			changed(*before, after)
		}
	}
}

// count counts what this manager has seen pass since it counted last, as far as no other manager has.
func (s *Shared) count(ctx context.Context) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, maxCount)
	defer cancel()
	now, err := Read(ctx, s.st)
	began := time.Now()
	passed := min(began.Sub(s.counted), maxCount)
	if err == nil && now.Remaining > 0 {
		err = s.st.Update(ctx, func(tx store.Tx) error {
			l, err := getLeft(tx)
			if err != nil || l.Remaining == 0 {
				now.Remaining = 0
				return err
			}
			at := tx.Now().UnixMilli()
			n := min(at-l.CountedTo, passed.Milliseconds())
			now.Remaining = time.Duration(l.Remaining) * time.Millisecond
			switch {
			case n >= 0 && n < countEvery.Milliseconds()/2:
				return nil // others have counted it
			case n >= l.Remaining:
				now.Remaining = 0
				return tx.Delete(Collection, leftKey)
			}
			l.Remaining, l.CountedTo = l.Remaining-max(n, 0), at // also after the store's clock was set back
			now.Remaining = time.Duration(l.Remaining) * time.Millisecond
			return put(tx, leftKey, l)
		})
	}
	if err == nil {
		s.counted = began
	}
	return now, err
}
