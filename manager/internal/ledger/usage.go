package ledger

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
)

// What each scope holds is counted in a table of fixed size in memory (a count-min sketch). The hash of a scope chooses a
// block of the table, and a cell in each row of the block. A scope holds at most the least of its cells. It seems larger
// than it is only if it shares all of its cells with large scopes. Scopes are not listed, so no number of scopes uses up
// memory or space. There is no table if scopes are not bounded.
//
// On a shared engine each manager's table begins empty, and has only what that manager inserted itself. On a durable engine
// inside this process the blocks are records, so that no start counts entries (see usage_stored.go).
const (
	usageBits   = 6
	usageBlocks = 1 << usageBits
	usageRows   = 3
	usageWidth  = 1 << usageBits // cells of a row
	usageCells  = usageRows * usageWidth
)

type usageCell struct{ entries, bytes atomic.Int64 }

type usageBlock struct {
	cells [usageCells]usageCell
	// stored is what the block's record has.
	stored [usageCells]usageCell
	// claimed: a transaction writes the record.
	claimed atomic.Bool
}

// usage is what the ledger knows of the window besides its records.
type usage struct {
	seed  uint64
	table *[usageBlocks]usageBlock // nil if scopes are not bounded
	// kept: the blocks are records. step is how far a cell may be away from its record.
	kept bool
	step level
	// pending is the approximate number of PENDING entries.
	pending atomic.Int64
	// growth is by how many bytes recent outcomes exceeded their reservations on average.
	growth atomic.Int64
}

// firstGrowth is usage.growth before the first outcome.
const firstGrowth = 256

// delta is a transaction's change of what a scope holds.
type delta struct {
	scope uint64 // usage.hash
	level
	released bool // by the call of its holder
}

// hash hashes the scope of a record key. A caller does not know the seed, so it cannot choose scopes that share the cells
// of another one.
func (u *usage) hash(recordKey string) uint64 {
	scope, _, _ := SplitEntryKey(recordKey)
	var d xxhash.Digest
	d.ResetWithSeed(u.seed)
	_, _ = d.WriteString(scope)
	return d.Sum64()
}

// blockOf and cellOf are the places of a scope: its block, and its cell of a row in that.
func blockOf(scope uint64) int { return int(scope % usageBlocks) }

func cellOf(row int, scope uint64) int {
	return row*usageWidth + int(scope>>(usageBits*(row+1))%usageWidth)
}

func (c *usageCell) level() level { return level{c.entries.Load(), c.bytes.Load()} }

func (c *usageCell) add(n level) {
	c.entries.Add(n.entries)
	c.bytes.Add(n.bytes)
}

func (u *usage) add(d delta) {
	b := &u.table[blockOf(d.scope)]
	for row := range usageRows {
		b.cells[cellOf(row, d.scope)].add(d.level)
	}
}

// of returns an upper bound of what a scope holds.
func (u *usage) of(scope uint64) level {
	least := level{math.MaxInt64, math.MaxInt64}
	b := &u.table[blockOf(scope)]
	for row := range usageRows {
		at := b.cells[cellOf(row, scope)].level()
		least = level{min(least.entries, at.entries), min(least.bytes, at.bytes)}
	}
	return least.over(level{})
}

// each calls fn with every cell.
func (u *usage) each(fn func(*usageCell)) {
	if u.table == nil {
		return
	}
	for i := range u.table {
		for j := range u.table[i].cells {
			fn(&u.table[i].cells[j])
		}
	}
}

// decay makes a manager that cannot see what others removed forget its own insertions at the rate at which entries
// expire.
func (u *usage) decay(passed, ttl time.Duration) {
	gone := 1 - math.Exp(-float64(passed)/float64(ttl))
	u.each(func(c *usageCell) {
		if n := c.entries.Load(); n != 0 {
			c.entries.Add(-int64(math.Ceil(float64(n) * gone)))
		}
	})
}

// settle sets cells to 0 that are less. What a cell lacks was never counted in it, and is gone. A cell that is less by no
// more than a step may only lack a call in progress.
func (u *usage) settle() {
	u.each(func(c *usageCell) {
		less := level{}.over(c.level())
		if less.entries > u.step.entries || less.bytes > u.step.bytes {
			c.add(less)
		}
	})
}

// addGrowth adds a recorded outcome to the average growth.
func (u *usage) addGrowth(growth int64) {
	old := u.growth.Load()
	u.growth.Store(old + (max(growth, 0)-old)/16)
}

// heldBy returns an upper bound of what a scope holds, including this transaction's changes.
func (tx *Tx) heldBy(scope uint64) level {
	at := tx.l.usage.of(scope)
	for _, d := range tx.deltas {
		if d.scope == scope {
			at = at.plus(d.level)
		}
	}
	return at
}
