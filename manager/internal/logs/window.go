package logs

import (
	"encoding/binary"
	"time"
)

// slot is an id in the window. It does not change once it was written.
type slot struct {
	hash   Hash
	digest Digest
	number uint64 // of the entry
	at     int64  // log time of its append
}

const (
	chunkSlots = 4096
	// slotBytes is what an id takes in memory, with its share of the table at its largest.
	slotBytes = 48 + 16
	minTable  = 1024
	indexMask = 1<<31 - 1
)

// window remembers ids in the order of their appends: a ring of slots in chunks, and a table of
// open addressing from hashes to slots. A chunk's slots are written once, so a snapshot can
// read them while the window changes.
type window struct {
	chunks []*[chunkSlots]slot
	first  uint64 // running number of chunks[0][0]
	head   uint64 // of the oldest slot
	tail   uint64 // of the next slot
	// table holds running numbers modulo 2^31, plus 1; 0 is empty. A hash that comes again
	// after its id expired replaces the older slot.
	table []uint32
	used  int
	undos []undo
}

// undo takes back an insert.
type undo struct {
	hash  Hash
	index uint64
	older uint32 // what was in the table
}

func (w *window) len() int { return int(w.tail - w.head) }

func (w *window) bytes() int64 {
	return int64(len(w.chunks))*chunkSlots*48 + int64(len(w.table))*4
}

func (w *window) slot(index uint64) *slot {
	i := index - w.first
	return &w.chunks[i/chunkSlots][i%chunkSlots]
}

// index is the running number for a value of the table.
func (w *window) index(v uint32) uint64 {
	return w.head + (uint64(v-1)-w.head)&indexMask
}

func tableValue(index uint64) uint32 { return uint32(index&indexMask) + 1 }

// bucket returns the table's bucket for a hash: the one that holds it, or the empty one where
// it would go.
func (w *window) bucket(h *Hash) (i int, found bool) {
	mask := uint64(len(w.table) - 1)
	for at := binary.LittleEndian.Uint64(h[:]) & mask; ; at = (at + 1) & mask {
		v := w.table[at]
		if v == 0 {
			return int(at), false
		}
		if w.slot(w.index(v)).hash == *h {
			return int(at), true
		}
	}
}

// find returns the newest slot with this hash that is younger than the window.
func (w *window) find(h *Hash, now int64, window time.Duration) (*slot, bool) {
	if w.used == 0 {
		return nil, false
	}
	i, ok := w.bucket(h)
	if !ok {
		return nil, false
	}
	s := w.slot(w.index(w.table[i]))
	return s, now-s.at < int64(window)
}

// add appends a slot; undo takes it back.
func (w *window) add(s slot) {
	if (w.used+1)*4 > len(w.table)*3 {
		w.rehash(max(minTable, len(w.table)*2))
	}
	if w.tail == w.first+uint64(len(w.chunks))*chunkSlots {
		w.chunks = append(w.chunks, new([chunkSlots]slot))
	}
	index := w.tail
	*w.slot(index) = s
	w.tail++
	i, found := w.bucket(&s.hash)
	w.undos = append(w.undos, undo{s.hash, index, w.table[i]})
	if !found {
		w.used++
	}
	w.table[i] = tableValue(index)
}

// keep makes what was added since the last keep or undo stay.
func (w *window) keep() { w.undos = w.undos[:0] }

// undo takes back what was added since, in reverse order, so that an empty bucket
// never hides a slot.
func (w *window) undo() {
	for i := len(w.undos) - 1; i >= 0; i-- {
		u := &w.undos[i]
		if at, found := w.bucket(&u.hash); found {
			w.table[at] = u.older
			if u.older == 0 {
				w.used--
			}
		}
		w.tail = u.index
	}
	w.keep()
}

// pop forgets the oldest slot. Nothing may be there to undo.
func (w *window) pop() {
	s := w.slot(w.head)
	if i, found := w.bucket(&s.hash); found && w.table[i] == tableValue(w.head) {
		w.remove(i)
	}
	w.head++
	if w.head == w.first+chunkSlots {
		w.chunks[0] = nil
		w.chunks, w.first = w.chunks[1:], w.head
	}
	if w.head == w.tail {
		*w = window{first: w.head, head: w.head, tail: w.head, undos: w.undos}
	} else if len(w.table) > minTable && w.used*8 < len(w.table) {
		w.rehash(len(w.table) / 2)
	}
}

// remove empties a bucket of the table and moves the slots up that collisions had pushed past it.
func (w *window) remove(i int) {
	mask := len(w.table) - 1
	w.used--
	for j := i; ; {
		w.table[i] = 0
		for {
			j = (j + 1) & mask
			v := w.table[j]
			if v == 0 {
				return
			}
			home := int(binary.LittleEndian.Uint64(w.slot(w.index(v)).hash[:])) & mask
			if (j-home)&mask >= (j-i)&mask {
				w.table[i], i = v, j
				break
			}
		}
	}
}

// rehash makes a table of the given size.
func (w *window) rehash(size int) {
	distinct := w.used == w.len() // no id is there twice, so none has to be compared
	w.table, w.used = make([]uint32, size), 0
	mask := uint64(size - 1)
	for index := w.head; index < w.tail; index++ {
		h := &w.slot(index).hash
		if !distinct {
			i, found := w.bucket(h)
			if !found {
				w.used++
			}
			w.table[i] = tableValue(index)
			continue
		}
		at := binary.LittleEndian.Uint64(h[:]) & mask
		for w.table[at] != 0 {
			at = (at + 1) & mask
		}
		w.table[at] = tableValue(index)
		w.used++
	}
}

// reserve makes room for n ids at once.
func (w *window) reserve(n int) {
	size := minTable
	for n*4 > size*3 {
		size *= 2
	}
	if size > len(w.table) {
		w.rehash(size)
	}
}

// view is the window as it was at one moment.
type view struct {
	chunks            []*[chunkSlots]slot
	first, head, tail uint64
}

func (w *window) view() view {
	return view{append([]*[chunkSlots]slot(nil), w.chunks...), w.first, w.head, w.tail}
}

// each calls fn with stretches of slots in order.
func (v *view) each(fn func([]slot) error) error {
	for index := v.head; index < v.tail; {
		i := index - v.first
		n := min(v.tail-index, chunkSlots-i%chunkSlots)
		if err := fn(v.chunks[i/chunkSlots][i%chunkSlots : i%chunkSlots+n]); err != nil {
			return err
		}
		index += n
	}
	return nil
}
