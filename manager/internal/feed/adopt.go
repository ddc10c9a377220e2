package feed

import (
	"context"
	"errors"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// adoptBatch is how many outcomes one transaction adopts. It ends after importBytes, too.
const adoptBatch = 256

// adoption gives the ledger's origin to outcomes that were recorded while it had none, and publishes them. Without that no
// other data centre would ever learn of them.
type adoption struct {
	batch   int      // 0 before the first step
	indexes []string // of outcomes that are left
	after   *store.Hit
}

// adopt makes a step. more: there is another one. After an error, which is the store's, the step is made again.
func (f *Feed) adopt(ctx context.Context, a *adoption) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.ledger.Options().OpTimeout)
	defer cancel()
	if a.batch == 0 {
		// What is recorded between the counts has an origin, so they suggest no work where there is none.
		committed, _ := ledger.ByExpiry(api.StateCommitted, time.UnixMilli(0))
		rejected, _ := ledger.ByExpiry(api.StateRejected, time.UnixMilli(0))
		var n [3]int
		for i, index := range []string{committed, rejected, ledger.OriginIndex} {
			if n[i], err = f.store.Len(ctx, ledger.Collection, index); err != nil {
				return true, err
			}
		}
		if a.batch = adoptBatch; n[0]+n[1] > n[2] {
			a.indexes = []string{committed, rejected}
		}
	}
	if len(a.indexes) == 0 {
		return false, nil
	}
	var hits []store.Hit
	if err := f.store.View(ctx, func(tx store.Tx) (err error) {
		hits, err = tx.Scan(ledger.Collection, a.indexes[0], store.Range{After: a.after, Limit: a.batch})
		return err
	}); err != nil {
		return true, err
	}
	seen := 0
	err = f.ledger.Update(ctx, func(tx *ledger.Tx) error {
		if err := tx.Prefetch(store.IDs(ledger.Collection, hits)); err != nil {
			return err
		}
		seen = 0
		for size := 0; seen < len(hits) && size <= importBytes; seen++ {
			n, err := tx.Adopt(hits[seen].Key)
			if err != nil {
				return err
			}
			size += n
		}
		return nil
	})
	if errors.Is(err, store.ErrTooLarge) && a.batch > 1 {
		a.batch /= 2 // an engine with smaller transactions
		return true, nil
	}
	if err != nil {
		return true, err
	}
	if seen > 0 {
		a.after = &hits[seen-1]
	}
	if seen == len(hits) && len(hits) < a.batch {
		a.indexes, a.after = a.indexes[1:], nil
	}
	return len(a.indexes) > 0, nil
}
