package ledger

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// What each scope holds is counted in a table of fixed size in memory (a count-min sketch). The hash of a scope chooses a
// block of the table, and a cell in each row of the block. A scope holds at most the least of its cells. It seems larger
// than it is only if it shares all of its cells with large scopes. Scopes are not listed, so no number of scopes uses up
// memory or space. There is no table if scopes are not bounded.
//
// On a shared engine each manager's table begins empty, and has only what that manager inserted itself. On a durable engine
// inside this process the blocks are records, so that no start counts entries (see UsageCollection).
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

// UsageCollection has what scopes hold: a record for each block of the table, and the seed of the hash that
// gives each scope its cells.
//
// A transaction that brings a cell a step away from its record writes the block, too, and the end of Run writes all blocks
// that changed. So a start after a stop in order finds what was there. After a kill a cell may be off by less than a
// step, and by what the calls in progress changed. A scope then gets that much more or less than its share. A step is at
// most a 256th of the window, and 64 entries and 64 KiB, and the window itself is counted exactly. Nothing else adds to that error:
// calls change a cell by what they change of the entries, and the errors of several kills have either sign. A cell that is
// too low and reaches 0 is right again.
const UsageCollection store.Collection = "ledger_usage"

// usageSeed is the key of the seed, 8 bytes. The key of a block is its decimal number. Its value is uvarint(entries)
// uvarint(bytes) of each cell. All values have the byte usageVersion in front.
const (
	usageSeed    = "seed"
	usageVersion = 1
)

const (
	maxStepEntries = 64
	maxStepBytes   = 64 << 10
	// stepsOfWindow is how many steps the window has at least, if it has as many entries or bytes.
	stepsOfWindow = 256
)

// blockCells are the cells of a block as its record has them, or will.
type blockCells [usageCells]level

// blockWrite is a block that a transaction has claimed, and what it writes.
type blockWrite struct {
	block int
	cells blockCells
}

func blockKey(block int) string { return strconv.Itoa(block) }

// decodeBlock reads a block.
func decodeBlock(b []byte) (cells blockCells, ok bool) {
	if len(b) == 0 || b[0] != usageVersion {
		return cells, false
	}
	b = b[1:]
	for i := range cells {
		for _, to := range []*int64{&cells[i].entries, &cells[i].bytes} {
			v, n := binary.Uvarint(b)
			if n <= 0 || v > math.MaxInt64 {
				return cells, false
			}
			*to, b = int64(v), b[n:]
		}
	}
	return cells, len(b) == 0
}

func decodeSeed(b []byte) (seed uint64, ok bool) {
	if len(b) != 9 || b[0] != usageVersion {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[1:]), true
}

// ReadUsage checks a record of UsageCollection. Its error is a *store.UnreadableError.
func ReadUsage(key string, value []byte) error {
	ok := false
	if key == usageSeed {
		_, ok = decodeSeed(value)
	} else if block, err := strconv.Atoi(key); err == nil && block >= 0 && block < usageBlocks && blockKey(block) == key {
		_, ok = decodeBlock(value)
	}
	if !ok {
		return &store.UnreadableError{Collection: UsageCollection, Key: key, Reason: "it is malformed"}
	}
	return nil
}

// openUsage prepares the table. It reads the blocks at most, whatever the ledger holds.
func (l *Ledger) openUsage(ctx context.Context, durable bool) error {
	u := &l.usage
	u.growth.Store(firstGrowth)
	u.step = level{min(max(int64(l.opts.MaxEntries)/stepsOfWindow, 1), maxStepEntries), min(max(l.opts.MaxBytes/stepsOfWindow, 1), maxStepBytes)}
	if l.boundsScopes() {
		u.table, u.seed = new([usageBlocks]usageBlock), rand.Uint64()
	}
	if durable && !l.shared {
		u.kept = u.table != nil
		if err := l.loadUsage(ctx); err != nil {
			return fmt.Errorf("ledger: what scopes hold: %w", err)
		}
	}
	if !l.sizes {
		return nil
	}
	return l.countPending(ctx)
}

