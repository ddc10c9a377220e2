package state

import (
	"encoding/binary"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// fingerprint is 32 bits of a hash of a record's collection and key.
type fingerprint uint32

func fingerprintOf(c store.Collection, key string) fingerprint {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.WriteString(string(c))
	_, _ = d.Write([]byte{0})
	_, _ = d.WriteString(key)
	return fingerprint(d.Sum64())
}

// fingerprints is a multiset: two records with the same fingerprint are in it twice. The upper 16 bits choose a list,
// which has the lower 16 bits in order.
type fingerprints struct {
	mu    sync.RWMutex
	lists lists
	n     int
}

// lists are 65,536 lists in groups of 256. A group without a list takes no memory.
type lists [256]*[256][]uint16

func (l *lists) get(p fingerprint) []uint16 {
	if group := l[p>>24]; group != nil {
		return group[p>>16&0xff]
	}
	return nil
}

func (l *lists) set(p fingerprint, list []uint16) {
	if l[p>>24] == nil {
		l[p>>24] = new([256][]uint16)
	}
	l[p>>24][p>>16&0xff] = list
}

// all calls fn with each list and the lowest fingerprint that can be in it.
func (l *lists) all(fn func(first fingerprint, list []uint16)) {
	for i, group := range l {
		if group == nil {
			continue
		}
		for j, list := range group {
			if len(list) > 0 {
				fn(fingerprint(i)<<24|fingerprint(j)<<16, list)
			}
		}
	}
}

func (f *fingerprints) has(p fingerprint) bool {
	f.mu.RLock()
	_, ok := slices.BinarySearch(f.lists.get(p), uint16(p))
	f.mu.RUnlock()
	return ok
}

// len is how many there are.
func (f *fingerprints) len() int {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.n
}

// changeStep is how many fingerprints are changed while look-ups wait.
const changeStep = 512

func (f *fingerprints) change(list []fingerprint, change func(p fingerprint, l []uint16, i int, found bool)) {
	for step := range slices.Chunk(list, changeStep) {
		f.mu.Lock()
		for _, p := range step {
			l := f.lists.get(p)
			i, found := slices.BinarySearch(l, uint16(p))
			change(p, l, i, found)
		}
		f.mu.Unlock()
	}
}

func (f *fingerprints) add(list []fingerprint) {
	f.change(list, func(p fingerprint, l []uint16, i int, _ bool) {
		if len(l) == cap(l) { // append would double a long list
			l = slices.Grow(l, 4+len(l)/8)
		}
		f.lists.set(p, slices.Insert(l, i, uint16(p)))
		f.n++
	})
}

func (f *fingerprints) remove(list []fingerprint) {
	f.change(list, func(p fingerprint, l []uint16, i int, found bool) {
		if !found {
			return
		}
		l = slices.Delete(l, i, i+1)
		if len(l) < cap(l)/2 {
			l = slices.Clip(slices.Clone(l))
		}
		f.lists.set(p, l)
		f.n--
	})
}

// all calls fn with every fingerprint in order, in parts of at most size.
func (f *fingerprints) all(size int, fn func([]fingerprint)) {
	part := make([]fingerprint, 0, size)
	f.lists.all(func(first fingerprint, list []uint16) { // only Write, which calls this, changes them
		for _, low := range list {
			if part = append(part, first|fingerprint(low)); len(part) == size {
				fn(part)
				part = part[:0]
			}
		}
	})
	if len(part) > 0 {
		fn(part)
	}
}

// A stored list is the number added, then those, then the ones removed, 4 bytes each.
func appendList(dst []byte, added, removed []fingerprint) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(added)))
	for _, p := range added {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(p))
	}
	for _, p := range removed {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(p))
	}
	return dst
}

// loader builds a set from stored lists. It sorts each list of the set once, which is several times faster than adding
// one by one.
type loader struct {
	added, removed lists
	items          int
}

// list takes a stored list. It reports whether it is well formed.
func (l *loader) list(b []byte) bool {
	if len(b) < 4 || len(b)%4 != 0 {
		return false
	}
	n := int(binary.LittleEndian.Uint32(b))
	b = b[4:]
	if n > len(b)/4 {
		return false
	}
	l.items += len(b) / 4
	for i := 0; i < len(b); i += 4 {
		p := fingerprint(binary.LittleEndian.Uint32(b[i:]))
		to := &l.added
		if i/4 >= n {
			to = &l.removed
		}
		list := to.get(p)
		if len(list) == cap(list) {
			list = slices.Grow(list, 8+len(list)/4)
		}
		to.set(p, append(list, uint16(p)))
	}
	return true
}

// finish moves what was loaded into an empty set.
func (l *loader) finish(f *fingerprints) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l.added.all(func(first fingerprint, added []uint16) {
		slices.Sort(added)
		if removed := l.removed.get(first); len(removed) > 0 {
			slices.Sort(removed)
			kept := added[:0]
			for _, p := range added {
				for len(removed) > 0 && removed[0] < p {
					removed = removed[1:]
				}
				if len(removed) > 0 && removed[0] == p {
					removed = removed[1:]
					continue
				}
				kept = append(kept, p)
			}
			added = kept
		}
		f.lists.set(first, added)
		f.n += len(added)
	})
}
