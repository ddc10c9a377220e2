package ledger

import (
	"context"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// position is a decoded cursor: after a change, or inside a full copy.
type position struct {
	epoch    string
	sequence uint64
	copying  bool
	losers   bool // the copy has all entries and is among the outcomes that lost
	after    *store.Hit
}

func (p *position) String() string {
	s := p.epoch + ":" + strconv.FormatUint(p.sequence, 10)
	if !p.copying {
		return s
	}
	hit := "-"
	if p.after != nil {
		hit = base64.RawURLEncoding.EncodeToString([]byte(p.after.SortKey)) + "." + base64.RawURLEncoding.EncodeToString([]byte(p.after.Key))
	}
	phase := ":entries:"
	if p.losers {
		phase = ":losers:"
	}
	return s + phase + hit
}

// parsePosition reads ORIGIN:EPOCH:SEQUENCE, in a copy with PHASE:HIT after it.
func parsePosition(origin, s string) (*position, error) {
	rest, ok := strings.CutPrefix(s, origin+":")
	parts := strings.Split(rest, ":")
	if !ok || len(parts) != 2 && len(parts) != 4 || parts[0] == "" {
		return nil, ErrCursor
	}
	p := &position{epoch: parts[0]}
	var err error
	if p.sequence, err = strconv.ParseUint(parts[1], 10, 63); err != nil {
		return nil, ErrCursor
	}
	if len(parts) == 2 {
		return p, nil
	}
	p.copying, p.losers = true, parts[2] == "losers"
	if !p.losers && parts[2] != "entries" {
		return nil, ErrCursor
	}
	if parts[3] == "-" {
		return p, nil
	}
	sortKey, key, ok := strings.Cut(parts[3], ".")
	a, errA := base64.RawURLEncoding.DecodeString(sortKey)
	b, errB := base64.RawURLEncoding.DecodeString(key)
	if !ok || errA != nil || errB != nil || len(a) > store.MaxKeyBytes || len(b) > store.MaxKeyBytes {
		return nil, ErrCursor
	}
	p.after = &store.Hit{SortKey: string(a), Key: string(b)}
	return p, nil
}

// Feed is a page of the change feed.
type Feed struct {
	Changes []FeedChange
	// Cursor is the position after the page.
	Cursor string
	// Head is the newest change, and Sequence the last one that the page covers. In a full copy Sequence is where the
	// copy began, and Copying says that there is more of it.
	Head, Sequence uint64
	Copying        bool
}

// Changes returns what follows the cursor, in the order in which outcomes were published. An empty cursor is the
// beginning. Where the feed does not go back to the beginning, the answer is a full copy of what the ledger holds of
// its origin, over as many pages as needed, and then continues with what follows. limit is 1 to 500.
//
// Errors: ErrNoOrigin, ErrCursor, ErrCursorGone, the store's.
func (l *Ledger) Changes(ctx context.Context, origin, after string, limit int) (f Feed, err error) {
	if l.opts.Origin == "" || origin != l.opts.Origin {
		return Feed{}, ErrNoOrigin
	}
	at := &position{}
	if after != "" {
		if at, err = parsePosition(origin, after); err != nil {
			return Feed{}, err
		}
	}
	err = l.store.View(ctx, func(tx store.Tx) error {
		f = Feed{}
		h, err := getHead(tx)
		if err != nil {
			return err
		}
		p := *at
		switch {
		case after == "":
			p = position{epoch: h.Epoch, sequence: h.First - 1, copying: !h.Whole}
			if p.copying {
				p.sequence = h.Next - 1
			}
		case p.epoch != h.Epoch || p.sequence+1 < h.First || p.sequence >= h.Next:
			return ErrCursorGone
		}
		f.Head = h.Next - 1
		if p.copying {
			err = l.copyPage(tx, &p, limit, &f)
		} else {
			err = l.page(tx, &p, limit, &f)
		}
		f.Sequence, f.Copying, f.Cursor = p.sequence, p.copying, origin+":"+p.String()
		return err
	})
	return f, err
}

// readTogether is how many outcomes are read at a time at most, on engines for which that is faster. A page begins with one
// and doubles, so that large ones do not take much more memory than the page has.
const readTogether = 32

// page reads changes after p, and moves p.
func (l *Ledger) page(tx store.Tx, p *position, limit int, f *Feed) error {
	hits, err := tx.Scan(changes, indexOrder, store.Range{From: hex16(p.sequence + 1), Limit: limit})
	if err != nil {
		return err
	}
	size, together := 0, 1
	for _, h := range hits {
		keys, last, err := l.readPage(tx, h)
		switch {
		case err != nil:
			return err
		case last > f.Head:
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
				if err := prefetchEntries(tx, keys[i:fetched]); err != nil {
					return err
				}
				together = min(2*together, readTogether)
			}
			c, ok, err := l.changeOf(tx, key)
			if err != nil {
				return err
			}
			if ok {
				if size += len(c.Result); len(f.Changes) > 0 && size > feedBytes {
					return nil
				}
				c.Sequence = p.sequence + 1
				f.Changes = append(f.Changes, c)
			}
			p.sequence++
		}
	}
	return nil
}

