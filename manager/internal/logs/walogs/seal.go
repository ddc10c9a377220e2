package walogs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// sealedPlace is what package crypt binds records of entries to, together with their log's name.
const sealedPlace = "log"

// seal encrypts a record of entries, if there is a key.
func (o *Options) seal(name string, rec []byte) []byte {
	if o.Ring == nil {
		return rec
	}
	sealed := append(make([]byte, 0, len(rec)+crypt.MaxOverhead), kindSealed)
	return o.Ring.Seal(sealed, sealedPlace, name, rec[1:])
}

// openEntries returns the entries of a record, without the kind. ok is false for a record of another kind. ring may be nil.
func openEntries(ring *crypt.Keyring, name string, body []byte) (entries []byte, ok bool, err error) {
	switch {
	case body[0] == kindEntries:
		return body[1:], true, nil
	case body[0] != kindSealed:
		return nil, false, nil
	case ring == nil:
		id, _ := crypt.KeyOf(body[1:])
		return nil, true, &crypt.NoKeyError{ID: id}
	}
	entries, err = ring.Open(sealedPlace, name, body[1:])
	return entries, true, err
}

// KeyIDs returns the ids of the keys under which entries are sealed, "" for entries in plain. It reads all that logs
// keep, and fails if there is a log that cannot be read.
func (e *Engine) KeyIDs(ctx context.Context) ([]string, error) {
	e.mu.RLock()
	open := slices.Collect(maps.Values(e.logs))
	broken := slices.Sorted(maps.Keys(e.broken))
	e.mu.RUnlock()
	if len(broken) > 0 {
		return nil, fmt.Errorf("the log %q cannot be read, so it is not known which keys it needs", broken[0])
	}
	ids := make(map[string]bool)
	for _, l := range open {
		if err := l.keyIDs(ctx, ids); err != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(ids)), nil
}

func (l *walLog) keyIDs(ctx context.Context, ids map[string]bool) error {
	for {
		err := l.wal.Records(ctx, l.wal.First(), func(_ uint64, body []byte) error {
			switch body[0] {
			case kindEntries:
				ids[""] = true
			case kindSealed:
				id, _ := crypt.KeyOf(body[1:])
				ids[id] = true
			}
			return nil
		})
		switch {
		case errors.Is(err, wal.ErrGone):
			continue // retention was faster
		case errors.Is(err, wal.ErrClosed):
			return nil // it was deleted
		case err != nil:
			return fmt.Errorf("the log %q: %w", l.name, err)
		}
		return nil
	}
}

// eachEntry is logs.EachEntry for a record of entries, which may be sealed.
func eachEntry(ring *crypt.Keyring, name string, body []byte, fn func(e *logs.Entry, at int64) error) error {
	entries, ok, err := openEntries(ring, name, body)
	if err != nil || !ok {
		return err
	}
	return logs.EachEntry(entries, fn)
}
