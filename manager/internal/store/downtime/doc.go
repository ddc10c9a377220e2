// Package downtime keeps the time in which no manager served from running down
// what is leased out. A reservation or a job's lease that was alive when the
// manager stopped gets at least the time it had left again, from the moment at
// which the manager serves: gates and workers that kept going are not overtaken
// by their own retries.
//
// Store is a store.Store around an engine. It finds out in two ways that the
// manager was away:
//
//   - A manager that starts compares the time with the last beat in the data. A
//     running manager writes one every BeatInterval while anything is leased out.
//   - A manager that stood still (SIGSTOP, a suspended machine) finds a gap in
//     its own time, which it looks at several times a second. Every transaction
//     looks before it decides anything, so that the first call after the gap
//     finds what it would have found before it. A clock that is set forward
//     looks the same, and is dealt with in the same way.
//
// # One manager's engine
//
// Every start is the end of a downtime, and a gap of more than LocalGap is one.
// Where the data have no beat, because an earlier version wrote them, or one that
// is older than the lease, a lease gets its whole time again.
//
// # Shared engines
//
// All managers beat the same record, always, and time is the engine's. That one
// manager was away is no downtime while another one served. Only when there was
// no beat for SharedGap were all of them away, or cut off from the store: the
// first one that is back extends the leases before it serves. Shorter absences
// count, and so does the first one after the data were written by an earlier
// version.
//
// # The extension
//
// It is planned in a record, so that a crash at any point of it loses nothing and
// gives nothing twice. The plan says from when to when the manager was away, and
// how far the work has come. Bounded transactions extend a few hundred records
// each, from those that end last to those that end first: what was extended moves
// behind what was not, never in front of it, so that a position in the index
// tells the one from the other. A plan that is found half done is finished as it
// was written, and then the time since then is planned and carried out in the
// same way. So is the time that the work took, if it was more than the plan had
// allowed for.
//
// No transaction of others runs meanwhile in this manager. Managers of a shared
// engine that come back together do it together: each transaction begins where
// the last one of any of them ended.
//
// # Why so
//
// Why is the time not taken from the log, whose records have one? SQLite has none,
// and the last record may be old: nothing is written while callers work. A beat
// that is only written while anything is leased out is right on every engine, and
// a manager that has nothing to do does not write to its disk.
//
// Why are records written again, instead of having the clock stand still while
// nobody serves? Times that people gave and look at (run_at, created_at) would be
// wrong by all the downtime that ever was. And why not told apart when they are
// read, by the downtimes since they were written? Every reader of a deadline would
// have to, and the indexes would not be in order any more.
//
// Why does a transaction look at the time, when there is a timer? After a machine
// was suspended, the calls that wait in its sockets are as early as the timer.
package downtime
