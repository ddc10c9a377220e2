package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

const (
	// sweepBatch is how many entries one transaction of the sweeper removes.
	sweepBatch = 256
	// sweepBytes ends a batch early, to keep the transaction small.
	sweepBytes = 1 << 20
)

// Run removes expired entries every CleanupInterval, and notes the counters for Funnel every minute, until ctx ends. An
// error of the store ends only the sweep and is passed to report, which may be nil. At the end Run stores what scopes hold,
// which takes OpTimeout at most.
func (l *Ledger) Run(ctx context.Context, report func(error)) {
	t := time.NewTicker(l.opts.CleanupInterval)
	defer t.Stop()
	l.sampleFunnel(time.Now())
	minute := time.NewTimer(untilMinute(time.Now()))
	defer minute.Stop()
	for {
		select {
		case <-ctx.Done():
			_ = l.storeScopes(context.WithoutCancel(ctx)) // after an error the next start finds what a kill leaves
			return
		case <-minute.C:
			l.sampleFunnel(time.Now())
			minute.Reset(untilMinute(time.Now()))
			continue
		case <-t.C:
		}
		err := l.maintain(ctx)
		if err == nil || ctx.Err() != nil {
			continue
		}
		l.counters.sweepErrors.Add(1)
		if report != nil {
			report(err)
		}
	}
}

func (l *Ledger) maintain(ctx context.Context) error {
	if _, err := l.Sweep(ctx); err != nil {
		return err
	}
	if !l.sizes {
		l.scopes.Decay(l.opts.CleanupInterval, l.opts.CommittedTTL)
		return nil
	}
	l.scopes.Settle()
	return l.countPending(ctx)
}

// Sweep removes all expired entries in bounded transactions and returns how many. It stores as UNKNOWN the reservations
// that ran out. It reads the expiry indexes only as far as necessary, and each entry there once.
func (l *Ledger) Sweep(ctx context.Context) (int, error) {
	total := 0
	for _, state := range storedStates {
		for done := (swept{more: true}); done.more; {
			var err error
			done, err = l.sweepOnce(ctx, state, done.last)
			total += done.removed
			if err != nil {
				return total, err
			}
		}
	}
	return total, nil
}

// sweepOnce removes one batch of expired entries of a state, after `after`.
func (l *Ledger) sweepOnce(ctx context.Context, state api.State, after *store.Hit) (done swept, err error) {
	ctx, cancel := l.opContext(ctx)
	defer cancel()
	due := false
	err = l.store.View(ctx, func(tx store.Tx) error {
		hits, err := tx.Scan(Collection, indexOf(state), store.Range{To: sortKey(tx.Now().UnixMilli() + 1), After: after, Limit: 1})
		due = len(hits) > 0
		return err
	})
	if err != nil || !due {
		return swept{}, err
	}
	err = l.transact(ctx, func(tx *Tx) error {
		var err error
		done, err = tx.sweep("", state, after, sweepBatch, true)
		return err
	})
	if errors.Is(err, store.ErrConflict) {
		// Another manager is sweeping, or the entry is contended; the next sweep tries again.
		return swept{}, nil
	}
	if err != nil {
		return swept{}, err
	}
	return done, nil
}

// swept is the result of Tx.sweep.
type swept struct {
	removed int
	last    *store.Hit // as far as it got
	more    bool       // there may be more after last
}

// sweep removes up to limit expired entries of a state, other than key. It begins after `after` or, if that is nil,
// after the records at the beginning that cannot be read. A reservation that ran out and is UNKNOWN for a while is
// stored in that state if lapse is true, and skipped otherwise.
func (tx *Tx) sweep(key string, state api.State, after *store.Hit, limit int, lapse bool) (swept, error) {
	now := tx.Now().UnixMilli()
	index := indexOf(state)
	if after == nil {
		after = tx.l.front.After(index)
	}
	r := store.Range{To: sortKey(now + 1), After: after, Limit: limit}
	if !lapse {
		r.Limit = max(limit, leastScan)
	}
	if key != "" {
		r.Limit++ // key may be among the hits
	}
	hits, err := tx.Scan(Collection, index, r)
	if err != nil {
		return swept{}, err
	}
	var lead unread.Lead
	defer lead.Pass(&tx.l.front, index)
	seen, removed, changed, size := 0, 0, 0, 0
	for ; seen < len(hits) && removed < limit; seen++ {
		h := hits[seen]
		if h.Key == key {
			continue
		}
		var r record
		e, err := tx.l.load(tx.Tx, h.Key, &r)
		if err != nil && !tx.l.opts.Unreadable.Met(err) {
			return swept{}, err
		}
		if lead.See(h, e != nil); e == nil || now < e.expires {
			continue // the hit was stale, or its record is gone
		}
		unknown := live(e, now)
		if unknown && !lapse {
			continue
		}
		if size += e.size; changed > 0 && size > sweepBytes {
			break
		}
		if changed++; unknown {
			err = tx.lapse(h.Key, e, now)
		} else {
			removed++
			err = tx.remove(h.Key, e)
		}
		if err != nil {
			return swept{}, err
		}
	}
	tx.fx.expired += uint64(removed)
	done := swept{removed: removed, more: seen < len(hits) || len(hits) == r.Limit}
	if seen > 0 {
		done.last = &hits[seen-1]
	}
	return done, nil
}

// lapse stores that a reservation that ran out is UNKNOWN.
func (tx *Tx) lapse(key string, e *record, now int64) error {
	tx.changed(key, e, -1)
	e.state, e.expires = standing(e, now)
	if err := tx.write(key, e); err != nil {
		return err
	}
	tx.fx.lapsed++
	tx.change(OpLapse, key)
	tx.Notify(key)
	return nil
}
