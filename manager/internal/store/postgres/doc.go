// Package postgres is the store engine on a PostgreSQL database that several
// managers may share.
//
// # Layout
//
// One schema (Options.Schema) with four tables: records (collection, key, value and the record's index entries),
// index_entries (one row per index entry, whose primary key is the order that scans need), indexes (the names of the
// numbers in index_entries) and meta (the format version). It also has the function apply, which commits. Open creates
// the schema under an advisory lock, so several managers may start at the same time.
//
// An Update reads first and writes last. Between the two it holds nothing on the server, not even a transaction: each
// Get is one statement that returns the record, the server's time and the version of the row (xmin, the transaction
// that wrote it). A Put of a record that was not read assumes that it is absent. The commit is one call of apply,
// which in one round trip
//
//  1. takes an advisory lock for each absent record, on a number made from its
//     name: exclusive for those that it inserts, shared for those whose absence
//     it relies on;
//  2. locks the rows that were read or are written;
//  3. fails unless every record is as it was read: the row with its version, or
//     no row;
//  4. writes records and index entries.
//
// All locks are taken before the first check and held until the end, so transactions are serializable with respect to
// the records they Get. When apply fails, the function runs again. If the function returns an error after reading more
// than one record, the engine checks those records as well. After three such runs the function's Gets take locks (on
// the row, or on the name of an absent record), so the function meets no further changes. On a contended record
// transactions then wait in line instead of retrying forever. What all transactions read and few change
// (Options.Seldom) stays without locks, because transactions on other records would wait in that line as well. A
// deadlock, or a lock wait of more than five seconds, also makes the function run again. The server looks for deadlocks
// after 50 ms if the user may set deadlock_timeout (GRANT SET ON PARAMETER), else after its default of one second.
//
// # Shared statements
//
// Concurrent calls share statements (see share): two statements that read and two that commit run at the same time, and
// calls that come meanwhile go together in the next one. A read of several transactions is one look-up of all their
// records. A commit of several is one call of apply with the changes of all. It is as right as one after the other,
// because a transaction joins it only if none of the others writes what it read or wrote. If one of them meets a change,
// or waits for a lock for more than 200 ms, nothing is written, and each commits alone. A statement that the server does
// not answer within 15 seconds ends, and its calls fail with store.ErrUnavailable. What has met a conflict before
// or is large (more than 8 records) also commits alone. A transaction that holds a connection, such as one with locks,
// shares nothing any more: it would wait for a statement that waits for a connection. The commit that is shared does not
// use memory of its callers, which may leave when their contexts end; with the last of them the statement is cancelled.
//
// The statements of a transaction may run on different connections, and they all have to reach the same server: after a
// failover, versions that the old server returned mean other transactions on the new one. Then the function runs again.
//
// # Claims and views
//
// A claiming scan opens a transaction and uses FOR UPDATE SKIP LOCKED. It returns the records together with the hits,
// and after them, in the same round trip, the records that the caller reads in any case (store.Range.With). So a claim
// takes two round trips: this one and the commit. It starts where an earlier one found the first entries (see package
// front), because the entries of what was claimed stay in the index until the server vacuums it.
//
// View runs at REPEATABLE READ, READ ONLY.
//
// Notifications are sent separately, after the commit (see notifier).
//
// # Durability
//
// What the engine acknowledges survives kill -9 and power loss, provided that the server runs with fsync on and its
// disk keeps what it confirmed. The engine raises synchronous_commit to on for its sessions; only remote_apply, which
// waits for more, stays as it is.
//
// # Standbys
//
// An asynchronous standby may lack acknowledged transactions when it is promoted. With synchronous_standby_names, the
// server writes a commit to its own disk and then waits for standbys before it answers and before others see the
// changes. But that wait may be cut short: by pg_cancel_backend, by pg_terminate_backend, by a client that gives up, by
// a restart of the server, or by an empty synchronous_standby_names. The changes are then visible, and a failover undoes
// them. So, as long as synchronous_standby_names is set or standbys are required (Options.RequireSyncStandbys):
//
//   - A commit that comes with a warning 01000 or 57P01 has failed with store.ErrUnavailable: its outcome is unknown.
//   - An Update that wrote needs nothing else. In the server's log its commit comes after everything that it read, so a
//     standby that confirmed the commit has that as well.
//   - Any other call that got a record, or got to know that there is none, commits an empty message before it answers,
//     and waits until a standby confirmed that. Calls that come during one such commit share the next one. A call
//     whose function only scanned, and Len, return hints and wait for nothing.
//   - Where standbys are required, the engine asks after every commit, before it answers, whether they are still
//     connected. Calls that come meanwhile share one question. Below the required number all calls fail at once, and so
//     do the commits that wait.
//   - A proof counts only for the server that executed the call: after a failover the new primary's standbys say nothing
//     about what the old one had. Every connection knows its server by the start of its process, and no connection leads
//     to a standby, so none lives through a promotion. A call whose proof came from another server fails with
//     store.ErrUnavailable. When another server answers, or required standbys are missing, the pool's connections are
//     made again.
//   - A commit and a proof wait ten seconds at most.
//
// Without standbys none of this costs anything but a question per second. A synchronous_standby_names that is set while
// the engine is open counts from the next question on.
//
// # Poolers
//
// A session must have a server process of its own: Open fails behind a pooler that lends processes for transactions or
// statements.
package postgres
