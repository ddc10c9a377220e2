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
	lists [1 << 16][]uint16
	n     int
}

func (f *fingerprints) has(p fingerprint) bool {
	f.mu.RLock()
	_, ok := slices.BinarySearch(f.lists[p>>16], uint16(p))
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

func (f *fingerprints) add(list []fingerprint) {
	for step := range slices.Chunk(list, changeStep) {
		f.mu.Lock()
		for _, p := range step {
			l := f.lists[p>>16]
			i, _ := slices.BinarySearch(l, uint16(p))
			if len(l) == cap(l) { // append would double a long list
				l = slices.Grow(l, 4+len(l)/8)
			}
			f.lists[p>>16] = slices.Insert(l, i, uint16(p))
		}
		f.n += len(step)
		f.mu.Unlock()
	}
}

func (f *fingerprints) remove(list []fingerprint) {
	for step := range slices.Chunk(list, changeStep) {
		f.mu.Lock()
		for _, p := range step {
			l := f.lists[p>>16]
			i, ok := slices.BinarySearch(l, uint16(p))
			if !ok {
				continue
			}
			l = slices.Delete(l, i, i+1)
			if len(l) < cap(l)/2 {
				l = slices.Clip(slices.Clone(l))
			}
			f.lists[p>>16] = l
			f.n--
		}
		f.mu.Unlock()
	}
}

// all calls fn with every fingerprint in order, in parts of at most size.
func (f *fingerprints) all(size int, fn func([]fingerprint)) {
	part := make([]fingerprint, 0, size)
	for i := range f.lists {
		f.mu.RLock()
		for _, low := range f.lists[i] {
			if part = append(part, fingerprint(i)<<16|fingerprint(low)); len(part) == size {
				fn(part)
				part = part[:0]
			}
		}
		f.mu.RUnlock()
	}
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
	added, removed [1 << 16][]uint16
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
		p := binary.LittleEndian.Uint32(b[i:])
		to := &l.added
		if i/4 >= n {
			to = &l.removed
		}
		if s := to[p>>16]; len(s) == cap(s) {
			to[p>>16] = slices.Grow(s, 8+len(s)/4)
		}
		to[p>>16] = append(to[p>>16], uint16(p))
	}
	return true
}

// finish moves what was loaded into an empty set.
func (l *loader) finish(f *fingerprints) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range l.added {
		added, removed := l.added[i], l.removed[i]
		slices.Sort(added)
		if len(removed) > 0 {
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
		f.lists[i] = added
		f.n += len(added)
		l.added[i], l.removed[i] = nil, nil
	}
}
