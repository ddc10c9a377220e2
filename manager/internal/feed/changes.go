package feed

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// position is a decoded cursor: after a change, or inside a full copy.
type position struct {
	epoch    string
	sequence uint64
	copying  bool
	at       store.Cursor // of the copy, whose parts are ledger.OutcomeCollections
	// Times of the hybrid clock: the copy has outcomes since the time from, and began at the time began.
	from, began uint64
}

func (p *position) String() string {
	s := p.epoch + ":" + strconv.FormatUint(p.sequence, 10)
	if p.copying {
		s += ":" + p.at.String() + ":" + strconv.FormatUint(p.from, 10) + ":" + strconv.FormatUint(p.began, 10)
	}
	return s
}

// parsePosition reads ORIGIN:EPOCH:SEQUENCE, in a copy with a store.Cursor and two times after it.
func parsePosition(origin, s string) (*position, error) {
	rest, ok := strings.CutPrefix(s, origin+":")
	parts := strings.Split(rest, ":")
	if !ok || len(parts) != 2 && len(parts) != 5 || parts[0] == "" {
		return nil, ledger.ErrCursor
	}
	p := &position{epoch: parts[0], copying: len(parts) == 5}
	var err error
	if p.sequence, err = strconv.ParseUint(parts[1], 10, 63); err != nil {
		return nil, ledger.ErrCursor
	}
	if p.copying {
		var errs [2]error
		p.from, errs[0] = strconv.ParseUint(parts[3], 10, 63)
		p.began, errs[1] = strconv.ParseUint(parts[4], 10, 63)
		if errors.Join(errs[:]...) != nil {
			return nil, ledger.ErrCursor
		}
		if p.at, ok = store.ParseCursor(parts[2]); !ok || p.at.Part >= len(ledger.OutcomeCollections) {
			return nil, ledger.ErrCursor
		}
	}
	return p, nil
}

// copySlack is how much earlier than its beginning a copy continues, by the hybrid clock: transactions on a shared engine may end
// in another order than their outcomes have. Comparisons find what is even later.
const copySlack = uint64(time.Minute/time.Millisecond) << 16

// Page is a part of the change feed.
type Page struct {
	Changes []ledger.FeedChange
	// Cursor is the position after the page.
	Cursor string
	// Head is the newest change, and Sequence the last one that the page covers. In a full copy Sequence is where the
	// copy began, and Copying says that there is more of it.
	Head, Sequence uint64
	Copying        bool
}

// Changes returns what follows the cursor, in the order in which outcomes were published. An empty cursor is the
// beginning. Where the feed does not go back to the beginning, the answer is a full copy of what the ledger holds of
// its origin, over as many pages as needed, and then continues with what follows. If what follows is not kept any more by
// then, the copy continues with what was recorded since it began. limit is 1 to 500.
//
// Errors: ErrNoOrigin, ledger.ErrCursor, ErrCursorGone, the store's.
func (f *Feed) Changes(ctx context.Context, origin, after string, limit int) (out Page, err error) {
	if f.origin == "" || origin != f.origin {
		return Page{}, ErrNoOrigin
	}
	at := &position{}
	if after != "" {
		if at, err = parsePosition(origin, after); err != nil {
			return Page{}, err
		}
	}
	err = f.store.View(ctx, func(tx store.Tx) error {
		out = Page{}
		h, err := getHead(tx)
		if err != nil {
			return err
		}
		p := *at
		switch {
		case after == "":
			p = position{epoch: h.Epoch, sequence: h.First - 1, copying: !h.Whole}
			if p.copying {
				p.sequence, p.began = h.Next-1, h.HLC
			}
		case p.epoch != h.Epoch || !p.copying && p.sequence+1 < h.First || p.sequence >= h.Next:
			return ErrCursorGone
		}
		out.Head = h.Next - 1
		if p.copying {
			var done bool
			if done, err = f.outcomes(tx, &p, ledger.OutcomesFrom(f.origin, p.from), ledger.OutcomesEnd(f.origin), limit, &out); done {
				next := position{epoch: p.epoch, sequence: p.sequence}
				if p.sequence+1 < h.First {
					next = position{epoch: p.epoch, sequence: h.Next - 1, copying: true, from: p.began - min(p.began, copySlack), began: h.HLC}
				}
				p = next
			}
		} else {
			err = f.page(tx, &p, limit, &out)
		}
		out.Sequence, out.Copying, out.Cursor = p.sequence, p.copying, origin+":"+p.String()
		return err
	})
	return out, err
}

