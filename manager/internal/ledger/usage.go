package ledger

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// What each scope holds is counted in a table of fixed size (a count-min sketch): every scope has a cell in each row,
// and holds at most the least of its cells. A scope seems larger than it is only if it shares all of its cells with large
// scopes. Scopes are not listed, so no number of scopes uses up memory or space.
//
// On an engine inside this process the cells are records, and each transaction changes them together with the entries. So
// they are exact after every call, every crash and every call whose outcome is unknown, and a start reads none of them. On a
// shared engine all managers would write the same cells. There each manager has a table in memory, which begins empty and
// has only what the manager inserted itself.
const (
	usageRows  = 2
	usageWidth = 1 << usageBits
	usageBits  = 14
)

// UsageCollection has the cells of the table, and the seed of the hash that gives each scope its cells.
const UsageCollection store.Collection = "ledger_usage"

// usageSeed is the key of the seed.
const (
	usageSeed      = "seed"
	usageSeedBytes = 16
)

type usageTable [usageRows][usageWidth]struct{ entries, bytes atomic.Int64 }

// usage is what the ledger knows of the window besides its records.
type usage struct {
	seed [2]uint64
	// cells is the table of a manager on a shared engine.
	cells *usageTable
	// pending is the approximate number of PENDING entries.
	pending atomic.Int64
	// growth is by how many bytes recent outcomes exceeded their reservations on average.
	growth atomic.Int64
}

// firstGrowth is usage.growth before the first outcome.
const firstGrowth = 256

// holding is what scopes hold.
type holding struct{ entries, bytes int64 }

// delta is a transaction's change of what a scope holds.
type delta struct {
	scope uint64 // usage.hash
	holding
	released bool // by the call of its holder
}

// hash hashes the scope of a record key.
func (u *usage) hash(recordKey string) uint64 {
	scope, _, _ := splitRecordKey(recordKey)
	return sipHash(u.seed, scope)
}

// cellOf is the place of a scope's cell in a row.
func cellOf(row int, scope uint64) int { return int(scope >> (row * usageBits) & (usageWidth - 1)) }

func (u *usage) add(d delta) {
	for row := range u.cells {
		c := &u.cells[row][cellOf(row, d.scope)]
		c.entries.Add(d.entries)
		c.bytes.Add(d.bytes)
	}
}

// of returns an upper bound of what a scope holds.
func (u *usage) of(scope uint64) holding {
	least := holding{math.MaxInt64, math.MaxInt64}
	for row := range u.cells {
		c := &u.cells[row][cellOf(row, scope)]
		least = least.min(holding{c.entries.Load(), c.bytes.Load()})
	}
	return holding{max(least.entries, 0), max(least.bytes, 0)}
}

func (a holding) min(b holding) holding {
	return holding{min(a.entries, b.entries), min(a.bytes, b.bytes)}
}

// decay makes a manager that cannot see what others removed forget its own insertions at the rate at which entries
// expire.
func (u *usage) decay(passed, ttl time.Duration) {
	gone := 1 - math.Exp(-float64(passed)/float64(ttl))
	for row := range u.cells {
		for i := range u.cells[row] {
			c := &u.cells[row][i].entries
			if n := c.Load(); n != 0 {
				c.Add(-int64(math.Ceil(float64(n) * gone)))
			}
		}
	}
}

// addGrowth adds a recorded outcome to the average growth.
func (u *usage) addGrowth(growth int64) {
	old := u.growth.Load()
	u.growth.Store(old + (max(growth, 0)-old)/16)
}

// openUsage prepares the table. It reads at most one record, whatever the ledger holds.
func (l *Ledger) openUsage(ctx context.Context) error {
	l.usage.growth.Store(firstGrowth)
	seed := make([]byte, usageSeedBytes)
	_, _ = rand.Read(seed)
	seed[0] |= 1 // a value that begins with 0 is taken for an encrypted one
	if l.shared {
		l.usage.cells = new(usageTable)
	} else if err := l.loadSeed(ctx, seed); err != nil {
		return fmt.Errorf("ledger: what scopes hold: %w", err)
	}
	l.usage.seed = [2]uint64{binary.LittleEndian.Uint64(seed), binary.LittleEndian.Uint64(seed[8:])}
	if !l.sizes {
		return nil
	}
	return l.countPending(ctx)
}

