// Package cache is a table of reservations and recorded answers in the host's
// shared data, which all workers of a proxy see. The gate looks here first.
//
// # Why a table
//
// Shared data is a process-wide map without delete, listing, expiry or
// eviction. A key for each entry would leak forever, so the set of keys is fixed:
// a set-associative table. An entry's hash selects one bucket of eight ways. Each
// bucket has one small value, its record, which describes its ways. Each way has
// another value for its recorded answer. An operation needs only one bucket's
// record, so it is one loop of get, modify and compare-and-set.
//
//	<prefix>.p          scratch key: see Probe and create-if-absent
//	<prefix>.s          the sweep's position and its last totals
//	<prefix>.v          the VMs that are alive
//	<prefix>.0.<b>      bucket b: metadata of its ways
//	<prefix>.0.<b>.<w>  the answer of way w of bucket b
//	<prefix>.r.<r>      region r: how its bytes are shared among its buckets
//	<prefix>.l.<name>   not of the cache: what the gate remembers of a cluster's ledger
//
// # Bytes
//
// Options.MaxBytes bounds all values together, records included. Buckets have no
// fixed number of bytes: 64 MiB over 12,500 buckets would be about 5 KiB each, too
// little for an answer of 10. Instead some thousand buckets, a region, share their
// bytes. A bucket that needs more than its share for its next answer first gets
// more from its region. If the region has none left, answers of other buckets
// are evicted: the gate compares a few and takes the one used longest ago. So all bytes
// can be used, whatever the answers' sizes are, except for a rest smaller than one
// answer. The bytes that the records need when all ways are taken are reserved for
// them: 17 % of MaxBytes with the default sizes.
//
// For each way, a record says how many bytes its value may hold, whichever entry
// they belong to. No bucket's record accounts for more than its share. An answer
// that makes room is cleared before the record forgets it. A value that belongs to
// no known entry is cleared after the record was stored, by compare-and-set on
// the value itself, so that clearing never destroys a later answer.
//
// Three things can exceed the bound for some time:
//
//   - Answers of VMs whose entry was taken over while they wrote, at most one for
//     each VM. They stay for a moment.
//   - Such an answer of a VM that died in that moment. It stays until the entry
//     that took over is finished, or is over and swept.
//   - Values that the regions do not know after a change of the sizes or of the
//     record's version. They stay until the sweep has looked at all buckets.
//
// # States of an entry
//
//	           Reserve                Finish
//	(absent) ----------> PENDING ------------------> COMMITTED | REJECTED | UNKNOWN
//	    ^                  |   |                            |
//	    |     Release      |   | expiry                     | expiry, eviction, Release of UNKNOWN
//	    +------------------+---+----------------------------+
//
// While the request runs, Renew moves the expiry of its pending entry. A pending
// entry names its attempt (token) and the queue of the VM that owns it. When that VM
// dies, nothing finishes the entry, and it ends by its expiry. Alive shows the other
// VMs that waiting for it is pointless. Duplicates add their VM's queue to the way;
// the VM that ends the entry gets the list of queues and wakes them. Both operations
// compare-and-set the same record. So a waiter is in the list that the finisher
// gets, or it sees the finished entry.
//
// # What may be lost
//
// Where there is a ledger, everything may be lost at any time, because the cache is
// never the authority. Terminal entries are evicted before pending ones, by last
// use. Evicting a pending entry costs one call: the next duplicate asks the ledger
// (the manager, or the upstream that keeps it), which still knows the reservation.
// Until then this proxy does not coalesce duplicates of that key.
//
// Some entries are never evicted before their time: those without a ledger
// (Reservation.CacheOnly), and those whose outcome the ledger does not know yet
// (Outcome.CacheOnly, until Settle). Reserve answers Full when all ways of the bucket
// are taken, or when the region has no room for an answer of typical size. That room
// is set aside with the reservation. Only a larger answer may find no room; the
// table then remembers that the request ran, without its answer. Stats counts both
// cases: Refused and AnswersDropped.
//
// Records of another version, and foreign values under the table's keys, count as
// empty and are overwritten. Gates of one vm_id with tables of different sizes look
// for the same entry in different buckets: they share less, and nothing wrong. For
// entries without a ledger that is a loss of protection, so there a change of the
// sizes acts like a restart.
//
// # Create-if-absent
//
// In the library that Envoy embeds, set with a zero CAS overwrites any value, and
// set on an absent key succeeds with any CAS. So with zero, two workers that both
// found nothing would both win. On such a host a record is created with a CAS
// number that the key cannot have by now, whether the host counts for all keys
// together, as Envoy does, or for each key (see createCAS). Other hosts compare
// strictly and create with zero. Probe finds out which kind the host is. On a host
// that offers neither, every operation ends as Contended.
package cache
