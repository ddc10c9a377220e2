package faultfs

import (
	"errors"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
)

// What a crash leaves of the disk.

// SetStrict names a directory of whose files a crash leaves only what was synced. So the decisions about other files do not depend on
// which files it has.
func (f *FS) SetStrict(dir string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.strict = dir
}

// Clone returns a copy in which everything that a running system sees is durable.
func (f *FS) Clone() *FS {
	return f.crash(func() bool { return true }, false)
}

// Crash returns what a machine finds after a power failure when nothing unsynced reached the disk.
func (f *FS) Crash() *FS {
	return f.crash(func() bool { return false }, false)
}

// CrashRandomly is Crash when some of the unsynced sectors and name changes reached the disk, chosen by rnd.
func (f *FS) CrashRandomly(rnd *rand.Rand) *FS {
	odds := rnd.Float64()
	return f.crash(func() bool { return rnd.Float64() < odds }, false)
}

// CutPower makes every later sync fail, also one whose hook has run, and then does what CrashRandomly does. So the copy has
// everything that a caller was told is durable.
func (f *FS) CutPower(rnd *rand.Rand) *FS {
	f.mu.Lock()
	f.off = true
	f.mu.Unlock()
	return f.CrashRandomly(rnd)
}

var errPower = errors.New("the power is gone")

// CrashTorn is Crash when all name changes reached the disk, but only the first n unsynced bytes, over all files in
// order of their names.
func (f *FS) CrashTorn(n int64) *FS {
	left := n
	return f.crash(func() bool { left--; return left >= 0 }, true)
}

// crash builds another FS from what is durable and from the unsynced rest as written decides: sector by sector, or,
// with bytes, byte by byte. With bytes all name changes are kept.
func (f *FS) crash(written func() bool, bytes bool) *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &FS{capacity: f.capacity, noAlloc: f.noAlloc, strict: f.strict}
	out.init()
	names := maps.Clone(f.disk)
	lost := make(map[string]bool) // directories that miss a change
	for _, op := range f.queue {
		if f.isStrict(op.dir()) {
			continue
		}
		if (bytes || written()) && !(op.ordered && lost[op.dir()]) {
			op.apply(names)
		} else {
			lost[op.dir()] = true
		}
	}
	copies := make(map[*node]*node)
	// The order is fixed, so that the same decisions apply to the same files.
	for _, name := range slices.Sorted(maps.Keys(names)) {
		n := names[name]
		c := copies[n]
		if c == nil {
			data := slices.Clone(n.disk)
			if !f.isStrict(path.Dir(name)) {
				data = n.crash(written, bytes)
			}
			c = &node{data: data, disk: slices.Clone(data), space: max(n.space, int64(len(data)))}
			copies[n] = c
		}
		out.names[name], out.disk[name] = c, c
	}
	return out
}

func (f *FS) isStrict(dir string) bool { return f.strict != "" && dir == f.strict }

func (n *node) crash(written func() bool, bytes bool) []byte {
	out := slices.Clone(n.disk)
	step := int64(sector)
	if bytes {
		step = 1
	}
	if len(n.data) > len(out) && (bytes || written()) {
		out = append(out, make([]byte, len(n.data)-len(out))...)
	}
	for _, s := range n.dirty {
		for off := s.off; off < s.end; {
			end := min(s.end, off-off%step+step)
			if written() && off < int64(len(out)) {
				copy(out[off:min(end, int64(len(out)))], n.data[off:])
			}
			off = end
		}
	}
	return out
}