// readTogether is how many outcomes are read at a time at most, on engines for which that is faster. A page begins with one
// and doubles, so that large ones do not take much more memory than the page has.
const readTogether = 32

// page reads changes after p, and moves p.
func (f *Feed) page(tx store.Tx, p *position, limit int, out *Page) error {
	hits, err := tx.Scan(changes, indexOrder, store.Range{From: hex16(p.sequence + 1), Limit: limit})
	if err != nil {
		return err
	}
	size, together := 0, 1
	for _, h := range hits {
		keys, last, err := f.readPage(tx, h)
		switch {
		case err != nil:
			return err
		case last > out.Head:
			return nil // published after the head was read
		case keys == nil: // lost: it was there when the head was written
			p.sequence = max(p.sequence, last)
			continue
		case last-p.sequence > uint64(len(keys)):
			return nil // a stale scan: the next page has what is between
		case last <= p.sequence:
			continue
		}
		keys = keys[uint64(len(keys))-(last-p.sequence):]
		fetched := 0
		for i, key := range keys {
			if limit--; limit < 0 {
				return nil
			}
			if i == fetched {
				fetched = min(i+together, len(keys), i+limit+1)
				if err := ledger.PrefetchEntries(tx, keys[i:fetched]); err != nil {
					return err
				}
				together = min(2*together, readTogether)
			}
			c, ok, err := f.ledger.OutcomeOf(tx, key)
			if err != nil {
				return err
			}
			if ok {
				if size += len(c.Result); len(out.Changes) > 0 && size > pageBytes {
					return nil
				}
				c.Sequence = p.sequence + 1
				out.Changes = append(out.Changes, c)
			}
			p.sequence++
		}
	}
	return nil
}

// outcomes reads outcomes between two sort keys of indexOrigin after p, and moves p. done says that it was the last page.
func (f *Feed) outcomes(tx store.Tx, p *position, from, to string, limit int, out *Page) (done bool, err error) {
	size := 0
	for {
		c := ledger.OutcomeCollections[p.at.Part]
		hits, err := tx.Scan(c, ledger.OriginIndex, store.Range{From: from, To: to, After: p.at.After(), Limit: limit})
		if err != nil {
			return false, err
		}
		for _, hit := range hits {
			change, ok, err := ledger.ReadOutcome(tx, c, hit.Key)
			if err != nil && !f.ledger.Skips(err) {
				return false, err
			}
			if ok {
				if size += len(change.Result); len(out.Changes) > 0 && size > pageBytes {
					return false, nil
				}
				change.Sequence = p.sequence
				out.Changes = append(out.Changes, change)
			}
			p.at.Hit = hit
		}
		switch {
		case len(hits) == limit:
			return false, nil
		case p.at.Part == len(ledger.OutcomeCollections)-1:
			return true, nil
		}
		p.at = store.Cursor{Part: p.at.Part + 1}
		if len(out.Changes) >= limit/2 {
			return false, nil
		}
	}
}

// Next is Changes that has all that the ledger acknowledged before the call, and that waits for a page that is not empty. hold is
// called when the wait begins, as that of ledger.Ledger.Reserve is.
func (f *Feed) Next(ctx context.Context, origin, after string, limit int, wait time.Duration, hold ledger.HoldFunc) (Page, error) {
	page, err := f.Changes(ctx, origin, after, limit)
	empty := func() bool { return err == nil && len(page.Changes) == 0 && page.Sequence == page.Head }
	if empty() && f.Publish(ctx) == nil {
		page, err = f.Changes(ctx, origin, page.Cursor, limit)
	}
	if !empty() || wait == 0 {
		return page, err
	}
	ctx, stop := hold()
	defer stop()
	if err := f.wait(ctx, page, wait); err != nil {
		return Page{}, err
	}
	return f.Changes(ctx, origin, page.Cursor, limit)
}

// wait returns when the feed may have something after a page, when wait is over, or with the error of ctx.
func (f *Feed) wait(ctx context.Context, after Page, wait time.Duration) error {
	w := f.store.Watch(topic)
	defer w.Stop()
	over, poll := time.NewTimer(wait), time.NewTicker(f.ledger.Options().PollInterval)
	defer over.Stop()
	defer poll.Stop()
	for {
		next := uint64(0)
		err := f.store.View(ctx, func(tx store.Tx) error {
			h, err := getHead(tx)
			if err == nil {
				next = h.Next
			}
			return err
		})
		if err != nil || next != after.Sequence+1 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.ledger.Draining():
			return nil
		case <-over.C:
			return nil
		case <-poll.C:
		case <-w.C():
		}
	}
}
