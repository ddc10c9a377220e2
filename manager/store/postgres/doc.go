// Package postgres is the store engine on a PostgreSQL database that several
// managers may share.
//
// # Layout
//
// One schema (Options.Schema) with three tables: records (collection, key,
// value and the record's index entries), entries (one row per index entry,
// whose primary key is the order scans need) and meta (the format version).
// Open creates and migrates them under an advisory lock, so that several
// managers may start at once.
//
// # Transactions
//
// Update runs at READ COMMITTED and locks what it reads: a Get takes the row
// with FOR UPDATE, and, where there is no row to lock, an advisory lock on the
// record's name. Two transactions that Get the same record therefore run one
// after the other; a deadlock or a lock wait of more than five seconds makes the
// function run again. The server looks for deadlocks after 50 ms if the user may
// set deadlock_timeout (GRANT SET ON PARAMETER), else after its default of a
// second. A claiming scan is FOR UPDATE SKIP LOCKED. View runs at
// REPEATABLE READ, READ ONLY.
//
// Statements that do not depend on each other's answers share a round trip:
// BEGIN travels with the first statement, all writes travel with COMMIT.
//
// # Durability
//
// The engine sets synchronous_commit to on for its sessions, so that what it
// acknowledges survives kill -9 and power loss as long as the server runs with
// fsync on and its disk keeps its word. A standby that is not synchronous may
// lack acknowledged transactions when it is promoted.
package postgres
