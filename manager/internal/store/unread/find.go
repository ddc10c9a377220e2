package unread

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Place is an index to search. Those of a collection must together lead to each of its records once.
type Place struct {
	Collection store.Collection
	Index      string
}

// Finder looks for unreadable records.
type Finder struct {
	Store   store.Store
	Tracker *Tracker
	Places  []Place
	// Check reads a record and everything else that using it requires. It returns nil, store.ErrNotFound, a
	// *store.UnreadableError, or the store's error.
	Check func(tx store.Tx, c store.Collection, key string) error
}

const (
	// maxExamined bounds the records that one page examines.
	maxExamined = 10_000
	// findChunk is how many records one transaction examines.
	findChunk = 64
)

var (
	// ErrCursor is returned for a cursor that Find did not make.
	ErrCursor = errors.New("unread: malformed cursor")
	// ErrReadable is returned when a record was to be deleted as unreadable but can be read.
	ErrReadable = errors.New("unread: the record can be read")
)

// Find returns a page of about limit (1 to 1000) unreadable records. The first page, whose cursor is empty, begins with
// those that the tracker knows and that may be in no index. Then follow those in Places, and index entries without a
// record. A page may be short and still have a cursor. Each record appears once, unless it changes meanwhile.
func (f *Finder) Find(ctx context.Context, limit int, cursor string) (page []*store.UnreadableError, next string, err error) {
	at, ok := store.ParseCursor(cursor)
	if !ok || cursor != "" && at.Part >= len(f.Places) {
		return nil, "", ErrCursor
	}
	if cursor == "" {
		if page, err = f.known(ctx); err != nil {
			return nil, "", err
		}
	}
	for examined := 0; at.Part < len(f.Places); {
		found, last, err := f.scanChunk(ctx, f.Places[at.Part], at.After())
		if err != nil {
			return nil, "", err
		}
		page = append(page, found...)
		if at.Hit = last; last == (store.Hit{}) {
			at.Part++
		}
		if examined += findChunk; at.Part < len(f.Places) && (examined >= maxExamined || len(page) >= limit) {
			return page, at.String(), nil
		}
	}
	return page, "", nil
}

// known returns what the tracker knows and no index leads to.
func (f *Finder) known(ctx context.Context) (page []*store.UnreadableError, err error) {
	for _, u := range f.Tracker.Known() {
		if slices.ContainsFunc(f.Places, func(p Place) bool { return p.Collection == u.Collection }) {
			continue
		}
		var now error
		err := f.Store.View(ctx, func(tx store.Tx) error {
			now = f.Check(tx, u.Collection, u.Key)
			return unless(now)
		})
		if err != nil {
			return nil, err
		}
		if !errors.As(now, &u) {
			f.Tracker.Forget(u.Collection, u.Key)
			continue
		}
		page = append(page, u)
	}
	return page, nil
}

// Reason returns why a record cannot be read, for a call that deletes it: err is that of its check. Errors: ErrReadable,
// missing if there is no such record, the store's.
func Reason(err, missing error) (*store.UnreadableError, error) {
	var u *store.UnreadableError
	switch {
	case err == nil:
		return nil, ErrReadable
	case errors.Is(err, store.ErrNotFound):
		return nil, missing
	case !errors.As(err, &u):
		return nil, err
	case u.Elsewhere:
		return nil, fmt.Errorf("%w by other managers: %w", ErrReadable, u)
	}
	return u, nil
}

// unless returns err, unless it is an answer about the record.
func unless(err error) error {
	if errors.Is(err, store.ErrUnreadable) || errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// scanChunk examines one chunk of an index. last is its last hit, zero if it was the last chunk.
func (f *Finder) scanChunk(ctx context.Context, p Place, after *store.Hit) (page []*store.UnreadableError, last store.Hit, err error) {
	err = f.Store.View(ctx, func(tx store.Tx) error {
		page, last = nil, store.Hit{}
		hits, err := tx.Scan(p.Collection, p.Index, store.Range{After: after, Limit: findChunk})
		if err != nil {
			return err
		}
		for _, h := range hits {
			var u *store.UnreadableError
			err := f.Check(tx, p.Collection, h.Key)
			if errors.Is(err, store.ErrNotFound) {
				err = &store.UnreadableError{Collection: p.Collection, Key: h.Key, Reason: "it does not exist, and the index " + p.Index + " leads to it"}
			}
			if errors.As(err, &u) {
				page = append(page, u)
			} else if err != nil {
				return err
			}
		}
		if len(hits) == findChunk {
			last = hits[len(hits)-1]
		}
		return nil
	})
	return page, last, err
}