func prefetchEntries(tx store.Tx, keys []string) error {
	ids := make([]store.ID, len(keys))
	for i, key := range keys {
		ids[i] = store.ID{Collection: collection, Key: key}
	}
	return tx.Prefetch(ids)
}

// changeOf reads this ledger's outcome of a key. ok is false when there is none any more.
func (l *Ledger) changeOf(tx store.Tx, key string) (c FeedChange, ok bool, err error) {
	var r record
	e, err := l.load(tx, key, &r)
	if err == nil && (e == nil || string(e.origin) != l.opts.Origin) {
		e, err = loadLoser(tx, []byte(l.opts.Origin), key, &r)
	}
	if l.skips(err) {
		return c, false, nil
	}
	if err != nil || e == nil {
		return c, false, err
	}
	c, ok = newChange(key, e, tx.Now())
	return c, ok, nil
}

func newChange(key string, e *record, at time.Time) (FeedChange, bool) {
	scope, k, ok := splitRecordKey(key)
	now := at.UnixMilli()
	if !ok || !e.state.Terminal() || now >= e.expires {
		return FeedChange{}, false
	}
	return FeedChange{
		Origin: string(e.origin), Scope: scope, Key: k, Token: string(e.token), Fingerprint: string(e.fingerprint), Ref: string(e.ref),
		State: e.state, HLC: e.hlc, Fence: e.fence, Age: milliseconds(max(now-e.created, 0)), ExpiresIn: remaining(e.expires, at),
		Result: append([]byte(nil), e.result...),
	}, true
}

// copyPage reads a page of all outcomes of this origin, and moves p.
func (l *Ledger) copyPage(tx store.Tx, p *position, limit int, f *Feed) error {
	prefix := originPrefix(l.opts.Origin)
	done, err := l.outcomes(tx, p, prefix, originEnd(l.opts.Origin), limit, f)
	if err == nil && done {
		*p = position{epoch: p.epoch, sequence: p.sequence}
	}
	return err
}

// originEnd is after all keys of an origin in indexOrigin.
func originEnd(origin string) string { return origin + "!" }

// outcomes reads outcomes between two sort keys of indexOrigin after p, and moves p. done says that it was the last page.
func (l *Ledger) outcomes(tx store.Tx, p *position, from, to string, limit int, f *Feed) (done bool, err error) {
	size := 0
	for {
		c := collection
		if p.losers {
			c = conflicts
		}
		hits, err := tx.Scan(c, indexOrigin, store.Range{From: from, To: to, After: p.after, Limit: limit})
		if err != nil {
			return false, err
		}
		for i := range hits {
			key := hits[i].Key
			if p.losers {
				_, key, _ = strings.Cut(key, " ")
			}
			value, err := tx.Get(c, hits[i].Key)
			if err != nil && !errors.Is(err, store.ErrNotFound) && !l.skips(err) {
				return false, err
			}
			var r record
			if err == nil && decodeRecord(hits[i].Key, value, &r) == nil {
				if change, ok := newChange(key, &r, tx.Now()); ok {
					if size += len(change.Result); len(f.Changes) > 0 && size > feedBytes {
						return false, nil
					}
					change.Sequence = p.sequence
					f.Changes = append(f.Changes, change)
				}
			}
			p.after = &hits[i]
		}
		switch {
		case len(hits) == limit:
			return false, nil
		case p.losers:
			return true, nil
		}
		p.losers, p.after = true, nil
		if len(f.Changes) >= limit/2 {
			return false, nil
		}
	}
}

// WaitChanges returns when the feed may have something after the cursor that Changes returned, when wait is over, or
// with the error of ctx.
func (l *Ledger) WaitChanges(ctx context.Context, f Feed, wait time.Duration) error {
	w := l.store.Watch(feedTopic)
	defer w.Stop()
	over, poll := time.NewTimer(wait), time.NewTicker(l.opts.PollInterval)
	defer over.Stop()
	defer poll.Stop()
	for {
		next := uint64(0)
		err := l.store.View(ctx, func(tx store.Tx) error {
			h, err := getHead(tx)
			if err == nil {
				next = h.Next
			}
			return err
		})
		if err != nil || next != f.Sequence+1 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.waits.drain:
			return nil
		case <-over.C:
			return nil
		case <-poll.C:
		case <-w.C():
		}
	}
}
