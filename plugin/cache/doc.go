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
//	<prefix>.v          the VMs that are alive
//	<prefix>.0.<b>      bucket b: metadata of its ways
//	<prefix>.0.<b>.<w>  the answer of way w of bucket b
//	<prefix>.<k>.<s>    area k >= 1: metadata of set s
//	<prefix>.<k>.<s>.<w>  the larger answers
//
// # Bytes
//
// Options.MaxBytes bounds all values together, records included. A bucket's
// share of it is too small for a large answer (64 MiB over 12,500 buckets is
// some 5 KiB), so half of what the records leave is spread over the buckets,
// and the other half over areas of fewer and larger sets, each area's sets
// sixteen times larger than those of the one before, until the largest answer
// fits. An answer goes to the first area whose sets can hold it, and is the
// answer of an entry in a bucket all the same. Areas evict by LRU on their own;
// an entry whose answer was evicted from an area is without its body (see
// Table.Body).
//
// A record says of each way how many bytes its value may hold, whoever they
// belong to. A value is written only by the way's owner, before the record says
// that it is there; one that no record speaks of any more is cleared, by
// compare-and-set on the value itself, so that clearing never destroys an
// answer that came later. Beyond the bound there can be, for a moment, the
// answers that are being finished, one per VM; and after a VM died in that very
// moment, that answer until its entry is over and swept.
//
// # States of an entry
//
//	           Reserve                Finish
//	(absent) ----------> PENDING ------------------> COMMITTED | REJECTED
//	    ^                  |   |                            |
//	    |     Release      |   | expiry                     | expiry, eviction
//	    +------------------+---+----------------------------+
//
// A pending entry names its attempt (token) and the queue of the VM that owns
// it. When that VM dies, nobody finishes the entry and it ends by its expiry,
// like any other; Alive tells the others that waiting for it is pointless. Duplicates add their VM's queue to the way; whoever ends the
// entry gets the list back and wakes them. Both are compare-and-sets of the
// same record, so a waiter either is in the list that the finisher gets or sees
// the finished entry.
//
// # What may be lost
//
// Everything, at any time: where there is a ledger, the cache is never the
// authority. Terminal entries are evicted before pending ones, by last use.
// Evicting a pending entry costs one call: the next duplicate asks the ledger
// (the manager, or the upstream that keeps it), which still knows the
// reservation; until then duplicates are not coalesced here. Where there is no
// ledger (Reservation.Sole) a pending entry is never evicted, and Reserve
// answers Full instead; a terminal one may lose its answer to others' bytes
// before it leaves itself, so that "it ran" is remembered longer than the
// answer.
//
// Records of another version, or of somebody else under our keys, count as
// empty and are overwritten. Gates of one vm_id with differently sized tables
// look for the same entry in different buckets: they share less, never wrongly.
// For entries without a ledger that is a loss of the protection, so there a
// change of the sizes acts like a restart.
//
// # Create-if-absent
//
// On the library that Envoy embeds, set with a zero CAS overwrites whatever is
// there, and set on an absent key succeeds whatever the CAS, so two workers
// that both found nothing would both win. There a record is created with a CAS
// number that the key cannot have by now, whether the host counts for all keys
// together, as Envoy does, or for each key (see createCAS). Other hosts compare
// strictly and create with zero. Probe finds out which one it is. On a host that
// offers neither, every operation ends as Contended.
package cache
