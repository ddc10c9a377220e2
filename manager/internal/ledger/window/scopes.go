package window

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
)

// The table.
const (
	blockBits  = 6
	blockCount = 1 << blockBits
	rows       = 3
	width      = 1 << blockBits // cells of a row
	blockCells = rows * width
)

type cell struct{ entries, bytes atomic.Int64 }

type block struct {
	cells [blockCells]cell
	// stored is what the block's record has.
	stored [blockCells]cell
	// claimed: a transaction writes the record.
	claimed atomic.Bool
}

// Scopes is what scopes hold. It is safe for concurrent use.
type Scopes struct {
	seed  uint64
	table *[blockCount]block // nil if scopes are not bounded
	// kept: the blocks are records. step is how far a cell may be away from its record.
	kept bool
	step Level
}

// Hash returns the hash of a scope. Callers of the ledger do not know the seed, so they cannot choose scopes that share the
// cells of another one.
func (s *Scopes) Hash(scope string) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(s.seed)
	_, _ = d.WriteString(scope)
	return d.Sum64()
}

// blockOf and cellOf are the places of a scope: its block, and its cell of a row in that.
func blockOf(scope uint64) int { return int(scope % blockCount) }

func cellOf(row int, scope uint64) int {
	return row*width + int(scope>>(blockBits*(row+1))%width)
}

func (c *cell) level() Level { return Level{c.entries.Load(), c.bytes.Load()} }

func (c *cell) add(n Level) {
	c.entries.Add(n.Entries)
	c.bytes.Add(n.Bytes)
}

func (c *cell) store(n Level) {
	c.entries.Store(n.Entries)
	c.bytes.Store(n.Bytes)
}

// Add counts a change that happened. Scopes must be bounded.
func (s *Scopes) Add(c Change) {
	b := &s.table[blockOf(c.Scope)]
	for row := range rows {
		b.cells[cellOf(row, c.Scope)].add(c.Level)
	}
}

// Held returns an upper bound of what a scope holds, with changes that have not happened yet. Scopes must be bounded.
func (s *Scopes) Held(scope uint64, changes []Change) Level {
	least := Level{math.MaxInt64, math.MaxInt64}
	b := &s.table[blockOf(scope)]
	for row := range rows {
		at := b.cells[cellOf(row, scope)].level()
		least = Level{min(least.Entries, at.Entries), min(least.Bytes, at.Bytes)}
	}
	least = least.Over(Level{})
	for _, c := range changes {
		if c.Scope == scope {
			least = least.Plus(c.Level)
		}
	}
	return least
}

// each calls fn with every cell.
func (s *Scopes) each(fn func(*cell)) {
	if s.table == nil {
		return
	}
	for i := range s.table {
		for j := range s.table[i].cells {
			fn(&s.table[i].cells[j])
		}
	}
}

// Decay makes a manager that cannot see what others removed forget its own insertions at the rate at which entries
// expire.
func (s *Scopes) Decay(passed, ttl time.Duration) {
	gone := 1 - math.Exp(-float64(passed)/float64(ttl))
	s.each(func(c *cell) {
		if n := c.entries.Load(); n != 0 {
			c.entries.Add(-int64(math.Ceil(float64(n) * gone)))
		}
	})
}

// Settle sets cells to 0 that are less. What a cell lacks was never counted in it, and is gone. A cell that is less by no
// more than a step may only lack a call in progress.
func (s *Scopes) Settle() {
	s.each(func(c *cell) {
		less := Level{}.Over(c.level())
		if less.Entries > s.step.Entries || less.Bytes > s.step.Bytes {
			c.add(less)
		}
	})
}

// Off returns by how much the worst cell differs from a table of these changes alone. Tests compare the table with the
// entries by it.
func (s *Scopes) Off(changes []Change) (off Level) {
	if s.table == nil {
		return off
	}
	want := &Scopes{table: new([blockCount]block)}
	for _, c := range changes {
		want.Add(c)
	}
	for n := range s.table {
		for i := range s.table[n].cells {
			at, sum := s.table[n].cells[i].level(), want.table[n].cells[i].level()
			diff := at.Over(sum).Plus(sum.Over(at))
			off = Level{max(off.Entries, diff.Entries), max(off.Bytes, diff.Bytes)}
		}
	}
	return off
}
