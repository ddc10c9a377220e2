// Package cache is the gate's first line: a table of reservations and recorded
// answers in the host's shared data, which all workers of a proxy see.
//
// # Why a table
//
// Shared data is a process-wide map without delete, listing, expiry or
// eviction. A key per entry would leak for ever, so the key space is fixed: a
// set-associative table. An entry's hash selects one bucket of eight ways; one
// small value per bucket holds what is known about its ways, and every way has
// one more value for its recorded answer. Within a bucket the least recently
// used entry makes room. Every operation touches one bucket, so every
// operation is one get / modify / compare-and-set loop.
//
//	<prefix>.p          scratch key: see Probe and create-if-absent
//	<prefix>.s          the sweep's position and its last totals
//	<prefix>.0.<b>      bucket b: metadata of its ways
//	<prefix>.0.<b>.<w>  the answer of way w of bucket b
//	<prefix>.<k>.<s>    area k >= 1: metadata of set s
//	<prefix>.<k>.<s>.<w>  the larger answers
//
// # Bytes
//
// Options.MaxBytes bounds all values together. A bucket's share of it is too
// small for a large answer (64 MiB over 12,500 buckets is some 5 KiB), so half of
// what the metadata leaves is spread over the buckets and the other half over areas
// of fewer, larger sets, each sixteen times larger than the one before, until
// the largest answer fits. An answer goes to the first area whose sets can hold it. Areas
// evict by LRU on their own; an entry whose answer was evicted from an area is
// without its body (see Table.Body).
//
// # States of an entry
//
//	           Reserve                Finish
//	(absent) ----------> PENDING ------------------> COMMITTED | REJECTED
//	    ^                  |   |                            |
//	    |     Release      |   | expiry                     | expiry, eviction
//	    +------------------+---+----------------------------+
//
// A PENDING way names its attempt (token) and the queue of the VM that owns it. When that
// VM dies, nobody finishes the entry and it ends by its expiry, like any other.
// Duplicates add their worker's queue to the way; whoever ends the way
// gets the list back and wakes them. Both happen by compare-and-set on the same
// value, so a waiter is either in the list that the finisher gets or sees the
// finished entry.
//
// # What may be lost
//
// Everything, at any time: the cache is never the authority when there is a
// ledger. Terminal entries are evicted before pending ones. Evicting a pending
// entry whose reservation is in the ledger costs one call: the next duplicate
// asks the ledger. Where there is no ledger (Reservation.Sole) a pending entry is never
// evicted: Reserve answers Full instead. Records of another version or of somebody
// else under our keys count as empty and are overwritten.
//
// # Create-if-absent
//
// On the library that Envoy embeds, set with a zero CAS overwrites whatever is
// there and set on an absent key succeeds whatever the CAS, so two workers
// that both found nothing would both win. There a bucket is created with a
// CAS number that no key can currently have. Other hosts compare strictly and
// create with zero. Probe finds out which one it is.
package cache
