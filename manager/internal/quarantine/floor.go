package quarantine

import (
	"math/rand/v2"
	"time"
)

// epochsOfARestore is more than the epochs that anybody opens between two restores.
const epochsOfARestore = 1 << 32

// NextFloor is above every epoch that a writer got before now, in a history that is restored or in one that an
// earlier restore began. It grows by a million each second, and epochs are opened less often. A clock that is behind
// that of an earlier restore makes it no lower than what managers since then got, as far as their floor is known:
// before, or 0. Two restores that know of no other have the same floor only by chance, also when both have clocks that
// are behind. It stays below 2^53, so that every client can read the epochs above it.
func NextFloor(now time.Time, before uint64) uint64 {
	floor := uint64(max(now.Unix(), 0))<<20 | rand.Uint64N(1<<20)
	if before > 0 {
		floor = max(floor, before+epochsOfARestore+rand.Uint64N(epochsOfARestore))
	}
	return floor
}
