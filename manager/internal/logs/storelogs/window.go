package storelogs

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// windowEntry is the size of an id in a record of log_windows: its hash and the number of its entry.
const windowEntry = 16 + 8

// scanned is how many records of log_windows one transaction looks at.
const scanned = 64

// putWindow writes the ids of entries that were appended together from the number first on.
func putWindow(tx store.Tx, prefix string, first uint64, at int64, value []byte) error {
	return tx.Put(windows, key(prefix, first), value, store.Entry{Index: order, SortKey: key(prefix, first, uint64(at))})
}

// forgetting removes ids, or clients, from a window: those that are too old, and with early also the oldest ones while
// there are more than the log may have. With early it leaves a window that is not too large as it is. The caller writes
// the head.
type forgetting struct {
	engine  *Engine
	head    *head
	now     int64
	early   bool
	budget  int             // ids that may go
	changed map[string]bool // clients that this transaction wrote
	buried  bool            // the log was deleted: what cannot be read goes as well

	forgot int           // before their time
	age    time.Duration // of the last of those
	oldest int64         // log time of the oldest id that is left, if it was seen
	more   bool          // the budget was not enough
}

func (f *forgetting) run(tx store.Tx) error {
	f.oldest = f.now
	c := f.head.settings.Config
	if f.early && c.Fits(f.head.Keys) {
		return nil
	}
	if c.Identity == logs.Structured {
		return f.clients(tx)
	}
	hits, err := tx.Scan(windows, order, f.head.all(scanned))
	if err != nil {
		return err
	}
	for _, hit := range hits {
		n := numbers(hit.SortKey)
		f.oldest = int64(n[1])
		old := f.now-f.oldest >= int64(c.Window+f.engine.margin)
		if !old && (!f.early || c.Fits(f.head.Keys)) {
			return nil
		}
		if f.budget <= 0 {
			break
		}
		if err := f.window(tx, hit.Key, n[0], old); err != nil {
			return err
		}
	}
	f.more = len(hits) == scanned || f.budget <= 0
	return nil
}

// window forgets ids of one record, from the front.
func (f *forgetting) window(tx store.Tx, key string, first uint64, old bool) error {
	value, err := tx.Get(windows, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil // the scan was stale
	}
	if err == nil && len(value)%windowEntry != 0 {
		err = &store.UnreadableError{Collection: windows, Key: key, Reason: "its length is wrong"}
	}
	if f.buried && errors.Is(err, store.ErrUnreadable) {
		return tx.Delete(windows, key)
	}
	if err != nil {
		return err
	}
	c := &f.head.settings.Config
	take := 0
	for take < len(value)/windowEntry && take < f.budget && (old || !c.Fits(f.head.Keys-take)) {
		take++
	}
	all := make([]store.ID, take)
	for i := range all {
		all[i] = store.ID{Collection: ids, Key: f.head.prefix + string(value[i*windowEntry:][:16])}
	}
	if err := tx.Prefetch(all); err != nil {
		return err
	}
	for i, id := range all {
		b, err := tx.Get(id.Collection, id.Key)
		switch {
		case errors.Is(err, store.ErrNotFound):
		case f.buried && errors.Is(err, store.ErrUnreadable):
			if err := tx.Delete(id.Collection, id.Key); err != nil {
				return err
			}
		case err != nil:
			return err
		case logs.IDNumber(b) == binary.BigEndian.Uint64(value[i*windowEntry+16:]): // else it was appended again
			if err := tx.Delete(id.Collection, id.Key); err != nil {
				return err
			}
		}
	}
	f.head.Keys -= take
	f.budget -= take
	if !old {
		f.forgot += take
		f.age = time.Duration(f.now - f.oldest)
	}
	if rest := value[take*windowEntry:]; len(rest) > 0 {
		return putWindow(tx, f.head.prefix, first, f.oldest, rest)
	}
	return tx.Delete(windows, key)
}

// clients forgets the clients that were used least recently: with early while there are too many, else those whose last
// append is too old.
func (f *forgetting) clients(tx store.Tx) error {
	hits, err := tx.Scan(clients, order, f.head.all(maxForget))
	if err != nil {
		return err
	}
	c := &f.head.settings.Config
	for _, hit := range hits {
		if f.budget <= 0 || f.early && (f.head.Keys <= 1 || c.Fits(f.head.Keys)) {
			break
		}
		if f.changed[hit.Key] {
			continue // the scan lacks what this transaction wrote
		}
		if !f.early {
			value, err := tx.Get(clients, hit.Key)
			var unreadable *store.UnreadableError
			if errors.Is(err, store.ErrNotFound) || errors.As(err, &unreadable) {
				continue // the scan was stale, or the client is one for an operator
			}
			if err != nil {
				return err
			}
			at, err := logs.ClientAt(value)
			if err != nil {
				continue
			}
			if f.now-at < int64(c.Window+f.engine.margin) {
				break
			}
		}
		if err := tx.Delete(clients, hit.Key); err != nil {
			return err
		}
		f.head.Keys--
		f.budget--
		if f.early {
			f.forgot++
		}
	}
	return nil
}