// loadSeed replaces the seed by the one in the store, if there is one, or else stores it.
func (l *Ledger) loadSeed(ctx context.Context, seed []byte) error {
	load := func(tx store.Tx) error {
		found, err := tx.Get(UsageCollection, usageSeed)
		if err == nil {
			err = ReadUsage(usageSeed, found)
		}
		copy(seed, found)
		return err
	}
	err := l.store.View(ctx, load)
	if errors.Is(err, store.ErrNotFound) {
		err = l.store.Update(ctx, func(tx store.Tx) error { return tx.Put(UsageCollection, usageSeed, seed) })
	}
	return err
}

func (l *Ledger) countPending(ctx context.Context) error {
	n, err := l.store.Len(ctx, collection, indexPending)
	if err == nil {
		l.usage.pending.Store(int64(n))
	}
	return err
}

// A cell's key is its row and its place in two bytes. Its value is uvarint(entries) uvarint(bytes). A cell without entries
// has no record.
const usageKeyBytes = 3

// usageKeys has the keys of all cells, so that a transaction allocates none.
var usageKeys = func() string {
	var b strings.Builder
	for row := range usageRows {
		for i := range usageWidth {
			b.Write([]byte{byte(row), byte(i >> 8), byte(i)})
		}
	}
	return b.String()
}()

func usageKey(row int, scope uint64) string {
	at := (row*usageWidth + cellOf(row, scope)) * usageKeyBytes
	return usageKeys[at : at+usageKeyBytes]
}

// decodeHolding reads a cell.
func decodeHolding(b []byte) (h holding, ok bool) {
	entries, n := binary.Uvarint(b)
	if n <= 0 {
		return holding{}, false
	}
	bytes, m := binary.Uvarint(b[n:])
	h = holding{int64(entries), int64(bytes)}
	return h, m > 0 && n+m == len(b) && h.entries > 0 && h.bytes >= 0
}

// ReadUsage checks a record of UsageCollection. Its error is a *store.UnreadableError.
func ReadUsage(key string, value []byte) error {
	ok := len(value) == usageSeedBytes
	if key != usageSeed {
		_, ok = decodeHolding(value)
		ok = ok && len(key) == usageKeyBytes
	}
	if !ok {
		return &store.UnreadableError{Collection: UsageCollection, Key: key, Reason: "it is malformed"}
	}
	return nil
}

// cell reads a cell. known is false if it cannot be read: then the other row alone says what its scopes hold.
func (tx *Tx) cell(key string) (h holding, known bool, err error) {
	value, err := tx.Tx.Get(UsageCollection, key)
	if errors.Is(err, store.ErrNotFound) {
		return holding{}, true, nil
	}
	if err == nil {
		if h, ok := decodeHolding(value); ok {
			return h, true, nil
		}
		err = ReadUsage(key, value)
	}
	if tx.l.skips(err) {
		err = nil
	}
	return holding{}, false, err
}

// keepUsage stores what the transaction changed of what scopes hold. A cell that cannot be read stays as it is.
func (tx *Tx) keepUsage() error {
	deltas := tx.deltas
	if len(deltas) > 1 {
		slices.SortFunc(deltas, func(a, b delta) int { return cmp.Compare(a.scope, b.scope) })
	}
	for i := 0; i < len(deltas); {
		d := deltas[i]
		for i++; i < len(deltas) && deltas[i].scope == d.scope; i++ {
			d.entries, d.bytes = d.entries+deltas[i].entries, d.bytes+deltas[i].bytes
		}
		if d.holding == (holding{}) {
			continue
		}
		for row := range usageRows {
			key := usageKey(row, d.scope)
			h, known, err := tx.cell(key)
			if err != nil {
				return err
			}
			if !known {
				continue
			}
			if h.entries += d.entries; h.entries <= 0 {
				err = tx.Delete(UsageCollection, key)
			} else {
				start := len(tx.values)
				tx.values = binary.AppendUvarint(tx.values, uint64(h.entries))
				tx.values = binary.AppendUvarint(tx.values, uint64(max(h.bytes+d.bytes, 0)))
				err = tx.Put(UsageCollection, key, tx.values[start:len(tx.values):len(tx.values)])
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// heldBy returns an upper bound of what a scope holds, including this transaction's changes.
func (tx *Tx) heldBy(scope uint64) (holding, error) {
	var h holding
	if tx.l.shared {
		h = tx.l.usage.of(scope)
	} else {
		any := false
		for row := range usageRows {
			c, known, err := tx.cell(usageKey(row, scope))
			switch {
			case err != nil:
				return holding{}, err
			case !known:
				continue
			case any:
				c = c.min(h)
			}
			h, any = c, true
		}
	}
	for _, d := range tx.deltas {
		if d.scope == scope {
			h.entries, h.bytes = h.entries+d.entries, h.bytes+d.bytes
		}
	}
	return h, nil
}
