package window

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Collection has what scopes hold: a record for each block of the table, and the seed of the hash that
// gives each scope its cells.
//
// A transaction that brings a cell a step away from its record writes the block, too, and the end of the ledger writes all
// blocks that changed. So a start after a stop in order finds what was there. After a kill a cell may be off by less than a
// step, and by what the calls in progress changed. A scope then gets that much more or less than its share. A step is at
// most a 256th of the window, and StepEntries and StepBytes, and the window itself is counted exactly. Nothing else adds to
// that error: calls change a cell by what they change of the entries, and the errors of several kills have either sign. A
// cell that is too low and reaches 0 is right again.
const Collection store.Collection = "ledger_usage"

// seedKey is the key of the seed, 8 bytes. The key of a block is its decimal number. Its value is uvarint(entries)
// uvarint(bytes) of each cell. All values have the byte version in front.
const (
	seedKey = "seed"
	version = 1
)

const (
	// StepEntries and StepBytes bound a step.
	StepEntries = 64
	StepBytes   = 64 << 10
	// stepsOfWindow is how many steps the window has at least, if it has as many entries or bytes.
	stepsOfWindow = 256
)

// levels are the cells of a block as its record has them, or will.
type levels [blockCells]Level

func blockKey(n int) string { return strconv.Itoa(n) }

