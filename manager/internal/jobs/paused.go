package jobs

import (
	"errors"
	"sync"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// pausedSet caches one queue's list of paused functions, so that claims need not read thousands of names each time.
// They Get the list's version instead; Pause and Resume write both records.
type pausedSet struct {
	mu      sync.Mutex
	version string
	names   []string
	many    bool     // the last list that was read is long enough to be cached
	last    []string // the names that a transaction read last, for guess
	read    bool     // a transaction has read them
}

// manyPaused is the number of names from which the list is cached.
const manyPaused = 64

// pausedFunctions returns the paused functions as of the transaction, like loadPaused.
func (q *Queue) pausedFunctions(tx store.Tx) ([]string, error) {
	p := &q.paused
	p.mu.Lock()
	version, names, many := p.version, p.names, p.many
	p.mu.Unlock()
	var have string
	if many {
		// Read before the list, so that the cached list is never older than its version.
		b, err := tx.Get(colControl, pausedVersionKey)
		if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrUnreadable) {
			return nil, err
		}
		if have = string(b); have != "" && have == version {
			return names, nil
		}
	}
	list, err := loadPaused(tx)
	if err != nil {
		return list.names, err
	}
	names = list.names
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.read = names, true
	p.many = len(names) >= manyPaused
	if p.version = ""; p.many && have != "" {
		p.version, p.names = have, names
	}
	return names, nil
}

// guess returns the paused functions as the last transaction read them, and the record that shows whether they are
// still the same. known is false before the first.
func (p *pausedSet) guess() (names []string, check store.ID, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	check = store.ID{Collection: colControl, Key: pausedKey}
	if p.many {
		check.Key = pausedVersionKey
	}
	return p.last, check, p.read
}

// savePaused writes the list of paused functions under a new version.
func savePaused(tx store.Tx, p pausedList, version string) error {
	if len(p.names) == 0 {
		return errors.Join(tx.Delete(colControl, pausedKey), tx.Delete(colControl, pausedVersionKey))
	}
	if err := tx.Put(colControl, pausedVersionKey, []byte(version)); err != nil {
		return err
	}
	return tx.Put(colControl, pausedKey, p.encode())
}
