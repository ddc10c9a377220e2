// Package postgres is the store engine on a PostgreSQL database that several
// managers may share.
//
// # Layout
//
// One schema (Options.Schema) with three tables: records (collection, key, value and the record's index entries),
// entries (one row per index entry, whose primary key is the order that scans need) and meta (the format version). It
// also has the function apply, which commits. Open creates and migrates the schema under an advisory lock, so several
// managers may start at the same time.
//
// An Update reads first and writes last. Between the two it holds nothing on the server, not even a transaction: each
// Get is one statement that returns the record, the server's time and the version of the row (xmin, the transaction
// that wrote it). A Put of a record that was not read assumes that it is absent. The commit is one call of apply, which
// in one round trip
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
// transactions then wait in line instead of retrying forever. A deadlock, or a lock wait of more than five seconds,
// also makes the function run again. The server looks for deadlocks after 50 ms if the user may set deadlock_timeout
// (GRANT SET ON PARAMETER), else after its default of one second.
//
// A claiming scan opens a transaction and uses FOR UPDATE SKIP LOCKED. It returns the records together with the hits.
// View runs at REPEATABLE READ, READ ONLY.
//
// Notifications are sent separately, after the commit (see notifier).
//
// # Durability
//
// The engine sets synchronous_commit to on for its sessions. What it acknowledges then survives kill -9 and power loss,
// provided that the server runs with fsync on and its disk keeps what it confirmed. An asynchronous standby may lack
// acknowledged transactions when it is promoted.
package postgres