// loadUsage fills the table. If there is no seed, or none that can be read, the table stays empty and gets a new one.
// Records that nobody would keep up to date are removed.
func (l *Ledger) loadUsage(ctx context.Context) error {
	u := &l.usage
	var seed []byte
	var blocks map[int]blockCells
	err := l.store.View(ctx, func(tx store.Tx) (err error) {
		blocks = make(map[int]blockCells)
		if seed, err = tx.Get(UsageCollection, usageSeed); err == nil {
			err = ReadUsage(usageSeed, seed)
		}
		if err != nil || !u.kept {
			return err
		}
		if err := tx.Prefetch(usageIDs()); err != nil {
			return err
		}
		for n := range usageBlocks {
			value, err := tx.Get(UsageCollection, blockKey(n))
			switch cells, ok := decodeBlock(value); {
			case err == nil && ok:
				blocks[n] = cells
			case err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrUnreadable):
				return err
			}
		}
		return nil
	})
	absent := errors.Is(err, store.ErrNotFound)
	switch {
	case err == nil && u.kept:
		u.seed, _ = decodeSeed(seed)
		for n, cells := range blocks {
			b := &u.table[n]
			for i, at := range cells {
				b.cells[i].add(at)
				b.stored[i].add(at)
			}
		}
		return nil
	case err != nil && !absent && !errors.Is(err, store.ErrUnreadable):
		return err
	}
	if !absent {
		err := l.store.Update(ctx, func(tx store.Tx) error {
			for _, id := range usageIDs() {
				if err := tx.Delete(id.Collection, id.Key); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if !u.kept {
		return nil
	}
	seed = binary.LittleEndian.AppendUint64([]byte{usageVersion}, u.seed)
	return l.store.Update(ctx, func(tx store.Tx) error { return tx.Put(UsageCollection, usageSeed, seed) })
}

// usageIDs names all records that there may be.
func usageIDs() []store.ID {
	ids := []store.ID{{Collection: UsageCollection, Key: usageSeed}}
	for n := range usageBlocks {
		ids = append(ids, store.ID{Collection: UsageCollection, Key: blockKey(n)})
	}
	return ids
}

func (l *Ledger) countPending(ctx context.Context) error {
	n, err := l.store.Len(ctx, Collection, indexPending)
	if err == nil {
		l.usage.pending.Store(int64(n))
	}
	return err
}

// isFar reports whether a change brings a cell a step away from its record.
func (u *usage) isFar(d delta) bool {
	b := &u.table[blockOf(d.scope)]
	for row := range usageRows {
		i := cellOf(row, d.scope)
		at, stored := b.cells[i].level().plus(d.level).over(level{}), b.stored[i].level()
		off := at.over(stored).plus(stored.over(at))
		if off.entries >= u.step.entries || off.bytes >= u.step.bytes {
			return true
		}
	}
	return false
}

// claim has this transaction write a block, unless another one is writing it. The claim stays for all runs of the
// function (see writtenUsage).
func (tx *Tx) claim(block int) {
	if tx.l.usage.table[block].claimed.CompareAndSwap(false, true) {
		tx.blocks = append(tx.blocks, blockWrite{block: block})
	}
}

// keepUsage writes the blocks that the transaction has claimed or should.
func (tx *Tx) keepUsage() error {
	for _, d := range tx.deltas {
		if tx.l.usage.isFar(d) {
			tx.claim(blockOf(d.scope))
		}
	}
	for i := range tx.blocks {
		if err := tx.putBlock(&tx.blocks[i]); err != nil {
			return err
		}
	}
	return nil
}

func (tx *Tx) putBlock(w *blockWrite) error {
	b := &tx.l.usage.table[w.block]
	for i := range w.cells {
		w.cells[i] = b.cells[i].level()
	}
	for _, d := range tx.deltas {
		for row := range usageRows {
			if i := cellOf(row, d.scope); blockOf(d.scope) == w.block {
				w.cells[i] = w.cells[i].plus(d.level)
			}
		}
	}
	start := len(tx.values)
	tx.values = append(tx.values, usageVersion)
	for i := range w.cells {
		w.cells[i] = w.cells[i].over(level{})
		tx.values = binary.AppendUvarint(tx.values, uint64(w.cells[i].entries))
		tx.values = binary.AppendUvarint(tx.values, uint64(w.cells[i].bytes))
	}
	key := blockKey(w.block)
	switch _, err := tx.Get(UsageCollection, key); {
	case errors.Is(err, store.ErrUnreadable):
		// It cannot be replaced, only deleted. A later transaction writes it.
		w.cells = blockCells{}
		return tx.Delete(UsageCollection, key)
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return err
	}
	return tx.Put(UsageCollection, key, tx.values[start:len(tx.values):len(tx.values)])
}

// writtenUsage ends the claims of a transaction, which happened or not.
func (l *Ledger) writtenUsage(tx *Tx, happened bool) {
	for i := range tx.blocks {
		w := &tx.blocks[i]
		b := &l.usage.table[w.block]
		if happened {
			for j, at := range w.cells {
				b.stored[j].entries.Store(at.entries)
				b.stored[j].bytes.Store(at.bytes)
			}
		}
		b.claimed.Store(false)
	}
	tx.blocks = tx.blocks[:0]
}

// storeUsage writes all blocks that differ from their records.
func (l *Ledger) storeUsage(ctx context.Context) error {
	if !l.usage.kept {
		return nil
	}
	ctx, cancel := l.opContext(ctx)
	defer cancel()
	return l.transact(ctx, func(tx *Tx) error {
		for n := range l.usage.table {
			b := &l.usage.table[n]
			for i := range b.cells {
				if b.cells[i].level().over(level{}) != b.stored[i].level() {
					tx.claim(n)
					break
				}
			}
		}
		return nil
	})
}
