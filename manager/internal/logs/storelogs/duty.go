package storelogs

import (
	"context"
	"errors"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// maxDelete bounds the records of entries that one transaction deletes, maxDeleteBytes their size.
const (
	maxDelete      = 64
	maxDeleteBytes = 4 << 20
)

// dutyRounds bounds the transactions of a duty for one log, so that the others get their turn.
const dutyRounds = 200

// duties looks after windows, retention and what is left of deleted logs.
func (e *Engine) duties() {
	if e.clock.stale() {
		return // the store is away
	}
	after := ""
	there := make(map[string]bool)
	for {
		ctx, cancel := context.WithTimeout(e.life.Context(), e.opts.CallTimeout)
		names, err := e.names(ctx, after, 100)
		cancel()
		if err != nil {
			return
		}
		for _, name := range names {
			there[name] = true
			e.duty(name)
		}
		if len(names) < 100 {
			break
		}
		after = names[len(names)-1]
	}
	e.forgetDeleted(there)
	e.repeat("", e.bury)
}

// forgetDeleted drops what is known of logs that this manager or another one deleted.
func (e *Engine) forgetDeleted(there map[string]bool) {
	e.mu.Lock()
	var gone []*line
	for name, l := range e.lines {
		if !there[name] {
			gone = append(gone, l)
		}
	}
	e.mu.Unlock()
	for _, l := range gone {
		ctx, cancel := context.WithTimeout(e.life.Context(), e.opts.CallTimeout)
		_, _ = e.headOrForget(ctx, l) // the log may have been made since; what cannot be read stays
		cancel()
	}
}

func (e *Engine) duty(name string) {
	e.repeat(name, func(ctx context.Context) (bool, error) { return e.expire(ctx, name) })
	e.repeat(name, func(ctx context.Context) (bool, error) { return e.retain(ctx, name) })
	l := e.line(name)
	l.mu.Lock()
	evicted, warned, age := l.evicted, l.warned, l.evictedAge
	l.warned = evicted
	l.mu.Unlock()
	if evicted > warned {
		e.opts.Logger.Warn("a log's window is full: ids were forgotten before their time, their entries can be written again",
			"log", name, "ids", evicted-warned, "age_seconds", age.Seconds())
	}
}

// repeat does a duty until there is no more to do.
func (e *Engine) repeat(name string, step func(context.Context) (more bool, err error)) {
	for range dutyRounds {
		ctx, cancel := context.WithTimeout(e.life.Context(), e.opts.CallTimeout)
		more, err := step(ctx)
		cancel()
		if e.opts.Unreadable != nil && e.opts.Unreadable.Met(err) {
			return
		}
		if err != nil && e.life.Context().Err() == nil && !missing(err) && !store.Unknown(err) && !errors.Is(err, store.ErrConflict) {
			e.opts.Logger.Error("a log's old records cannot be removed", "log", name, "error", err.Error())
		}
		if err != nil || !more {
			return
		}
	}
}

// expire forgets ids that are too old.
func (e *Engine) expire(ctx context.Context, name string) (more bool, err error) {
	now := e.clock.now()
	expired, err := e.expired(ctx, name, now)
	if err != nil || !expired {
		return false, err
	}
	err = e.st.Update(ctx, func(tx store.Tx) error {
		h, err := getHead(tx, name)
		if err != nil {
			return err
		}
		f := forgetting{engine: e, head: h, now: max(now, h.At), budget: maxForget}
		had := h.Keys
		if err := f.run(tx); err != nil || h.Keys == had {
			return err
		}
		more = f.more
		return h.put(tx)
	})
	return more, err
}

// expired reports whether the oldest id is too old.
func (e *Engine) expired(ctx context.Context, name string, now int64) (old bool, err error) {
	h, err := e.head(ctx, name)
	if err != nil || h.settings.Config.Identity == logs.Structured {
		return false, err
	}
	err = e.st.View(ctx, func(tx store.Tx) error {
		hits, err := tx.Scan(windows, order, h.all(1))
		old = err == nil && len(hits) > 0 && max(now, h.At)-int64(numbers(hits[0].SortKey)[1]) >= int64(h.settings.Config.Window+e.margin)
		return err
	})
	return old, err
}

// retain deletes entries that are too old or too many.
func (e *Engine) retain(ctx context.Context, name string) (more bool, err error) {
	now := e.clock.now()
	h, err := e.head(ctx, name)
	if err != nil {
		return false, err
	}
	var due bool
	err = e.st.View(ctx, func(tx store.Tx) error {
		give, err := h.gives(tx, now, 1)
		due = len(give) > 0
		return err
	})
	if err != nil || !due {
		return false, err
	}
	err = e.st.Update(ctx, func(tx store.Tx) error {
		h, err := getHead(tx, name)
		if err != nil {
			return err
		}
		give, err := h.gives(tx, now, maxDelete)
		if err != nil || len(give) == 0 {
			return err
		}
		more = false
		if err := tx.Prefetch(store.IDs(entries, give)); err != nil {
			return err
		}
		for _, hit := range give {
			if _, err := tx.Get(entries, hit.Key); errors.Is(err, store.ErrNotFound) {
				continue // the scan was stale
			} else if err != nil && !errors.Is(err, store.ErrUnreadable) {
				return err
			}
			if err := tx.Delete(entries, hit.Key); err != nil {
				return err
			}
			n := numbers(hit.SortKey)
			h.First = max(h.First, n[0]+1)
			h.Bytes -= int64(n[2])
			more = true
		}
		if !more {
			return nil
		}
		return h.put(tx)
	})
	return more, err
}

// gives returns the oldest records of entries that retention gives up, bounded in number and size.
func (h *head) gives(tx store.Tx, now int64, limit int) ([]store.Hit, error) {
	hits, err := tx.Scan(entries, order, h.all(limit))
	if err != nil {
		return nil, err
	}
	c := &h.settings.Config
	left, size := h.Bytes, int64(0)
	for i, hit := range hits {
		n := numbers(hit.SortKey)
		size += int64(n[2])
		left -= int64(n[2])
		old := c.Retain > 0 && max(now, h.At)-int64(n[1]) >= int64(c.Retain)
		large := c.RetainBytes > 0 && left >= c.RetainBytes
		if !old && !large || i > 0 && size > maxDeleteBytes {
			return hits[:i], nil
		}
	}
	return hits, nil
}

func deleteAll(tx store.Tx, c store.Collection, hits []store.Hit) error {
	all := store.IDs(c, hits)
	if err := tx.Prefetch(all); err != nil {
		return err
	}
	for _, id := range all {
		if err := tx.Delete(id.Collection, id.Key); err != nil {
			return err
		}
	}
	return nil
}

// burial is how far the records of a deleted log are deleted. It looks at each once, because index entries of a record that
// cannot be read may stay when it is deleted.
type burial struct {
	prefix string
	after  map[store.Collection]*store.Hit
}

// bury deletes records of a deleted log.
func (e *Engine) bury(ctx context.Context) (more bool, err error) {
	var looked store.Collection
	var last *store.Hit
	err = e.st.Update(ctx, func(tx store.Tx) error {
		more, last = false, nil
		hits, err := tx.Scan(graves, order, store.Range{Limit: 1})
		if err != nil || len(hits) == 0 {
			return err
		}
		more = true
		prefix := hits[0].Key
		if e.burial.prefix != prefix {
			e.burial = burial{prefix, make(map[store.Collection]*store.Hit)}
		}
		rest := func(c store.Collection, limit int) store.Range {
			r := prefixRange(prefix, limit)
			r.After = e.burial.after[c]
			return r
		}
		f := forgetting{engine: e, head: &head{prefix: prefix}, budget: maxForget, buried: true}
		lists, err := tx.Scan(windows, order, rest(windows, 64))
		if err != nil {
			return err
		}
		for i, hit := range lists {
			if err := f.window(tx, hit.Key, numbers(hit.SortKey)[0], true); err != nil {
				return err
			}
			if f.budget <= 0 { // a part of this one may be left
				return nil
			}
			looked, last = windows, &lists[i]
		}
		if len(lists) > 0 {
			return nil
		}
		for _, c := range []store.Collection{entries, clients, writers} {
			// A record of entries has 8 MiB at most, and a transaction need not read them all.
			hits, err := tx.Scan(c, order, rest(c, maxDelete))
			if err != nil {
				return err
			}
			var size uint64
			for i, hit := range hits {
				if size += numbers(hit.SortKey)[2]; c == entries && i > 0 && size > maxDeleteBytes {
					hits = hits[:i]
					break
				}
			}
			if len(hits) > 0 {
				looked, last = c, &hits[len(hits)-1]
				return deleteAll(tx, c, hits)
			}
		}
		return tx.Delete(graves, prefix)
	})
	if err == nil && last != nil {
		e.burial.after[looked] = last
	}
	return more, err
}
