package cache

// Status is the result of a shared-data call.
type Status uint8

// The statuses.
const (
	OK          Status = iota // done
	NotFound                  // Get: there is no such key
	CASMismatch               // Set: the value was changed meanwhile, or the key exists
	Failed                    // anything else; the host's state is unknown
)

// SharedData is the host's shared key-value store.
type SharedData interface {
	// Get returns a copy of the value, which the caller may change, and its CAS
	// number. The copy lies in room if room has the capacity, else in new memory. Get
	// must not keep key or room.
	Get(key string, room []byte) (value []byte, cas uint32, status Status)
	// Set stores a copy of value if cas fits. It must not keep key or value.
	Set(key string, value []byte, cas uint32) Status
}

// Semantics says how the host's Set treats CAS numbers.
type Semantics struct {
	// ZeroOverwrites: a zero CAS overwrites a present key (Envoy). Otherwise it
	// only creates.
	ZeroOverwrites bool
	// Usable: the host answered the probe. A table on an unusable host finds
	// nothing and refuses all writes as Contended.
	Usable bool
}
