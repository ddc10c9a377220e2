// Package ledger is the authority on idempotency keys: for every (scope, key)
// it decides which attempt may run the work, and remembers how it ended.
//
// # Entries
//
//	           reserve             commit, reject
//	(none) --------------> PENDING ----------------> COMMITTED, REJECTED
//	   ^                   |  |  ^                       ^           |
//	   |                   |  |  |         late outcome, |           |
//	   |<---- release -----'  |  | renew     or resolved |           |
//	   |          TTL, unknown|  |                       |           |
//	   |                      v  |                       |           |
//	   |                    UNKNOWN ---------------------'           |
//	   |                       |                                     |
//	   |<-- release, resolve --+-------------------------------------'
//	                                TTL, capacity, admin delete
//
// COMMITTED and REJECTED never change. An entry whose TTL has passed is treated
// as gone from that instant, whether or not the sweeper has removed its record.
//
// A reservation that runs out without an outcome does not free its key: the work
// may have run, or may still run. It is UNKNOWN from that instant, for the unknown
// TTL of its reservation, whether or not the sweeper has stored that. A reservation
// with the unknown TTL api.NoUnknown frees its key instead. While the work runs its
// holder renews the reservation; a holder that sees that it will never know the
// outcome says so (Unknown) rather than let the reservation run out. What replaces
// UNKNOWN is the outcome itself, when it comes with the reservation's token, and what
// an operator found out (Resolve).
//
// Time in which no manager served does not run a reservation down, see package
// downtime.
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
//	UNKNOWN, token t      ErrOutcomeUnknown    record the outcome      delete, released
//	UNKNOWN, other token  ErrOutcomeUnknown    ErrFenced               ErrFenced
//	final, token t        the result           same state: ok          ErrConflict
//	                                           other state: ErrConflict
//	final, other token    the result           ErrFenced               ErrFenced
//
//	found                 renew(t)             unknown(t)              resolve
//	nothing               insert, reserved     accept late             ErrNotFound
//	PENDING, token t      extend, reserved     make it UNKNOWN         ErrConflict
//	PENDING, other token  ErrFenced            ErrFenced               ErrConflict
//	UNKNOWN, token t      PENDING, reserved    unknown, nothing new    record, or delete
//	UNKNOWN, other token  ErrFenced            ErrFenced               record, or delete
//	final, token t        ErrConflict          ErrConflict             ErrConflict
//	final, other token    ErrFenced            ErrFenced               ErrConflict
//
// When both sides give a fingerprint and they differ, reserve and a commit, renewal
// or unknown that would record or accept something return ErrFingerprintMismatch and
// nothing changes. A fenced caller is told so before fingerprints are compared; a
// reserve is told that the outcome is unknown after.
//
// A commit, reject or unknown is accepted late when the reservation is gone and nobody
// has reserved the key since: the work did run, and the next duplicate must see
// its outcome. So is a renewal: the work is still running. A token serves one attempt
// only: a reserve, or a renewal, that arrives after the release of its own token
// reserves again, so a holder releases only when no other call of its own is under way.
//
// # Batches
//
// Batch makes many calls in one transaction of the store: one record of the log and one
// fdatasync, or the round trips of one transaction. Each is judged by itself, as the
// tables above say; those of one key in their order, each by what those before it left.
// A refusal changes nothing for the others, and none of them waits. Calls of different
// keys have no order among themselves: what one evicts, or the room that it takes, may
// come before or after another.
//
// # Keys of other ledgers
//
// With Options.Owners a reserve that finds nothing inserts nothing where another ledger
// owns the key, and returns ErrKeyMoved; so does one that waited, when the reservation
// it waited for is released. All else is as in the table: what was begun here ends
// here, so a key moves when nothing of it is left. Owners is asked in the
// transaction that would insert. Tx.Reserve does not ask it: its caller writes more
// in the same transaction, and has chosen this ledger for all of it.
//
// # Window
//
// The ledger holds at most MaxEntries entries and, on an engine that lives in
// this process, MaxBytes. A new key that finds no room, once what has expired is
// gone, gets ErrFull. Reservations count with the outcome that they are to get, as
// large as recent ones. An outcome of work that ran is never refused for want of
// room: it may take an eighth more than the window, and beyond that it is recorded
// without its answer. When its reservation is gone it may take that eighth, too, and
// one entry more; beyond that it gets ErrFull.
//
// A scope may hold a fixed multiple of what is free, which leaves room for those
// that hold little; ScopeShare is what that comes to for a scope alone.
//
// With WhenFull Evict, the final or UNKNOWN entry that was used least recently makes
// room for the one that is inserted, and a scope with more than ScopeShare makes room
// for itself. A call that inserts nothing evicts nothing, and a PENDING entry is never
// evicted. Being used is noted
// in memory only, so that a replay is a pure read; the order is written down
// when an eviction meets an entry that was used since. On engines that several
// managers share, evictions pick among the oldest entries at random, so that
// managers do not fight over the same record. There counts may lag by a second, so that
// the window may be exceeded for a moment by what came meanwhile, and each manager
// knows of a scope what it inserted itself.
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
// recorded, or the reservation becomes UNKNOWN, all of them are told, both in order of
// arrival. A reservation that is renewed keeps them waiting. A reserve that may wait
// joins the queue rather than overtake it. The number of waiters is bounded, and
// those of one key never take more places than are free; beyond that a call is
// answered pending at once.
//
// # Storage
//
// An entry is one record of collection "ledger"; its key is the scope's length
// in decimal, a colon, scope and key. Each state has an index ordered by expiry
// (pending, committed, rejected, unknown), which the sweeper, listings and counts use;
// lru orders final and UNKNOWN entries by last use; ref finds entries by a reference such
// as a job id. All of this goes through the transactions of package store; Tx
// lets a caller combine ledger calls with writes of its own in one of them.
//
// Records have version 1 wherever that can say what there is, and version 2 for what is
// UNKNOWN and for reservations that do not leave their unknown TTL to the manager. A
// reservation in a record of version 1, as the release before version 2 wrote all of
// them, has the default of the manager that finds it run out. That release cannot read
// version 2: a key with such a record fails there.
package ledger
