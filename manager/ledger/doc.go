// Package ledger is the authority on idempotency keys: for every (scope, key)
// it decides which attempt may run the work, and remembers how it ended.
//
// # Entries
//
//	          reserve                commit
//	(none) ------------> PENDING ------------> COMMITTED --.
//	  ^                   |  |  \    reject                 |  TTL, capacity,
//	  |   release, TTL    |  |   `-----------> REJECTED  ---+  admin delete
//	  '-------------------'  |                              |
//	  '-------------------------------------------------- (none)
//
// COMMITTED and REJECTED never change. An entry whose TTL has passed is treated
// as gone from that instant, whether or not the sweeper has removed its record.
//
// # Tokens
//
// Every attempt has a token of its own. The same call with the same token is
// the same call: it is answered alike and changes nothing the second time.
//
//	found                 reserve(t, f)        commit/reject(t)        release(t)
//	nothing               insert, reserved     accept late             released
//	PENDING, token t      reserved again       record the outcome      delete, released
//	PENDING, other token  pending              ErrFenced               ErrFenced
//	final, token t        the result           same state: ok          ErrConflict
//	                                           other state: ErrConflict
//	final, other token    the result           ErrFenced               ErrFenced
//
// When both sides give a fingerprint and they differ, reserve and a commit that
// would record or accept an outcome return ErrFingerprintMismatch and nothing
// changes. A fenced caller is told so before fingerprints are compared.
//
// A commit or reject is accepted late when the reservation is gone and nobody
// has reserved the key since: the work did run, and the next duplicate must see
// its outcome. A token serves one attempt only: a reserve that arrives after
// the release of its own token reserves again.
//
// # Window
//
// The ledger holds at most MaxEntries entries and, on an engine that lives in
// this process, MaxBytes of records. When it is full the final entry that was
// used least recently makes room for the one that is inserted; a call that inserts
// nothing evicts nothing. A PENDING entry is never evicted, and when only PENDING
// entries are left a new key gets ErrCapacity. Entries that have expired go first. Being used is noted
// in memory only, so that a replay is a pure read; the order is written down
// when an eviction meets an entry that was used since. On engines that several
// managers share, evictions pick among the oldest entries at random, so that
// managers do not fight over the same record, and counts may lag by a second, so that
// the window may be exceeded for a moment by what came meanwhile.
//
// # Records that cannot be read
//
// A record may be there and be unreadable: a later version of the program wrote it,
// or somebody damaged it. That costs its own key. Every call that names the key
// returns a *store.UnreadableError; the sweeper, evictions, listings and look-ups
// go around the record, however many of them there are. They tell
// Options.Unreadable, and never write or delete it. It counts in the window until
// an operator deletes it.
//
// # Waiting
//
// A reserve may be held while another attempt is pending. The waiters of a key
// form a queue in this manager; only its head watches the store. When the
// reservation ends without an outcome the head takes it, and when an outcome is
// recorded all of them are answered, both in order of arrival. A reserve that may wait
// joins the queue rather than overtake it. The number of waiters is bounded;
// beyond it a call is answered pending at once.
//
// # Storage
//
// An entry is one record of collection "ledger"; its key is the scope's length
// in decimal, a colon, scope and key. Each state has an index ordered by expiry
// (pending, committed, rejected), which the sweeper, listings and counts use;
// lru orders final entries by last use; ref finds entries by a reference such
// as a job id. All of this goes through the transactions of package store; Tx
// lets a caller combine ledger calls with writes of its own in one of them.
package ledger
