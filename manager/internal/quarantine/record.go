package quarantine

import (
	"context"
	"slices"
	"time"
)

// Record is what the file holds.
type Record struct {
	// Remaining milliseconds of serving time.
	Remaining int64 `json:"remaining_ms"`
	// Logs are the remaining milliseconds of all named logs.
	Logs int64 `json:"logs_ms,omitempty"`
	// EpochFloor is at least each epoch that was given to a writer before the restore; 0 means that it is not known.
	EpochFloor uint64 `json:"epoch_floor,omitempty"`
	// RestoredTo is the point in time that the directory was restored to, or when a later quarantine began.
	RestoredTo time.Time `json:"restored_to"`
	// Why are the reasons, for people: what may be forgotten, and who knows it.
	Why []string `json:"why,omitempty"`
	// Unsure: nobody has said yet that something was forgotten.
	Unsure bool `json:"unsure,omitempty"`
}

// State is what is known of a quarantine.
type State struct {
	// Remaining is for how much longer unknown keys and ids are refused; 0 when it is over.
	Remaining time.Duration
	// EpochFloor is the number above which epochs of writers continue; 0 before the first quarantine.
	EpochFloor uint64
	// RestoredTo is when the last quarantine began, or the point in time that a directory was restored to; zero before the
	// first one. It names the restore.
	RestoredTo time.Time
	// Why are the reasons, for people: what may be forgotten, and who knows it.
	Why []string
	// Unsure: nobody has said yet that something was forgotten.
	Unsure bool
}

func (r *Record) state() State {
	return State{time.Duration(max(r.Remaining, r.Logs)) * time.Millisecond, r.EpochFloor, r.RestoredTo, r.Why, r.Unsure}
}

func (r *Record) over() bool { return r.Remaining == 0 && r.Logs == 0 }

// begin begins a quarantine, which is named by a time, for d at least, and of logs for window if that is longer. One that is
// under way is not made shorter, and the floor of epochs goes up each time.
func (r *Record) begin(d, window time.Duration, at time.Time, why string) {
	if r.Unsure { // now somebody is sure
		r.Why = nil
	}
	r.extend(d, why)
	r.Logs = max(r.Logs, milliseconds(window))
	later := time.Now() // the clock of a store may have been restored
	if at.After(later) {
		later = at
	}
	r.EpochFloor, r.RestoredTo, r.Unsure = NextFloor(later, r.EpochFloor), at, false
}

func (r *Record) extend(d time.Duration, why string) {
	r.Remaining, r.Logs = max(r.Remaining, milliseconds(d)), max(r.Logs, milliseconds(d))
	why = why[:min(len(why), maxWhyBytes)]
	if why != "" && len(r.Why) < maxWhy && !slices.Contains(r.Why, why) {
		r.Why = append(slices.Clone(r.Why), why)
	}
}

// end ends a quarantine. The floor of epochs stays.
func (r *Record) end() { *r = Record{EpochFloor: r.EpochFloor, RestoredTo: r.RestoredTo} }

// maxWhy bounds the reasons that are kept, each of maxWhyBytes. The first ones stay.
const (
	maxWhy      = 8
	maxWhyBytes = 500
)

// milliseconds is a duration in milliseconds, 1 at least when there is any.
func milliseconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return max(1, d.Milliseconds())
}

// keeper keeps the record of a quarantine: in a directory, or in a store.
type keeper interface {
	State() State
	Remaining() time.Duration
	// change changes the record as of now, unless do returns false.
	change(ctx context.Context, do func(r *Record, now time.Time) bool) error
}

// controls are what a manager does with its quarantine, wherever that is kept.
type controls struct{ keeper keeper }

// Doubt begins a quarantine that Trust may end, unless there is one: nobody has said yet that something was forgotten.
func (c controls) Doubt(ctx context.Context, d time.Duration, why string) error {
	return c.keeper.change(ctx, func(r *Record, _ time.Time) bool {
		if !r.over() {
			return false
		}
		r.extend(d, why)
		r.Unsure = true
		return true
	})
}

// Trust ends a quarantine that Doubt began, and no other. It reports whether it did.
func (c controls) Trust(ctx context.Context) (ended bool, err error) {
	if !c.keeper.State().Unsure {
		return false, nil
	}
	err = c.keeper.change(ctx, func(r *Record, _ time.Time) bool {
		if ended = r.Unsure; ended {
			r.end()
		}
		return ended
	})
	return ended, err
}

// End ends a quarantine, whatever it is for. The floor of epochs stays. The state is that before the end.
func (c controls) End(ctx context.Context) (was State, err error) {
	was = c.keeper.State()
	return was, c.keeper.change(ctx, func(r *Record, _ time.Time) bool {
		r.end()
		return true
	})
}

// Extend makes a quarantine last for d at least from now on. It begins one if there is none.
func (c controls) Extend(ctx context.Context, d time.Duration, why string) error {
	if c.keeper.Remaining() >= d {
		return nil
	}
	return c.keeper.change(ctx, func(r *Record, _ time.Time) bool {
		r.extend(d, why)
		return true
	})
}
