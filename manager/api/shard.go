package api

// Bounds of a list of shards.
const (
	// MaxShards bounds the shards of one list.
	MaxShards = 64
	// MaxShardBytes bounds a shard's name: 1 to 255 bytes of visible ASCII.
	MaxShardBytes = 255
)

// Owner returns the position in shards of the one that keeps the ledger entry of (scope, key). Gates and
// managers compute the same owner from the same names, in any order, and nothing else: no health, no
// addresses. It is rendezvous hashing: a shard more or less moves only the keys that it wins or loses.
// Owner of an empty list is -1.
//
// The function is part of the wire format. The score of a shard is mix(fnv(scope 0 key) + mix(fnv(name))),
// with the 64-bit FNV-1a hash and the finalizer of splitmix64; the largest score wins, of equal ones the
// smaller name.
func Owner(shards []string, scope, key string) int {
	if len(shards) < 2 {
		return len(shards) - 1
	}
	entry := fnv(fnv(fnvOffset, scope)*fnvPrime, key) // the byte 0 between the two changes nothing but by the prime
	best, most := -1, uint64(0)
	for i := range shards {
		score := mix(entry + mix(fnv(fnvOffset, shards[i])))
		if best < 0 || score > most || score == most && shards[i] < shards[best] {
			best, most = i, score
		}
	}
	return best
}

const (
	fnvOffset = 0xcbf29ce484222325
	fnvPrime  = 0x100000001b3
)

func fnv(h uint64, s string) uint64 {
	for i := 0; i < len(s); i++ {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	return h
}

func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
