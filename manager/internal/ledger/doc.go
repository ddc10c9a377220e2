// Package ledger is the authority on idempotency keys. For every (scope, key) it decides which attempt may run the
// work, and it remembers how the work ended.
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
// COMMITTED and REJECTED never change. An entry is gone from the instant at which its TTL has passed, whether or not
// the sweeper has removed its record.
//
// A reservation that runs out without an outcome does not free its key, because the work may have run or may still run.
// From that instant the entry is UNKNOWN, for the unknown TTL of its reservation, whether or not the sweeper has stored
// that. A reservation with the unknown TTL api.NoUnknown frees its key instead. While the work runs, its holder renews
// the reservation. A holder that will never know the outcome says so (Unknown) instead of letting the reservation run
// out. Two things replace UNKNOWN: the outcome itself, if it comes with the reservation's token, and an operator's
// decision (Resolve).
//
// Time in which no manager served does not run down a reservation (see package downtime).
//
// # Tokens
//
// Every attempt has its own token. A call that is repeated with the same token gets the same answer and changes nothing
// the second time.
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
// If the call's fingerprint is not of the entry's request (api.SameRequest), the call returns ErrFingerprintMismatch and
// changes nothing. An entry keeps its first fingerprint, also when a later call has one with more parts.
// This holds for reserve, and for a commit, renewal or unknown that would record or accept something. ErrFenced is
// returned before fingerprints are compared, and ErrOutcomeUnknown after. Tx.Reserve with a fingerprint takes an outcome
// without one for another request's.
//
// A commit, reject or unknown is accepted late when the reservation is gone and the key was not reserved again: the
// work did run, and the next duplicate must see its outcome. The same holds for a renewal, because the work is still
// running. A token serves one attempt only. A reserve or renewal that arrives after the release of its own token
// reserves the key again, so a holder must release only when none of its other calls is under way.
//
// # Batches
//
// Batch makes many calls in one transaction of the store, which costs one record of the log and one fdatasync, or the
// round trips of one transaction. Each call is judged by itself, as in the tables above; calls of one key are judged in
// their order, each by what those before it left. A refused call changes nothing for the others, and none of them
// waits. Calls of different keys have no order: the room that one uses or makes may affect those before or after it.
//
// # Keys of other ledgers
//
// With Options.Owners, a reserve of a key that has no entry here and belongs to another ledger inserts nothing and
// returns ErrKeyMoved. So does a reserve that waited for a reservation that was released. All other calls follow the
// tables: what began here ends here, so a key moves once it has no entry here. Owners is asked in the transaction that
// would insert. Tx.Reserve does not ask it, because its caller writes more in the same transaction and has chosen this
// ledger for all of it.
//
// # Window
//
// The ledger holds at most MaxEntries entries and, on an engine that tells sizes, MaxBytes. A new key that finds no
// room after expired entries are removed gets ErrFull. A reservation counts with its future outcome, estimated by
// recent ones. An outcome of work that ran is never refused for lack of room: it may use an eighth more than the
// window, and beyond that it is recorded without its answer. An outcome whose reservation is gone may use that eighth,
// too, and one more entry; beyond that it gets ErrFull.
//
// A scope may hold a fixed multiple of what is free, which leaves room for scopes that hold little. ScopeShare is the
// part of the window that a single scope can then hold. A durable engine inside this process has what
// scopes hold as well, so a restart does not give a scope another share, and no start counts entries. After a crash that is
// right to within 64 entries and 64 KiB (see window.Collection). A start that is the first to bound scopes counts what is inserted
// from then on.
//
// On engines that several managers share, the counts may be a second old. So the window may be exceeded for a moment,
// and each manager counts per scope only what it inserted itself since its start.
//
// # Records that cannot be read
//
// A record may be unreadable: it has another version, or it was damaged. That affects only its own
// key. Every call that names the key returns a *store.UnreadableError. The sweeper, listings and look-ups skip the
// record, however many such records there are. They report it to Options.Unreadable, and never write or delete it. It
// counts in the window until an operator deletes it.
//
// # Waiting
//
// A reserve may wait while another attempt is pending. The waiters of a key form a queue in this manager, and only its
// head watches the store. When the reservation ends without an outcome, the head gets it. When an outcome is recorded,
// or the reservation becomes UNKNOWN, all waiters get that answer. Both happen in order of arrival. A renewed
// reservation keeps them waiting. A reserve that may wait joins the queue and does not overtake it. The number of
// waiters is bounded, and the waiters of one key never use more places than are free; beyond that a call is answered
// pending immediately.
//
// # Observers
//
// The ledger passes each call and change on to Options.Observer, with which package journal explains entries to operators. It
// counts how reserves ended in each minute of the last hour.
//
// # Origins
//
// With Options.Origin the ledger is one of several data centres. Each outcome that it records has the origin, a time of a
// hybrid logical clock and a fence, the number of earlier attempts of the key that ran out here. The index origin has
// outcomes by origin and time. On a shared engine the transactions of two managers, and of one, may become visible in another
// order than that of their times. There the keys of a transaction's outcomes go into the outbox with it, in one record.
// Package feed sends outcomes to other data centres, and imports theirs.
//
// Tx.Import records outcomes of other origins. They answer duplicates as the ledger's own do. They expire when the time is
// over that the origin said was left; the clocks of two data centres are never compared. They take room that is free, and
// make room for the ledger's own keys. An import replaces a reservation or an unknown outcome.
//
// An outcome whose hybrid clock is more than MaxPeerAhead ahead of the wall clock here is refused: the own clock would
// follow it, and other ledgers would refuse what this one records from then on.
//
// A note says that a key's home, another data centre, gave the key to an attempt of a caller here (Follow). A note and an
// outcome of another attempt have no common clock: either may be the later one, whatever arrives first. Only the home
// knows. An import that meets a note is deferred, and the home is asked again; what it holds then is later than the
// note (Tx.Import with met). A note that meets an imported outcome is not written, and the call is made at the home again; what it
// answers then is later than the outcome (Follow with Seen).
//
// Two final outcomes of one key with different origins are a conflict, unless they have the same token and are the
// same: one attempt was then reported to two ledgers. The outcome with the higher fence wins, then that with the
// earlier time, then that of the origin whose name is first. So all ledgers choose the same one, whatever comes first.
// The winner is the entry. The others stay beside it in the collection "conflicts" until the last of them expires. A
// commit or reject that finds an imported outcome becomes such a conflict, and is not fenced.
//
// # Storage
//
// An entry is one record of collection "ledger". Its key is the scope's length in decimal, a colon, scope and key. Each
// state has an index ordered by expiry (pending, committed, rejected, unknown), which the sweeper, listings and counts
// use. For all but reservations its sort key continues with the time at which the outcome was recorded. The index ref finds entries by
// a reference such as a job id. What scopes hold is in a collection of package window. All of this uses the
// transactions of package store; with Tx a caller combines ledger calls and its own writes in one transaction.
//
// # Files in reading order
//
//	machine.go                     the state machine, as pure functions
//	record.go                      stored entries
//	ledger.go, run.go, tx.go       reserves, and the transactions of all calls
//	finish.go, batch.go, wait.go   how reservations end, batches, waiting
//	window.go                      the window, with package window
//	sweep.go, entry.go, inspect.go the sweeper, operators and their tools
//	events.go, stats.go            what is counted, and what operators see of it
//	origin.go, conflicts.go        outcomes of several data centres
//	import.go, outbox.go           outcomes from and for other data centres (package feed moves them)
//	home.go                        keys that another data centre decides about
package ledger
