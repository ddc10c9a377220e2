// Package downtime keeps leases from running down while no manager serves. A reservation or a job's lease that was
// alive when the manager stopped gets at least the time it had left, counted from the moment at which a manager serves
// again. So a retry never overtakes a gate or a worker that kept going.
//
// Store is a store.Store around an engine. It detects in two ways that the manager was away:
//
//   - A manager that starts compares the time with the last beat in the data. A
//     running manager writes a beat every BeatInterval while there is any lease.
//   - A manager that stood still (SIGSTOP, a suspended machine) finds a gap in
//     its own time, which it checks several times a second. Every transaction
//     checks before it decides anything, so the first call after the gap finds
//     what it would have found before. A clock that is set forward looks the
//     same and is handled in the same way.
//
// # One manager's engine
//
// Every start ends a downtime, and so does a gap of more than LocalGap. The first lease after an idle time is there
// before the next beat. If the data have no beat, or one that is older than the lease, the lease gets its whole time
// again.
//
// # Shared engines
//
// All managers write the same beat record, always, and time is the engine's. One manager's absence is not a downtime
// while another one served. If there was no beat for SharedGap, all of them were away or cut off from the store, and
// the first one that is back extends the leases before it serves. Shorter absences count against the leases.
//
// # The extension
//
// A record holds the plan of an extension, so a crash at any point neither loses time nor gives it twice. The plan says
// from when to when the manager was away, and how far the work has come. Transactions extend a few hundred records
// each, beginning with the leases that end last. An extended lease moves after those that are not yet extended, never
// before them, so one position in the index separates the two. A manager that finds an unfinished plan finishes
// it, and then plans and carries out the time since then in the same way. The same holds for the time that the work
// itself took, if it exceeded the plan's estimate. If it took less, the manager waits: nothing is served before the time
// at which the extended leases begin to run down.
//
// Meanwhile this manager runs no other transactions. Managers of a shared engine that come back together share the
// work: each transaction begins where the last one of any manager ended.
package downtime
