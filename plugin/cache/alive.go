package cache

import "encoding/binary"

// The list of the VMs that are alive, so that no duplicate waits for a VM that trapped:
//
//	alive := version(1) vm*
//	vm    := queue(4) time(8)
//
// time is when the VM of that queue was last known to be alive, in nanoseconds since the epoch.
const (
	aliveVersion = 1
	aliveSize    = 4 + 8
	// maxAlive bounds the list. Beyond it the VM that was silent longest is left out and
	// counts as dead.
	maxAlive = 256

	// BeatPeriod is how often a VM should call Beat, in nanoseconds.
	BeatPeriod = int64(1e9)
	// silence is how long after its last beat a VM still counts as alive.
	silence = 5 * BeatPeriod
	// forgotten is how long after its last beat a VM is removed from the list.
	forgotten = 12 * silence
)

// Beat says that the VM of a queue is alive. A VM must call it before its first Reserve and
// then every BeatPeriod. A beat gets lost if too many VMs write at the same time or the host
// fails; the next one makes up for it.
func (t *Table) Beat(queue uint32, now int64) {
	if !t.sem.Usable {
		return
	}
	for try := 0; try < maxTries; try++ {
		value, cas, st := t.sd.Get(t.aliveKey(), nil)
		if st == Failed || st == OK && cas == 0 && t.sem.ZeroOverwrites {
			return
		}
		t.buf = appendAlive(t.buf[:0], value, queue, now)
		cas, ok := t.number(cas, st == OK)
		if !ok || t.compareAndSet(t.aliveKey(), t.buf, cas) != CASMismatch {
			return
		}
	}
}

// Alive reports whether the VM of a queue has called Beat recently. A VM that stood still may
// count as dead. If the list cannot be read, every VM counts as alive.
func (t *Table) Alive(queue uint32, now int64) bool {
	if !t.sem.Usable {
		return true
	}
	value, _, st := t.sd.Get(t.aliveKey(), nil)
	if st != OK || !isAlive(value) {
		return true
	}
	for b := value[1:]; len(b) > 0; b = b[aliveSize:] {
		if binary.BigEndian.Uint32(b) == queue {
			return now-beatOf(b) < silence
		}
	}
	return false
}

func isAlive(b []byte) bool {
	return len(b) > 0 && b[0] == aliveVersion && (len(b)-1)%aliveSize == 0
}

func beatOf(b []byte) int64 { return int64(binary.BigEndian.Uint64(b[4:])) }

// appendAlive appends to dst the list old with one more beat. If old is not a list, the new one
// has only that beat.
func appendAlive(dst, old []byte, queue uint32, now int64) []byte {
	dst = append(dst, aliveVersion)
	dst = binary.BigEndian.AppendUint32(dst, queue)
	dst = binary.BigEndian.AppendUint64(dst, uint64(now))
	if !isAlive(old) {
		return dst
	}
	// The VM with the latest beat comes first, so the end of the list may be dropped.
	for b, n := old[1:], 1; len(b) > 0 && n < maxAlive; b = b[aliveSize:] {
		if binary.BigEndian.Uint32(b) != queue && now-beatOf(b) < forgotten {
			dst = append(dst, b[:aliveSize]...)
			n++
		}
	}
	return dst
}
