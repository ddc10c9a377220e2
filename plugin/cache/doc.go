// Package cache is the gate's first line: a table of reservations and recorded
// answers in the host's shared data, which all workers of a proxy see.
//
// # Why a table
//
// Shared data is a process-wide map without delete, listing, expiry or
// eviction. A key per entry would leak forever, so the key space is fixed: a
// set-associative table. An entry's hash selects one bucket of eight ways; one
// small value per bucket holds what is known about its ways, and every way has
// one more value for its recorded answer. What an operation knows and does is in
// one bucket, so it is one get / modify / compare-and-set loop.
//
//	<prefix>.p          scratch key: see Probe and create-if-absent
//	<prefix>.s          the sweep's position and its last totals
//	<prefix>.v          the VMs that are alive
//	<prefix>.0.<b>      bucket b: metadata of its ways
//	<prefix>.0.<b>.<w>  the answer of way w of bucket b
//	<prefix>.r.<r>      region r: how its bytes are shared among its buckets
//
// # Bytes
//
// Options.MaxBytes bounds all values together, records included. Buckets have
// no bytes of their own (64 MiB over 12,500 buckets would be some 5 KiB, too
// little for an answer of 10): some thousand of them, a region, share theirs. A
// bucket whose next answer takes more than it has so far gets more from its region
// first; when the region has none left, answers of other buckets leave, of a few
// that are compared the one used longest ago. So the bytes are used whatever the
// answers' sizes are, except for a rest that is smaller than one answer. What the
// records may take when all ways are taken is not given to answers: with the
// default sizes 17 % of MaxBytes.
//
// A record says of each way how many bytes its value may hold, of this entry or
// another, and no bucket's record accounts for more than its share. An answer
// that makes room is cleared before the record forgets it, and a value of which
// no record knows whose it is, by compare-and-set on the value itself after the
// record was stored, so that clearing never destroys an answer that came later.
// Beyond the bound there can be, for a moment, answers of VMs whose entry was
// taken over while they wrote, at most one per VM; after a VM died in that moment,
// until the entry that took over is finished, or is over and swept; and after a
// change of the sizes, or of the record's version, what the regions do not know
// of until the sweep has been round.
//
// # States of an entry
//
//	           Reserve                Finish
//	(absent) ----------> PENDING ------------------> COMMITTED | REJECTED | UNKNOWN
//	    ^                  |   |                            |
//	    |     Release      |   | expiry                     | expiry, eviction, Release of UNKNOWN
//	    +------------------+---+----------------------------+
//
// While the request runs, Renew moves the expiry of its pending entry. A pending entry names its attempt (token) and the queue of the VM that owns
// it. When that VM dies, nobody finishes the entry and it ends by its expiry,
// like any other; Alive tells the others that waiting for it is pointless.
// Duplicates add their VM's queue to the way; the VM that ends the entry gets
// the list back and wakes them. Both are compare-and-sets of the same record,
// so a waiter either is in the list that the finisher gets or sees the finished
// entry.
//
// # What may be lost
//
// Everything, at any time: where there is a ledger, the cache is never the
// authority. Terminal entries are evicted before pending ones, by last use.
// Evicting a pending entry costs one call: the next duplicate asks the ledger
// (the manager, or the upstream that keeps it), which still knows the
// reservation; until then duplicates are not coalesced here.
//
// Where there is no ledger (Reservation.Sole), or it does not know of an outcome yet
// (Outcome.Sole, until Settle), no entry is evicted before its time.
// Reserve answers Full when all ways of the bucket are taken, or when its region
// has no room for an answer of the size that is typical there: that room is set
// aside with the reservation. Only an answer that is larger may find none; then
// "it ran" is remembered without the answer. Stats tells both: Refused, Unkept.
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
