package ledger

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Collections of the change feed. A publisher gives each outcome a number in changes, many in one record. Neither has an
// answer: the feed reads the entries themselves.
const (
	outbox  store.Collection = "outbox"
	changes store.Collection = "changes"
	// indexOrder has records of the feed by the number of their last change, and those of the outbox by time.
	indexOrder  = "order"
	feedHead    = "head"
	feedTopic   = "changes"
	feedVersion = 1 // of the head
)

// FeedCollection reports whether a collection is one of the feed's, which have no answers.
func FeedCollection(c store.Collection) bool { return c == outbox || c == changes }

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
	// feedBytes bounds the answers on one page of changes.
	feedBytes = 1 << 20
)

// MaxFeedLimit bounds the changes of one page.
const MaxFeedLimit = 500

// Errors of the change feed.
var (
	// ErrNoOrigin: the ledger has no origin, or another one than was asked for.
	ErrNoOrigin = errors.New("ledger: it has no feed of that origin")
	// ErrCursorGone: the feed does not go back to the cursor. A reader that begins again without one gets everything.
	ErrCursorGone = errors.New("ledger: the feed does not go back to the cursor")
)

// OriginError says that the data belong to another origin.
type OriginError struct{ Have, Want string }

func (e *OriginError) Error() string {
	return fmt.Sprintf("must be %q, the origin of the outcomes in the store; it cannot change", e.Have)
}

// feed is what this process knows of the change feed.
type feed struct {
	clock hybridClock
	// id is in the keys of lists, so that those of two managers differ.
	id    string
	wake  chan struct{}
	batch atomic.Int64
	// unreadable is how many records at the front of the outbox cannot be read. They stay there.
	unreadable atomic.Int64
	counted    struct{ published, imported, repeated, dropped, deferred, invalid, clashes, unkept atomic.Uint64 }
	// losers is how many outcomes that lost are kept, as of the last sweep and with those that this process added.
	losers atomic.Int64
}

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
	b, err := tx.Get(changes, feedHead)
	if err != nil {
		return nil, err
	}
	h := new(head)
	if err := json.Unmarshal(b, h); err != nil || h.Version != feedVersion {
		return nil, &store.UnreadableError{Collection: changes, Key: feedHead, Reason: "it is of another version or malformed"}
	}
	return h, nil
}

func (h *head) put(tx store.Tx) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return tx.Put(changes, feedHead, b)
}

func newEpoch() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

// OpenFeed prepares the feed, before the ledger is used or when its server was restored. restored names the restore to an older point that the data come
// from, if any. Its error is an *OriginError or the store's.
func (l *Ledger) OpenFeed(ctx context.Context, restored string) error {
	if l.opts.Origin == "" {
		return nil
	}
	l.feed.batch.Store(publishBatch)
	if err := l.countLosers(ctx); err != nil {
		return err
	}
	epoch := newEpoch()
	published := uint64(0)
	err := l.store.Update(ctx, func(tx store.Tx) error {
		published = 0
		h, err := getHead(tx)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return (&head{Version: feedVersion, Origin: l.opts.Origin, Epoch: epoch, First: 1, Next: 1, Whole: restored == "", Restored: restored}).put(tx)
		case err != nil:
			return err
		case h.Origin != l.opts.Origin:
			return &OriginError{Have: h.Origin, Want: l.opts.Origin}
		}
		l.feed.clock.observe(h.HLC)
		published = h.HLC
		if restored == "" || h.Restored == restored {
			return nil
		}
		h.Epoch, h.Restored, h.Whole = epoch, restored, false
		h.Next += restoreJump
		h.First = h.Next // what is left of older ones is of no use
		return h.put(tx)
	})
	if err != nil || l.shared {
		return err
	}
	// Outcomes that an earlier process did not publish come before all later ones, whatever the wall clock says now.
	for _, c := range []store.Collection{collection, conflicts} {
		last := uint64(0)
		err := l.store.View(ctx, func(tx store.Tx) (err error) {
			last, err = lastOutcome(tx, c, l.opts.Origin, published)
			return err
		})
		if err != nil {
			return err
		}
		l.feed.clock.observe(last)
	}
	return nil
}

