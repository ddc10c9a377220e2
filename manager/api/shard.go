package api

// Bounds of a list of shards.
const (
	// MaxShards bounds the shards of one list.
	MaxShards = 64
	// MaxShardBytes bounds a shard's name: 1 to 255 bytes of visible ASCII.
	MaxShardBytes = 255
)

// Owner returns the index in shards of the shard that keeps the ledger entry of (scope, key), and -1 for an empty list.
// Gates and managers compute the same owner from the same names in any order. Nothing else matters, neither health nor
// addresses. It is rendezvous hashing: adding or removing a shard moves only the keys that this shard wins or loses.
//
// The function is part of the wire format. The score of a shard is mix(fnv(scope 0 key) + mix(fnv(name))), with the
// 64-bit FNV-1a hash and the finalizer of splitmix64. The largest score wins; of equal scores, the smaller name.
func Owner(shards []string, scope, key string) int {
	if len(shards) < 2 {
		return len(shards) - 1
	}
	entry := fnv(fnv(fnvOffset, scope)*fnvPrime, key) // hashing the 0 byte between the two is only a multiplication by the prime
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
