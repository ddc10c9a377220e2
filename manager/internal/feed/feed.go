package feed

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// The feed gives each outcome a number in the collection changes, many in one record. That has no answers: the feed reads the
// entries themselves.
const (
	changes store.Collection = "changes"
	// indexOrder has them by the number of their last change.
	indexOrder  = "order"
	headKey     = "head"
	topic       = "changes"
	headVersion = 1
)

// Owns reports whether a collection is the feed's or its outbox, which have no answers.
func Owns(c store.Collection) bool { return c == ledger.Outbox || c == changes }

const (
	publishBatch = 512
	// publishKeys is how many changes one transaction takes from the outbox, and those of one record more.
	publishKeys  = 4096
	publishEvery = time.Second
	// publishPause lets outcomes gather, so that a busy ledger publishes in large transactions. On a slow or busy engine the
	// pause is publishShare times as long as it took to publish the last time, up to publishMost.
	publishPause = 20 * time.Millisecond
	publishShare = 8
	publishMost  = 200 * time.Millisecond
	// pageBytes bounds the answers on one page of changes.
	pageBytes = 1 << 20
)

// MaxLimit bounds the changes of one page.
const MaxLimit = 500

// Errors of the change feed.
var (
	// ErrNoOrigin: the ledger has no origin, or another one than was asked for.
	ErrNoOrigin = errors.New("feed: the ledger has no feed of that origin")
	// ErrCursorGone: the feed does not go back to the cursor. A reader that begins again without one gets everything.
	ErrCursorGone = errors.New("feed: it does not go back to the cursor")
)

// OriginError says that the data belong to another origin.
type OriginError struct{ Have, Want string }

func (e *OriginError) Error() string {
	return fmt.Sprintf("must be %q, the origin of the outcomes in the store; it cannot change", e.Have)
}

// Options configure a Feed; the zero value of a field means its default.
type Options struct {
	// Kept bounds the changes that the feed keeps. Default 100000.
	Kept int
}

// Feed publishes what a ledger records. It is safe for concurrent use and starts no goroutine; the owner runs Run. A ledger
// without an origin has an empty one, which does nothing.
type Feed struct {
	ledger *ledger.Ledger
	store  store.Store
	origin string
	kept   uint64
	shared bool // several managers may publish
	batch  atomic.Int64
	// unreadable is how many records at the front of the outbox cannot be read. They stay there.
	unreadable atomic.Int64
	published  atomic.Uint64
}

// New returns the feed of a ledger, which is on st. Open comes before all other calls.
func New(st store.Store, l *ledger.Ledger, o Options) *Feed {
	f := &Feed{ledger: l, store: st, origin: l.Options().Origin, kept: uint64(cmp.Or(o.Kept, 100_000)), shared: st.Capabilities().Shared}
	f.batch.Store(publishBatch)
	return f
}

// Published is how many outcomes this process has published.
func (f *Feed) Published() uint64 { return f.published.Load() }

// head says where the feed is.
type head struct {
	Version int    `json:"version"`
	Origin  string `json:"origin"`
	// Epoch is another one after each restore to an older point: numbers are not compared across it.
	Epoch string `json:"epoch"`
	// First is the oldest change that is kept, Next the one that comes next.
	First uint64 `json:"first"`
	Next  uint64 `json:"next"`
	// Whole: no change was ever left out or deleted, so the feed from First on is everything.
	Whole bool `json:"whole"`
	// HLC is the clock when the head was written. On an engine that one process uses, all outcomes up to that time are
	// published.
	HLC uint64 `json:"hlc,string"`
	// Restored names the restore that the epoch began with.
	Restored string `json:"restored,omitempty"`
}

// restoreJump is more changes than a feed makes between a restore's point and the restore. Numbers are above those that
// were given out before.
const restoreJump = 1 << 32

func getHead(tx store.Tx) (*head, error) {
	b, err := tx.Get(changes, headKey)
	if err != nil {
		return nil, err
	}
	h := new(head)
	if err := json.Unmarshal(b, h); err != nil || h.Version != headVersion {
		return nil, &store.UnreadableError{Collection: changes, Key: headKey, Reason: "it is of another version or malformed"}
	}
	return h, nil
}

func (h *head) put(tx store.Tx) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return tx.Put(changes, headKey, b)
}

