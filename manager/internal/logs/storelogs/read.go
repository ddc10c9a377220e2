package storelogs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Read returns entries, after waiting for one if asked.
func (e *Engine) Read(ctx context.Context, name string, q logs.Query) (logs.Page, error) {
	q.Limit = cmp.Or(q.Limit, logs.DefaultLimit)
	if q.Wait <= 0 || e.readers.Load() >= int64(e.opts.MaxReaders) {
		return e.page(ctx, name, q)
	}
	e.readers.Add(1)
	defer e.readers.Add(-1)
	w := e.st.Watch(topic(name))
	defer w.Stop()
	page, err := e.page(ctx, name, q)
	if err != nil || len(page.Entries) > 0 {
		return page, err
	}
	l := e.line(name)
	l.readers.Add(1)
	defer l.readers.Add(-1)
	timeout, poll := time.NewTimer(q.Wait), time.NewTicker(e.opts.PollEvery)
	defer timeout.Stop()
	defer poll.Stop()
	q.After, q.Beginning = page.Cursor, false
	for {
		select {
		case <-w.C():
		case <-poll.C:
		case <-timeout.C:
			return page, nil
		case <-ctx.Done():
			return page, nil
		case <-e.draining:
			return page, nil
		}
		next, err := e.page(ctx, name, q)
		if ctx.Err() != nil {
			return page, nil
		}
		if err != nil || len(next.Entries) > 0 {
			return next, err
		}
	}
}

// page returns what there is.
func (e *Engine) page(ctx context.Context, name string, q logs.Query) (logs.Page, error) {
	for try := 0; ; try++ {
		h, err := e.head(ctx, name)
		if err != nil {
			return logs.Page{}, err
		}
		from := q.After + 1
		if q.Beginning {
			from = h.First
		}
		page := logs.Page{Cursor: from - 1}
		switch {
		case from < h.First:
			return page, logs.CursorGone(q.After, h.First)
		case from > h.Next:
			return page, logs.CursorAhead(q.After, h.Next-1)
		case from == h.Next:
			return page, nil
		}
		if page.Entries, err = e.scan(ctx, h.prefix, from, q.Limit); err != nil {
			return page, err
		}
		if n := len(page.Entries); n > 0 {
			page.Cursor = page.Entries[n-1].Number
			return page, nil
		}
		// Retention or Delete was faster, or the index is older than the head.
		if try == 20 {
			return page, logs.Busy()
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return page, mapError(ctx.Err())
		}
	}
}

// scan returns up to limit entries from the number from on, without a gap; none when that is not there.
func (e *Engine) scan(ctx context.Context, prefix string, from uint64, limit int) (out []logs.Entry, err error) {
	err = e.view(ctx, func(tx store.Tx) error {
		out = nil
		hits, err := tx.Scan(entries, order, store.Range{From: key(prefix, from), To: prefix + "\xff", Limit: min(limit, 128)})
		if err != nil {
			return err
		}
		// A record's key says how many entries are between it and the one before, and how large it is.
		var records []store.ID
		var size uint64
		for _, hit := range hits {
			n := numbers(hit.SortKey)
			records = append(records, store.ID{Collection: entries, Key: hit.Key})
			if size += n[2]; size >= logs.MaxPageBytes || n[0]-from+1 >= uint64(limit) {
				break
			}
		}
		if err := tx.Prefetch(records); err != nil {
			return err
		}
		size = 0
		for _, id := range records {
			b, err := tx.Get(id.Collection, id.Key)
			if errors.Is(err, store.ErrNotFound) {
				return nil // retention was faster
			}
			if err != nil {
				return err
			}
			err = logs.EachEntry(b, func(en *logs.Entry, _ int64) error {
				if en.Number < from {
					return nil
				}
				if en.Number != from+uint64(len(out)) || len(out) == limit || size >= logs.MaxPageBytes {
					return errEnough
				}
				size += uint64(en.Bytes())
				en.Payload = slices.Clone(en.Payload)
				out = append(out, *en)
				return nil
			})
			if errors.Is(err, errEnough) {
				return nil
			}
			if err != nil {
				return &store.UnreadableError{Collection: id.Collection, Key: id.Key, Reason: err.Error()}
			}
		}
		return nil
	})
	return out, err
}

var errEnough = errors.New("enough")

// ByID returns the entry of an id in the window.
func (e *Engine) ByID(ctx context.Context, name, id string) (logs.Entry, error) {
	if err := logs.CheckName(name); err != nil {
		return logs.Entry{}, err
	}
	if e.clock.stale() {
		if err := e.clock.tick(ctx, e.st); err != nil {
			return logs.Entry{}, mapError(err)
		}
	}
	l := e.line(name)
	for {
		l.mu.Lock()
		unsettled := l.unsettled
		l.mu.Unlock()
		h, number, err := e.lookup(ctx, name, id)
		if h != nil && missing(err) && unsettled > 0 {
			if err := e.settle(ctx, l); err != nil {
				return logs.Entry{}, err
			}
			continue
		}
		if err != nil {
			if h == nil && missing(err) {
				e.forgetLine(l, unsettled)
			}
			return logs.Entry{}, err
		}
		if number < h.First {
			return logs.Entry{}, logs.EntryGone(number)
		}
		found, err := e.scan(ctx, h.prefix, number, 1)
		if err != nil {
			return logs.Entry{}, err
		}
		if len(found) == 0 {
			return logs.Entry{}, logs.EntryGone(number)
		}
		return found[0], nil
	}
}

// lookup returns the number of the entry with an id; the head is nil when there is no log.
func (e *Engine) lookup(ctx context.Context, name, id string) (h *head, number uint64, err error) {
	err = e.view(ctx, func(tx store.Tx) error {
		var err error
		if h, err = getHead(tx, name); err != nil {
			h = nil
			return err
		}
		settings := h.settings
		settings.Config.Window += e.margin
		now := max(e.clock.now(), h.At)
		s := logs.NewState(settings, h.Next, now, h.Keys, now)
		t := transaction{state: s, group: []*request{{batch: s.Prepare([]logs.Item{{ID: id}}, false)}}}
		if err := t.load(tx, h); err != nil {
			return err
		}
		quarantine, err := e.opts.Restored.LogsLeft(tx)
		if err == nil {
			number, err = s.Lookup(id, now, quarantine)
		}
		return err
	})
	return h, number, err
}

// settle rewrites the head, so that no commit that is still under way succeeds after it.
func (e *Engine) settle(ctx context.Context, l *line) error {
	l.mu.Lock()
	unsettled := l.unsettled
	l.mu.Unlock()
	err := e.update(ctx, func(tx store.Tx) error {
		h, err := getHead(tx, l.name)
		if err != nil {
			return err
		}
		return h.put(tx)
	})
	if err != nil {
		return fmt.Errorf("an append of which nobody knows: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unsettled == unsettled { // no further commit meanwhile
		l.unsettled = 0
	}
	return nil
}