// RunFeed publishes outcomes until ctx ends, those from before the ledger had an origin too, and removes conflicts that are
// over. An error of the store is
// passed to report; the next round tries again.
func (l *Ledger) RunFeed(ctx context.Context, report func(error)) {
	if l.opts.Origin == "" {
		return
	}
	tick, sweep := time.NewTicker(publishEvery), time.NewTicker(l.opts.CleanupInterval)
	defer tick.Stop()
	defer sweep.Stop()
	wait := publishPause
	adopting, adopted := true, adoption{}
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-sweep.C:
			err = l.sweepFeed(ctx)
		case <-tick.C:
			err = l.Publish(ctx)
		case <-l.feed.wake:
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			began := time.Now()
			err = l.Publish(ctx)
			wait = min(max(publishPause, publishShare*time.Since(began)), publishMost)
		}
		if adopting && err == nil {
			if adopting, err = l.adoptSome(ctx, &adopted); adopting && err == nil {
				l.wakeFeed()
			}
		}
		if err != nil && ctx.Err() == nil && report != nil && !errors.Is(err, store.ErrConflict) {
			report(err)
		}
	}
}

// sweepFeed removes conflicts that are over, and changes of an earlier epoch.
func (l *Ledger) sweepFeed(ctx context.Context) error {
	for more := true; more; {
		err := l.transact(ctx, func(tx *Tx) error {
			more = false
			hits, err := tx.Scan(conflicts, indexExpiry, store.Range{To: sortKey(tx.Now().UnixMilli() + 1), Limit: 32})
			if err != nil {
				return err
			}
			for _, h := range hits {
				value, err := tx.Get(conflicts, h.Key)
				if errors.Is(err, store.ErrNotFound) {
					continue
				}
				if err != nil {
					return err
				}
				var r record
				if decodeRecord(h.Key, value, &r) == nil && r.expires > tx.Now().UnixMilli() {
					continue
				}
				if err := tx.Delete(conflicts, h.Key); err != nil {
					return err
				}
				more = len(hits) == 32
			}
			head, err := getHead(tx.Tx)
			if err != nil {
				return err
			}
			if hits, err = tx.Scan(changes, indexOrder, store.Range{To: hex16(head.First), Limit: 32}); err != nil {
				return err
			}
			for _, h := range hits {
				if err := tx.Delete(changes, h.Key); err != nil {
					return err
				}
				more = more || len(hits) == 32
			}
			return nil
		})
		if errors.Is(err, store.ErrConflict) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return l.countLosers(ctx)
}

// applyFeed counts and reports what a transaction did.
func (l *Ledger) applyFeed(fx *effects) {
	c := &l.feed.counted
	c.imported.Add(fx.imports.done)
	c.repeated.Add(fx.imports.repeated)
	c.dropped.Add(fx.imports.dropped)
	c.deferred.Add(fx.imports.deferred)
	c.invalid.Add(fx.imports.invalid)
	c.clashes.Add(uint64(len(fx.clashes)))
	for _, clash := range fx.clashes {
		if !clash.Kept {
			c.unkept.Add(1)
		}
	}
	l.feed.losers.Add(fx.losers.entries)
	if fx.published {
		l.wakeFeed()
	}
	if l.opts.Clashed != nil {
		for _, clash := range fx.clashes {
			l.opts.Clashed(clash)
		}
	}
}

// wakeFeed makes RunFeed go on soon.
func (l *Ledger) wakeFeed() {
	select {
	case l.feed.wake <- struct{}{}:
	default:
	}
}

// FeedStats counts since the process started.
type FeedStats struct {
	// Published outcomes of this ledger; Imported ones of others, of which Repeated were known, Dropped had no room or
	// made room for this ledger's own, Deferred have to wait until the note of another attempt at the key's home is over,
	// and Invalid were malformed; Conflicts between two origins, Unkept those of them whose loser had no room.
	Published, Imported, Repeated, Dropped, Deferred, Invalid, Conflicts, Unkept uint64
	// Losers are the outcomes that lost a conflict and are kept now, about.
	Losers int64
}

// FeedStats returns the counters of the feed.
func (l *Ledger) FeedStats() FeedStats {
	c := &l.feed.counted
	return FeedStats{c.published.Load(), c.imported.Load(), c.repeated.Load(), c.dropped.Load(), c.deferred.Load(), c.invalid.Load(), c.clashes.Load(), c.unkept.Load(), l.feed.losers.Load()}
}