// Open prepares the feed, before the ledger is used or when its server was restored. restored names the restore to an older
// point that the data come from, if any. Its error is an *OriginError or the store's.
func (f *Feed) Open(ctx context.Context, restored string) error {
	if f.origin == "" {
		return nil
	}
	f.batch.Store(publishBatch)
	if err := f.ledger.CountLosers(ctx); err != nil {
		return err
	}
	epoch := rand.Text()
	published := uint64(0)
	err := f.store.Update(ctx, func(tx store.Tx) error {
		published = 0
		h, err := getHead(tx)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return (&head{Version: headVersion, Origin: f.origin, Epoch: epoch, First: 1, Next: 1, Whole: restored == "", Restored: restored}).put(tx)
		case err != nil:
			return err
		case h.Origin != f.origin:
			return &OriginError{Have: h.Origin, Want: f.origin}
		}
		f.ledger.Clock().Observe(h.HLC)
		published = h.HLC
		if restored == "" || h.Restored == restored {
			return nil
		}
		h.Epoch, h.Restored, h.Whole = epoch, restored, false
		h.Next += restoreJump
		h.First = h.Next // what is left of older ones is of no use
		return h.put(tx)
	})
	if err != nil || f.shared {
		return err
	}
	// Outcomes that an earlier process did not publish come before all later ones, whatever the wall clock says now.
	for _, c := range ledger.OutcomeCollections {
		last := uint64(0)
		err := f.store.View(ctx, func(tx store.Tx) (err error) {
			last, err = lastOutcome(tx, c, f.origin, published)
			return err
		})
		if err != nil {
			return err
		}
		f.ledger.Clock().Observe(last)
	}
	return nil
}

// Run publishes outcomes until ctx ends, those from before the ledger had an origin too, and removes conflicts that are
// over. An error of the store is passed to report; the next round tries again.
func (f *Feed) Run(ctx context.Context, report func(error)) {
	if f.origin == "" {
		return
	}
	tick, sweep := time.NewTicker(publishEvery), time.NewTicker(f.ledger.Options().CleanupInterval)
	defer tick.Stop()
	defer sweep.Stop()
	wait := publishPause
	var adopted adoption
	adopt := time.NewTimer(wait)
	defer adopt.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-sweep.C:
			err = f.sweep(ctx)
		case <-tick.C:
			err = f.Publish(ctx)
		case <-adopt.C:
			var more bool
			if more, err = f.adopt(ctx, &adopted); err != nil {
				adopt.Reset(publishEvery)
			} else if more {
				adopt.Reset(wait)
			}
		case <-f.ledger.OutcomeRecorded():
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			began := time.Now()
			err = f.Publish(ctx)
			wait = min(max(publishPause, publishShare*time.Since(began)), publishMost)
		}
		if err != nil && ctx.Err() == nil && report != nil && !errors.Is(err, store.ErrConflict) {
			report(err)
		}
	}
}

// sweep removes conflicts that are over, and changes that are not kept.
func (f *Feed) sweep(ctx context.Context) error {
	err := f.clear(ctx, ledger.ConflictCollection, ledger.ScanOver)
	if err == nil {
		err = f.ledger.CountLosers(ctx)
	}
	if err != nil {
		return err
	}
	return f.clear(ctx, changes, func(tx store.Tx, after *store.Hit, limit int) ([]store.Hit, error) {
		head, err := getHead(tx)
		if err != nil {
			return nil, err
		}
		return tx.Scan(changes, indexOrder, store.Range{After: after, To: hex16(head.First), Limit: limit})
	})
}

// clear deletes the records that a scan finds, except outcomes that are not over: a scan may show what was. It looks at
// each once, because entries of a damaged record may stay when it is deleted.
func (f *Feed) clear(ctx context.Context, c store.Collection, scan func(tx store.Tx, after *store.Hit, limit int) ([]store.Hit, error)) error {
	const most = 32
	var after *store.Hit
	for {
		var old []store.Hit
		err := f.store.View(ctx, func(tx store.Tx) (err error) {
			old, err = scan(tx, after, most)
			return err
		})
		if err != nil || len(old) == 0 {
			return err
		}
		err = f.store.Update(ctx, func(tx store.Tx) error {
			for _, h := range old {
				if c == ledger.ConflictCollection {
					_, lasts, err := ledger.ReadOutcome(tx, c, h.Key)
					if err != nil && !f.ledger.Skips(err) {
						return err
					}
					if lasts {
						continue
					}
				}
				if err := tx.Delete(c, h.Key); err != nil {
					return err
				}
			}
			return nil
		})
		if errors.Is(err, store.ErrConflict) {
			return nil
		}
		if err != nil || len(old) < most {
			return err
		}
		after = &old[most-1]
	}
}

// hex16 is a number whose bytes sort as the numbers do.
func hex16(v uint64) string { return fmt.Sprintf("%016x", v) }
