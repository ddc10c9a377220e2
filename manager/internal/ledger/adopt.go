package ledger

import (
	"context"
	"errors"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// adoptBatch is how many outcomes one transaction adopts.
const adoptBatch = 256

// Adoption gives this ledger's origin to outcomes that were recorded while it had none, and publishes them. Without that no
// other data centre would ever learn of them.
type Adoption struct {
	batch  int         // 0 before the first step
	states []api.State // that are left
	after  *store.Hit
}

// Adopt makes a step. more: there is another one. After an error, which is the store's, the step is made again.
func (l *Ledger) Adopt(ctx context.Context, a *Adoption) (more bool, err error) {
	defer func() {
		if more && err == nil {
			l.noteRecorded()
		}
	}()
	ctx, cancel := l.opContext(ctx)
	defer cancel()
	if a.batch == 0 {
		// What is recorded between the counts has an origin, so they suggest no work where there is none.
		var n [3]int
		for i, index := range []string{indexOf(api.StateCommitted), indexOf(api.StateRejected), OriginIndex} {
			if n[i], err = l.store.Len(ctx, Collection, index); err != nil {
				return true, err
			}
		}
		if a.batch = adoptBatch; n[0]+n[1] > n[2] {
			a.states = []api.State{api.StateCommitted, api.StateRejected}
		}
	}
	if len(a.states) == 0 {
		return false, nil
	}
	var hits []store.Hit
	if err := l.store.View(ctx, func(tx store.Tx) (err error) {
		hits, err = tx.Scan(Collection, indexOf(a.states[0]), store.Range{After: a.after, Limit: a.batch})
		return err
	}); err != nil {
		return true, err
	}
	seen := 0
	if err := l.transact(ctx, func(tx *Tx) (err error) {
		seen, err = tx.adoptAll(hits)
		return err
	}); errors.Is(err, store.ErrTooLarge) && a.batch > 1 {
		a.batch /= 2 // an engine with smaller transactions
		return true, nil
	} else if err != nil {
		return true, err
	}
	if seen > 0 {
		a.after = &hits[seen-1]
	}
	if seen == len(hits) && len(hits) < a.batch {
		a.states, a.after = a.states[1:], nil
	}
	return len(a.states) > 0, nil
}

// adoptAll adopts the outcomes among hits that have no origin, until they are many bytes. seen is how far it came.
func (tx *Tx) adoptAll(hits []store.Hit) (seen int, err error) {
	if err := tx.Tx.Prefetch(store.IDs(Collection, hits)); err != nil {
		return 0, err
	}
	now, size := tx.Now().UnixMilli(), 0
	for ; seen < len(hits) && size <= importBytes; seen++ {
		key := hits[seen].Key
		var r record
		e, err := tx.l.load(tx.Tx, key, &r)
		if tx.l.Skips(err) {
			continue
		}
		if err != nil {
			return 0, err
		}
		if e == nil || !e.state.Terminal() || !live(e, now) {
			continue
		}
		left := *e
		if !tx.adopt(e) {
			continue
		}
		tx.supersede(key, &left, now)
		if err := tx.write(key, e); err != nil {
			return 0, err
		}
		tx.publishAdopted(key, e)
		size += e.size
	}
	return seen, nil
}