// decodeBlock reads a block.
func decodeBlock(b []byte) (cells levels, ok bool) {
	if len(b) == 0 || b[0] != version {
		return cells, false
	}
	b = b[1:]
	for i := range cells {
		for _, to := range []*int64{&cells[i].Entries, &cells[i].Bytes} {
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
	if len(b) != 9 || b[0] != version {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[1:]), true
}

// Check checks a record of Collection. Its error is a *store.UnreadableError.
func Check(key string, value []byte) error {
	ok := false
	if key == seedKey {
		_, ok = decodeSeed(value)
	} else if n, err := strconv.Atoi(key); err == nil && n >= 0 && n < blockCount && blockKey(n) == key {
		_, ok = decodeBlock(value)
	}
	if !ok {
		return &store.UnreadableError{Collection: Collection, Key: key, Reason: "it is malformed"}
	}
	return nil
}

// Open returns what scopes hold of a window of that size. bounded: scopes have a share; without it there is no table, and
// only Hash, Decay, Settle, Kept and Off may be called. It reads the blocks at most, whatever the ledger holds. Its error is
// the store's.
func Open(ctx context.Context, st store.Store, size Level, bounded bool) (*Scopes, error) {
	s := &Scopes{step: Level{
		min(max(size.Entries/stepsOfWindow, 1), StepEntries), min(max(size.Bytes/stepsOfWindow, 1), StepBytes),
	}}
	if bounded {
		s.table, s.seed = new([blockCount]block), rand.Uint64()
	}
	if caps := st.Capabilities(); !caps.Durable || caps.Shared {
		return s, nil
	}
	s.kept = bounded
	return s, s.load(ctx, st)
}

// Kept reports whether transactions must write blocks (see Keep).
func (s *Scopes) Kept() bool { return s.kept }

// load fills the table. If there is no seed, or none that can be read, the table stays empty and gets a new one.
// Records that nobody would keep up to date are removed.
func (s *Scopes) load(ctx context.Context, st store.Store) error {
	var seed []byte
	var blocks map[int]levels
	err := st.View(ctx, func(tx store.Tx) (err error) {
		blocks = make(map[int]levels)
		if seed, err = tx.Get(Collection, seedKey); err == nil {
			err = Check(seedKey, seed)
		}
		if err != nil || !s.kept {
			return err
		}
		if err := tx.Prefetch(ids()); err != nil {
			return err
		}
		for n := range blockCount {
			value, err := tx.Get(Collection, blockKey(n))
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
	case err == nil && s.kept:
		s.seed, _ = decodeSeed(seed)
		for n, cells := range blocks {
			b := &s.table[n]
			for i, at := range cells {
				b.cells[i].store(at)
				b.stored[i].store(at)
			}
		}
		return nil
	case err != nil && !absent && !errors.Is(err, store.ErrUnreadable):
		return err
	}
	if !absent {
		err := st.Update(ctx, func(tx store.Tx) error {
			for _, id := range ids() {
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
	if !s.kept {
		return nil
	}
	seed = binary.LittleEndian.AppendUint64([]byte{version}, s.seed)
	return st.Update(ctx, func(tx store.Tx) error { return tx.Put(Collection, seedKey, seed) })
}

// ids names all records that there may be.
func ids() []store.ID {
	ids := []store.ID{{Collection: Collection, Key: seedKey}}
	for n := range blockCount {
		ids = append(ids, store.ID{Collection: Collection, Key: blockKey(n)})
	}
	return ids
}

// Writes are the blocks that a transaction writes. Its claims stay for all runs of the transaction's function, until
// Written ends them.
type Writes []blockWrite

// blockWrite is a block that a transaction has claimed, and what it writes.
type blockWrite struct {
	block int
	cells levels
}

// claim has a transaction write a block, unless another one is writing it.
func (s *Scopes) claim(w *Writes, n int) {
	if s.table[n].claimed.CompareAndSwap(false, true) {
		*w = append(*w, blockWrite{block: n})
	}
}

// ClaimChanged has a transaction write all blocks that differ from their records.
func (s *Scopes) ClaimChanged(w *Writes) {
	for n := range s.table {
		b := &s.table[n]
		for i := range b.cells {
			if b.cells[i].level().Over(Level{}) != b.stored[i].level() {
				s.claim(w, n)
				break
			}
		}
	}
}

// isFar reports whether a change brings a cell a step away from its record.
func (s *Scopes) isFar(c Change) bool {
	b := &s.table[blockOf(c.Scope)]
	for row := range rows {
		i := cellOf(row, c.Scope)
		at, stored := b.cells[i].level().Plus(c.Level).Over(Level{}), b.stored[i].level()
		off := at.Over(stored).Plus(stored.Over(at))
		if off.Entries >= s.step.Entries || off.Bytes >= s.step.Bytes {
			return true
		}
	}
	return false
}

// Keep writes the blocks that a transaction with these changes has claimed or should. It appends their values to buf, which
// the store may read until the transaction is over, and returns that. Its error is the store's.
func (s *Scopes) Keep(tx store.Tx, w *Writes, changes []Change, buf []byte) ([]byte, error) {
	for _, c := range changes {
		if s.isFar(c) {
			s.claim(w, blockOf(c.Scope))
		}
	}
	for i := range *w {
		var err error
		if buf, err = s.put(tx, &(*w)[i], changes, buf); err != nil {
			return buf, err
		}
	}
	return buf, nil
}

func (s *Scopes) put(tx store.Tx, w *blockWrite, changes []Change, buf []byte) ([]byte, error) {
	b := &s.table[w.block]
	for i := range w.cells {
		w.cells[i] = b.cells[i].level()
	}
	for _, c := range changes {
		for row := range rows {
			if i := cellOf(row, c.Scope); blockOf(c.Scope) == w.block {
				w.cells[i] = w.cells[i].Plus(c.Level)
			}
		}
	}
	start := len(buf)
	buf = append(buf, version)
	for i := range w.cells {
		w.cells[i] = w.cells[i].Over(Level{})
		buf = binary.AppendUvarint(buf, uint64(w.cells[i].Entries))
		buf = binary.AppendUvarint(buf, uint64(w.cells[i].Bytes))
	}
	key := blockKey(w.block)
	switch _, err := tx.Get(Collection, key); {
	case errors.Is(err, store.ErrUnreadable):
		// It cannot be replaced, only deleted. A later transaction writes it.
		w.cells = levels{}
		return buf, tx.Delete(Collection, key)
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return buf, err
	}
	return buf, tx.Put(Collection, key, buf[start:len(buf):len(buf)])
}

// Written ends the claims of a transaction, which happened or not.
func (s *Scopes) Written(w *Writes, happened bool) {
	for i := range *w {
		w := &(*w)[i]
		b := &s.table[w.block]
		if happened {
			for j, at := range w.cells {
				b.stored[j].store(at)
			}
		}
		b.claimed.Store(false)
	}
	*w = (*w)[:0]
}
