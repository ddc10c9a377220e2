package ledger

import (
	"context"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Capacity is how much of the window is used, and what it can take.
type Capacity struct {
	// Entries are all entries. Bytes is -1, as MaxBytes, where bytes are not bounded.
	Entries, MaxEntries int
	Bytes, MaxBytes     int64
	// Oldest is about the age of the oldest entry: the highest age among the entries that expire first, one of each state.
	// 0 if there are no entries.
	Oldest time.Duration
	// KeysPerSecond is how many new keys per second the window holds, ScopeKeysPerSecond those of one scope (see
	// Options.KeysPerSecond). CommittedTTL is for how long each stays then.
	KeysPerSecond, ScopeKeysPerSecond float64
	CommittedTTL                      time.Duration
}

// Capacity returns the use of the window. It reads the counts and an entry of each state.
func (l *Ledger) Capacity(ctx context.Context) (Capacity, error) {
	s, err := l.Stats(ctx)
	if err != nil {
		return Capacity{}, err
	}
	c := Capacity{
		Entries: s.Total(), MaxEntries: s.MaxEntries, Bytes: s.Bytes, MaxBytes: s.MaxBytes,
		CommittedTTL: l.opts.CommittedTTL,
	}
	c.KeysPerSecond, c.ScopeKeysPerSecond = l.opts.KeysPerSecond(l.sizes)
	err = l.store.View(ctx, func(tx store.Tx) error {
		c.Oldest = 0
		first := store.Range{From: sortKey(tx.Now().UnixMilli() + 1), Limit: 1}
		for _, state := range storedStates {
			hits, err := tx.Scan(Collection, indexOf(state), first)
			if err != nil {
				return err
			}
			for _, h := range hits {
				e, err := l.getLive(tx, h.Key)
				if err == nil {
					c.Oldest = max(c.Oldest, e.Age)
				}
			}
		}
		return nil
	})
	return c, err
}

// PendingByAge returns the reservations that hold, the oldest first and up to limit. It looks at the MaxListLimit that
// run out first; more says that there are others. List has all of them, in the order in which they run out.
func (l *Ledger) PendingByAge(ctx context.Context, limit int) (entries []Entry, more bool, err error) {
	entries, cursor, err := l.List(ctx, api.StatePending, MaxListLimit, "")
	if err != nil {
		return nil, false, err
	}
	slices.SortStableFunc(entries, func(a, b Entry) int { return int(min(max(b.Age-a.Age, -1), 1)) })
	return entries[:min(limit, len(entries))], cursor != "" || len(entries) > limit, nil
}
